"""The spaces of all envs of a pool, with a hint for users of a single space."""

from __future__ import annotations

from typing import Any


class Spaces(list[Any]):
    """One space per env; a method of a single space is an error that says which one to use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"this is a list of one space per env; use spaces[i].{name} of env i"
        if name == "sample":
            text += ": [space.sample() for space in envs.action_space]"
        raise AttributeError(f"{text}, or pool.single_action_space and single_observation_space")
