"""``VecMonitor``: return, length and time of every episode, in the infos and in a CSV file."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np

from envpool_py.sb3.common.monitor import EpisodeLog, Monitor
from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper


class VecMonitor(EpisodeLog, ResultWrapper):
    """Adds ``info["episode"]`` where an env is done, as ``Monitor`` does for a single env.

    ``r``, the return, is float32 here, and ``l``, the length, int32. ``filename`` and
    ``info_keywords`` are those of ``Monitor``. Envs that have a ``Monitor`` already are warned of.

    Attributes:
        episode_count: the number of episodes that have ended.
        episode_returns, episode_lengths: of the current episodes; float32, int32 ``(num_envs,)``.
    """

    def __init__(
        self, venv: Any, filename: str | None = None, info_keywords: tuple[str, ...] = ()
    ) -> None:
        super().__init__(venv)
        with contextlib.suppress(AttributeError):  # of a VecEnv whose envs are no objects
            if venv.env_is_wrapped(Monitor)[0]:
                text = "the envs have a Monitor already; VecMonitor overwrites its info['episode']"
                warnings.warn(text, stacklevel=2)
        self.episode_count = 0
        self._begin_log(filename or None, getattr(venv, "spec", None), (), info_keywords)
        self.episode_returns = np.zeros(self.num_envs, np.float32)
        self.episode_lengths = np.zeros(self.num_envs, np.int32)

    def _after_reset(self, obs: Any) -> Any:
        self.episode_returns[:] = self.episode_lengths[:] = 0
        return obs

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self.episode_returns += rewards
        self.episode_lengths += 1
        # Of SB3MultiAgentVecEnv: rows of an agent before its birth and after its death.
        idle = [i for i, info in enumerate(infos) if not info.get("active", True)]
        self.episode_lengths[idle] -= 1
        infos = list(infos)
        for i in np.flatnonzero(dones).tolist():
            totals = self.episode_returns[i], self.episode_lengths[i]
            infos[i] = {**infos[i], "episode": self._logged(*totals, infos[i])}
            self.episode_count += 1
            self.episode_returns[i] = self.episode_lengths[i] = 0
        return obs, rewards, dones, infos
