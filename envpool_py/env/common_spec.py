"""What the envs of a pool have in common: their space, and the spec of the block for their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from envpool_py.env import spaces
from envpool_py.env.block import Spec
from envpool_py.env.executor import EnvSpaces
from envpool_py.options import SAME_STEP


class UnequalSpacesError(ValueError):
    """Two envs have spaces whose values do not fit into one array."""


def common_spec(all_spaces: Sequence[EnvSpaces], autoreset: Any, *, columns: bool) -> Spec:
    """Return the spec of the block for the rows of all these envs.

    Spaces may differ in their bounds. If rows are objects, spaces may differ in everything.
    """
    obs = _common_layout("observation_space", all_spaces, columns=columns, coded=True)
    rewards = {each.reward_shape for each in all_spaces}
    return Spec(
        len(all_spaces),
        obs=obs,
        action=_common_layout("action_space", all_spaces, columns=columns, coded=False),
        reward=rewards.pop() if len(rewards) == 1 else (),
        finals=autoreset == SAME_STEP and spaces.is_fixed(obs),
    )


def _common_layout(
    name: str, all_spaces: Sequence[EnvSpaces], *, columns: bool, coded: bool
) -> Any:
    found = [getattr(each, name) for each in all_spaces]
    layouts = [spaces.layout_of(space, coded=coded) for space in found]
    other = next((i for i, layout in enumerate(layouts) if layout != layouts[0]), None)
    if other is None:
        return layouts[0]
    if coded:
        return _common_layout(name, all_spaces, columns=columns, coded=False)
    if columns or any(spaces.is_leaf(layout) and layout.dtype is not None for layout in layouts):
        text = f"env {other}: {name} is {found[other]}, but that of env 0 is {found[0]}"
        hint = "shapes and dtypes must agree where rows are arrays"
        raise UnequalSpacesError(f"{text}; {hint}")
    return spaces.Leaf((), (), None)


def missing_space(i: int, name: str) -> str:
    """Return the message that an env declares no ``observation_space`` or ``action_space``."""
    example = "Discrete(2)" if name == "action_space" else "Box(-1, 1, (3,))"
    return f"env {i}: {name} is missing; set self.{name} = gymnasium.spaces.{example} in __init__"


class SpaceList(list[Any]):
    """One space per env; a method of a single space is an error that says which one to use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"this is a list of one space per env; use spaces[i].{name} of env i"
        if name == "sample":
            text += ": [space.sample() for space in envs.action_space]"
        raise AttributeError(f"{text}, or pool.single_action_space and single_observation_space")


def common_space(name: str, spaces: Any) -> gym.Space[Any]:
    """Return the space of all envs, or None if they declare none."""
    # A vector env of another library has one for all.
    per_env: list[gym.Space[Any]] = spaces if isinstance(spaces, list) else [spaces]
    for i, space in enumerate(per_env):
        if space != per_env[0]:
            raise ValueError(f"env {i}: {name} is {space}, but that of env 0 is {per_env[0]}")
    return per_env[0]
