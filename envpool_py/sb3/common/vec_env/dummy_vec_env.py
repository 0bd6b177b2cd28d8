"""``DummyVecEnv``: all envs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from envpool_py.pools import DummyVectorEnv
from envpool_py.sb3.common.vec_env.base_vec_env import VecEnvIndices
from envpool_py.sb3.common.vec_env.pool_vec_env import PoolVecEnv, pool_options


class DummyVecEnv(PoolVecEnv):
    """All envs in this process, one after another; for cheap envs and for debugging.

    Args:
        env_fns: one callable for each env.
        **options: of the pool: ``episode_seeds``, ``reset_fn``, ...

    Attributes:
        envs: the envs themselves.

    Raises:
        ValueError: ``env_fns`` is empty, or two of them returned the same instance.
        UnsuitableEnvError: the spaces or render modes of the envs differ.
        EnvError: an env_fn raised.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> None:
        pool = DummyVectorEnv(env_fns, **pool_options(options))
        try:
            super().__init__(pool)
        except BaseException:
            pool.close()
            raise

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        return self._get_target_envs(None)

    def _get_target_envs(self, indices: VecEnvIndices) -> list[Any]:
        """Those of the envs that are meant."""
        workers: list[Any] = self.pool.workers
        return [workers[i].env for i in self._get_indices(indices)]
