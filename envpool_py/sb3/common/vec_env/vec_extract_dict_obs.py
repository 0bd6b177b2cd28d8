"""``VecExtractDictObs``: one entry of Dict observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvObs,
    VecEnvStepReturn,
    VecEnvWrapper,
)


class VecExtractDictObs(VecEnvWrapper):
    """Observations are one entry of the dicts, terminal ones too.

    Args:
        venv: a VecEnv with a Dict observation space.
        key: of the entry.

    Raises:
        UnsuitableEnvError: the observations are no dicts.
        KeyError: the observation space has no such key.
    """

    def __init__(self, venv: Any, key: str) -> None:
        self.key = key
        space = venv.observation_space
        if not isinstance(space, gym.spaces.Dict):
            raise UnsuitableEnvError(
                f"VecExtractDictObs: observation_space is {space}, but a Dict is needed"
            )
        if key not in space.spaces:
            raise KeyError(
                f"VecExtractDictObs: got key {key!r}, but the space has {list(space.spaces)}"
            )
        super().__init__(venv, observation_space=space.spaces[key])

    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations."""
        return self.venv.reset()[self.key]

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step begun; return ``obs, rewards, dones, infos``."""
        obs, rewards, dones, infos = self.venv.step_wait()
        for i in np.flatnonzero(dones).tolist():
            if "terminal_observation" in infos[i]:
                infos[i]["terminal_observation"] = infos[i]["terminal_observation"][self.key]
        return obs[self.key], rewards, dones, infos
