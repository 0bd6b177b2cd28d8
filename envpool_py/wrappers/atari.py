"""The infos of EnvPool's Atari games."""

from __future__ import annotations

from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class AtariInfo(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Adds EnvPool's ``lives``, ``reward`` and ``terminated`` to the infos of an Atari game.

    Wrappers around it may clip rewards and end episodes at lost lives; the infos still have the
    reward of the game and the end of the game. Put it around the frame skip, and within these::

        def end_at_lost_lives(env):
            return EpisodicLifeEnv(AtariInfo(gym.wrappers.AtariPreprocessing(env)))

    TypeError if ``env`` is no Atari game of ``ale_py``.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        self._ale: Any = getattr(getattr(env, "unwrapped", None), "ale", None)
        if self._ale is None:
            raise TypeError(f"env: got {env!r}, but AtariInfo needs an Atari game of ale_py")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(self, **kwargs: Any) -> tuple[ObsType, dict[str, Any]]:
        """Reset the game."""
        obs, info = self.env.reset(**kwargs)
        return obs, self._with(info, 0.0, terminated=False)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with(info, reward, terminated=terminated)

    def _with(self, info: dict[str, Any], reward: Any, *, terminated: bool) -> dict[str, Any]:
        """Return the info with EnvPool's entries; ``terminated`` is 0 or 1, as there."""
        own = {"lives": self._ale.lives(), "reward": float(reward), "terminated": int(terminated)}
        return {**info, **own}
