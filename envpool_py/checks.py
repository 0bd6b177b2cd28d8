"""What ``validate`` looks for in a row beyond its shapes and dtypes. Pure functions."""

from __future__ import annotations

import functools
import operator
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import spaces
from envpool_py.errors import from_signal_handler

#: When rows are looked at: the first reset and the first step of each env; every row; none.
FIRST, ALWAYS, OFF = "first", "always", "off"


def complaint(space: gym.Space[Any], obs: Any) -> str | None:
    """What is wrong with ``obs``: NaN, a value out of bounds, or all else that the space refuses.

    None if nothing is. A value is taken in the space's dtype: a float64 that fits float32 is fine.
    """
    layout = spaces.layout_of(space)
    try:
        fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
        parts = spaces.split(layout, fitted, "obs")
    except (TypeError, ValueError) as error:
        if from_signal_handler(error):
            raise
        return None  # it can't be stored either, which says more
    pairs = list(zip(spaces.leaves(layout), parts, strict=True))
    for leaf, part in pairs:
        if leaf.dtype is not None and leaf.dtype.kind in "fc":
            found = np.argwhere(np.isnan(part))
            if len(found):
                return f"{leaf.name('obs')}{_place(found[0])} is nan"
    try:
        if space.contains(fitted):
            return None
    except Exception as error:  # a custom space may not know
        if from_signal_handler(error):
            raise
        return None
    for leaf, part in pairs:
        own: Any = functools.reduce(operator.getitem, leaf.path, space)  # type: ignore[arg-type]
        if isinstance(own, gym.spaces.Box):
            outside = np.argwhere((part < own.low) | (part > own.high))
            if len(outside):
                at = tuple(outside[0])
                return (
                    f"{leaf.name('obs')}{_place(at)} is {part[at]},"
                    f" but observation_space has {own.low[at]} to {own.high[at]}"
                )
    return f"obs is {fitted!r:.80}, which is not in observation_space {space!r:.120}"


def reward_complaint(reward: Any) -> str | None:
    """What is wrong with a reward: NaN. None if nothing is, or if it is no number at all."""
    try:
        numbers = np.asarray(reward)
    except (TypeError, ValueError) as error:
        if from_signal_handler(error):
            raise
        return None
    found = numbers.dtype.kind == "f" and bool(np.isnan(numbers).any())
    return f"reward is {reward}" if found else None


def _place(index: Any) -> str:
    return f"[{', '.join(map(str, map(int, index)))}]" if len(index) else ""
