"""The spaces of all envs of a pool, and the space that they share."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class SpaceList(list[Any]):
    """One space per env; a method of a single space is an error that says which one to use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"this is a list of one space per env; use spaces[i].{name} of env i"
        if name == "sample":
            text += ": [space.sample() for space in envs.action_space]"
        raise AttributeError(f"{text}, or pool.single_action_space and single_observation_space")


def common_space(name: str, spaces: Any) -> gym.Space[Any] | None:
    # A vector env of another library has one for all.
    per_env: list[gym.Space[Any] | None] = spaces if isinstance(spaces, list) else [spaces]
    for i, space in enumerate(per_env):
        if space != per_env[0]:
            raise ValueError(f"env {i}: {name} is {space}, but that of env 0 is {per_env[0]}")
    return per_env[0]
