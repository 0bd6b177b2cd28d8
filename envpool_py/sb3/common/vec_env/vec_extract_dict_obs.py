"""``VecExtractDictObs``: one entry of Dict observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envpool_py.sb3.common.vec_env.base_vec_env import ObservationWrapper, require


class VecExtractDictObs(ObservationWrapper):
    """Observations are the entry ``key`` of the dicts, terminal observations too.

    UnsuitableEnvError if the observations are no dicts, KeyError if they have no such key.
    """

    def __init__(self, venv: Any, key: str) -> None:
        self.key = key
        space = venv.observation_space
        text = f"VecExtractDictObs: observation_space is {space}, but a Dict is needed"
        require(isinstance(space, gym.spaces.Dict), text)
        super().__init__(venv, observation_space=space[key])

    def observations(self, obs: Any) -> Any:
        return obs[self.key]
