"""``DummyVecEnv``: all envs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from envpool_py.pool.backends import DummyVectorEnv
from envpool_py.sb3.common.vec_env.pool_vec_env import PoolVecEnv


class DummyVecEnv(PoolVecEnv):
    """A VecEnv that steps all envs in this process; for cheap envs and for debugging.

    ``observation_space`` and ``action_space`` are those of env 0, not copies: if a model seeds
    them, it seeds the env's. ``**options`` are those of the pool: ``episode_seeds``, ...

    Raises:
        ValueError: ``env_fns`` is empty, two return one instance, or spaces or render modes differ.
        EnvError: an env_fn raised.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> None:
        self._make_pool(DummyVectorEnv, env_fns, options)
        first = self.envs[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        workers: list[Any] = self.pool.workers
        return [worker.env for worker in workers]
