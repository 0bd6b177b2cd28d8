"""``VecFrameStack``: observations are the last few frames."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper, require
from envpool_py.sb3.common.vec_env.stacked_observations import ChannelsOrders, StackedObservations


class VecFrameStack(ResultWrapper):
    """Stacks the last ``n_stack`` observations, the newest last; terminal observations too.

    The arguments and most errors are those of ``StackedObservations``, which is the attribute
    ``stacked_obs``. A space that is no Box and no Dict is an UnsuitableEnvError.
    """

    def __init__(self, venv: Any, n_stack: int, channels_order: ChannelsOrders = None) -> None:
        space = venv.observation_space
        text = f"VecFrameStack: observation_space is {space}, but Box or Dict is needed"
        require(isinstance(space, (gym.spaces.Box, gym.spaces.Dict)), text)
        self.stacked_obs = StackedObservations(venv.num_envs, n_stack, space, channels_order)
        super().__init__(venv, observation_space=self.stacked_obs.stacked_observation_space)

    def _after_reset(self, obs: Any) -> Any:
        return self.stacked_obs.reset(obs)

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        obs, infos = self.stacked_obs.update(obs, dones, infos)
        return obs, rewards, dones, infos
