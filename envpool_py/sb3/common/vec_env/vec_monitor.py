"""``VecMonitor``: return, length and time of every episode, in the infos and in a CSV file."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import numpy as np

from envpool_py.sb3.common.monitor import Monitor, ResultsWriter
from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper


class VecMonitor(ResultWrapper):
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
        self.t_start = time.time()
        self.info_keywords = info_keywords
        self.results_writer: ResultsWriter | None = None
        if filename:
            env_id = getattr(getattr(venv, "spec", None), "id", None)
            header = {"t_start": self.t_start, "env_id": str(env_id)}
            self.results_writer = ResultsWriter(filename, header, info_keywords)
        self.episode_returns = np.zeros(self.num_envs, np.float32)
        self.episode_lengths = np.zeros(self.num_envs, np.int32)

    def _after_reset(self, obs: Any) -> Any:
        self.episode_returns[:] = self.episode_lengths[:] = 0
        return obs

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self.episode_returns += rewards
        # Not the rows of an agent before its birth and after its death: SB3MultiAgentVecEnv.
        self.episode_lengths += [info.get("active", True) for info in infos]
        infos = list(infos)
        for i in np.flatnonzero(dones).tolist():
            episode = {
                "r": self.episode_returns[i],
                "l": self.episode_lengths[i],
                "t": round(time.time() - self.t_start, 6),
                **{key: infos[i][key] for key in self.info_keywords},
            }
            infos[i] = {**infos[i], "episode": episode}
            self.episode_count += 1
            self.episode_returns[i] = self.episode_lengths[i] = 0
            if self.results_writer is not None:
                self.results_writer.write_row(episode)
        return obs, rewards, dones, infos

    def close(self) -> None:
        """Close the file and the wrapped VecEnv."""
        if self.results_writer is not None:
            self.results_writer.close()
        self.venv.close()
