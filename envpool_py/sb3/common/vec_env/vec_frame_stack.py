"""``VecFrameStack``: observations are the last few frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvObs,
    VecEnvStepReturn,
    VecEnvWrapper,
)
from envpool_py.sb3.common.vec_env.stacked_observations import StackedObservations


class VecFrameStack(VecEnvWrapper):
    """Stacks the last ``n_stack`` observations, the newest last; terminal observations too.

    Args:
        venv: a VecEnv with Box observations, or with a Dict of them.
        n_stack: the number of observations in a stack.
        channels_order: as for ``StackedObservations``.

    Attributes:
        stacked_obs: the ``StackedObservations``.

    Raises:
        UnsuitableEnvError: another observation space, or another order.
    """

    def __init__(
        self,
        venv: Any,
        n_stack: int,
        channels_order: str | Mapping[str, str | None] | None = None,
    ) -> None:
        space = venv.observation_space
        if not isinstance(space, (gym.spaces.Box, gym.spaces.Dict)):
            raise UnsuitableEnvError(
                f"VecFrameStack: observation_space is {space}, but Box or Dict is needed"
            )
        self.stacked_obs = StackedObservations(venv.num_envs, n_stack, space, channels_order)
        super().__init__(venv, observation_space=self.stacked_obs.stacked_observation_space)

    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations, on zeros."""
        return self.stacked_obs.reset(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the pending step; return ``obs, rewards, dones, infos``."""
        obs, rewards, dones, infos = self.venv.step_wait()
        obs, infos = self.stacked_obs.update(obs, dones, infos)
        return obs, rewards, dones, infos
