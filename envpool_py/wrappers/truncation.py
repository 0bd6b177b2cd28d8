"""Treat truncated episodes as terminated ones."""

from __future__ import annotations

from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym

from envpool_py.wrappers.action import require_env

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class TruncatedAsTerminated(
    gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs
):
    """Sets ``terminated`` in every truncated step; ``truncated`` does not change.

    For algorithms that must treat the end of a time limit as the end of the task. TypeError if
    ``env`` is no ``gymnasium.Env``.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        require_env(env)
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the env; ``terminated`` is true if ``truncated`` is."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info
