"""What ``validate`` looks for in a row beyond its shapes and dtypes. Pure functions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import spaces
from envpool_py.errors import from_signal_handler

#: When rows are looked at: the first reset and the first step of each env; every row; none.
FIRST, ALWAYS, OFF = "first", "always", "off"


def complaint(space: gym.Space[Any], obs: Any) -> str | None:
    """What is wrong with ``obs``, a value of the right shapes; None if nothing is.

    NaN anywhere, a value outside its bounds, and whatever ``space.contains`` refuses. A value is
    taken in the space's own dtype: a float64 that a float32 space holds is as good.
    """
    layout = spaces.layout_of(space)
    try:
        fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
        parts = spaces.split(layout, fitted, "obs")
    except (TypeError, ValueError) as error:
        if from_signal_handler(error):
            raise
        return None  # it can't be stored either, which says more
    for leaf, part in zip(spaces.leaves(layout), parts, strict=True):
        if leaf.dtype is not None and leaf.dtype.kind in "fc":
            found = np.argwhere(np.isnan(part))
            if len(found):
                return f"obs{_place(leaf.path, found[0])} is nan"
    try:
        if space.contains(fitted):
            return None
    except Exception as error:  # a space of the user's own may not know
        if from_signal_handler(error):
            raise
        return None
    for path, part, own in _boxes(space, fitted):
        outside = np.argwhere((part < own.low) | (part > own.high))
        if len(outside):
            at = tuple(outside[0])
            return (
                f"obs{_place(path, outside[0])} is {part[at]},"
                f" but observation_space has {own.low[at]} to {own.high[at]}"
            )
    return f"obs is {fitted!r:.80}, which is not in observation_space {space!r:.120}"


def reward_complaint(reward: Any) -> str | None:
    """What is wrong with a reward: NaN. None if nothing is, or if it is no number at all."""
    try:
        numbers = np.asarray(reward)
    except (TypeError, ValueError):
        return None
    found = numbers.dtype.kind == "f" and bool(np.isnan(numbers).any())
    return f"reward is {reward}" if found else None


def _place(path: tuple[Any, ...], index: Any) -> str:
    inside = ", ".join(str(int(n)) for n in index)
    return "".join(f"[{key!r}]" for key in path) + (f"[{inside}]" if inside else "")


def _boxes(
    space: gym.Space[Any], value: Any, path: tuple[Any, ...] = ()
) -> list[tuple[tuple[Any, ...], Any, gym.spaces.Box]]:
    """The Box spaces inside, each with its path and its part of ``value``."""
    if isinstance(space, gym.spaces.Box):
        return [(path, value, space)]
    keys: Any = ()
    if isinstance(space, gym.spaces.Dict):
        keys = space.spaces.keys()
    elif isinstance(space, gym.spaces.Tuple):
        keys = range(len(space.spaces))
    return [
        found
        for key in keys
        for found in _boxes(space[key], value[key], (*path, key))  # type: ignore[index]
    ]
