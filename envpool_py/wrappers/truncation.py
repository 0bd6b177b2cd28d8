"""Truncated episodes that pass for terminated ones."""

from __future__ import annotations

from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class TruncatedAsTerminated(
    gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs
):
    """Makes every truncated step a terminated one too; ``truncated`` itself is unchanged.

    For algorithms that are to take the end of a time limit as the end of the task.

    Args:
        env: the environment to wrap.

    Raises:
        TypeError: ``env`` is no ``gymnasium.Env``.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(f"env: got {env!r}, but the wrapper needs a gymnasium.Env")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; ``terminated`` is true where ``truncated`` is."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info
