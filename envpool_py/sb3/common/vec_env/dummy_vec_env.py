"""``DummyVecEnv``: all envs in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.pool.keywords import InProcessOptions, spell_out
from envpool_py.pool.pool_classes import DummyVectorEnv
from envpool_py.sb3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from envpool_py.sb3.common.vec_env.pool_vec_env import DECIDED, PoolVecEnv
from envpool_py.sb3.common.vec_env.util import obs_space_info


@spell_out(InProcessOptions, DECIDED, validate="off")
class DummyVecEnv(PoolVecEnv):
    """A VecEnv that steps all envs in this process; for cheap envs and for debugging.

    ``observation_space`` and ``action_space`` are those of env 0, not copies: if a model seeds
    them, it seeds the env's.

    Args:
        env_fns: one callable for each env.
        options: ``on_error``, ``episode_seeds``, ``record``, ...: see ``PoolOptions``.

    Attributes:
        keys: of a Dict observation space its keys, of a Tuple its indices, of another ``[None]``.
        buf_obs, buf_rews, buf_dones, buf_infos: what ``reset`` or ``step_wait`` returned last;
            ``buf_obs`` is a dict by these keys, before the first reset only of plain spaces.

    Raises:
        ValueError: ``env_fns`` is empty, two return one instance, or spaces or render modes differ.
        EnvError: an env_fn raised.
    """

    _reward_dtype = np.float32

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], **options: Unpack[InProcessOptions]
    ) -> None:
        self._make_pool(DummyVectorEnv, env_fns, options)
        first = self.envs[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.keys, shapes, dtypes = obs_space_info(self.observation_space)
        n, plain = self.num_envs, [key for key in self.keys if shapes[key] is not None]
        self.buf_obs: dict[Any, Any] = {k: np.zeros((n, *shapes[k]), dtypes[k]) for k in plain}
        self.buf_rews, self.buf_dones = np.zeros(n, np.float32), np.zeros(n, np.bool_)
        self.buf_infos: list[dict[str, Any]] = [{} for _ in range(n)]

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        workers: list[Any] = self.pool.workers
        return [worker.env for worker in workers]

    def _get_target_envs(self, indices: VecEnvIndices) -> list[Any]:
        return [self.envs[i] for i in self._get_indices(indices)]

    def reset(self) -> VecEnvObs:
        return self._keep(super().reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, self.buf_rews, self.buf_dones, self.buf_infos = super().step_wait()
        return self._keep(obs), self.buf_rews, self.buf_dones, self.buf_infos

    def _keep(self, obs: VecEnvObs) -> VecEnvObs:
        parts = tuple(obs.values()) if isinstance(obs, dict) else obs
        self.buf_obs = dict(zip(self.keys, parts if self.keys != [None] else [obs], strict=True))
        return obs
