"""The checks of ``validate`` (NaN, bounds, ``Space.contains``), and their warnings."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.env import spaces
from envpool_py.errors import name_ids, warn
from envpool_py.interrupts import ordinary

#: The rows that are checked: of resets, of steps, of steps after the end of an episode.
ON_RESET, ON_STEP, AFTER_END = "reset", "step", "over"
#: The kinds of warnings that come with a row: about the row, and of an env that was replaced before
#: it; ``AFTER_END`` is another kind.
OBS, REWARD, FLAG, CLOSE, CAST = "obs", "reward", "flag", "close", "cast"
#: Ends an error that the old interface of gym causes.
OLD_GYM = "; an env with gym's old interface needs the wrapper envpool_py.wrappers.OldGymEnv"


def complaint(space: gym.Space[Any], obs: Any) -> str | None:
    """Return why ``obs`` is invalid (NaN, out of bounds, refused by the space); None if valid.

    Values are cast to the space's dtype first: a float64 that float32 holds is valid.
    """
    layout = spaces.layout_of(space)
    try:
        fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
        parts = spaces.split(layout, fitted, "obs")
    except ordinary(TypeError, ValueError):
        return None  # storing the row raises an error that says more
    # Of a scalar, a Box warns.
    whole = np.asarray(fitted) if isinstance(space, gym.spaces.Box) else fitted
    try:
        valid = bool(space.contains(whole))
    except ordinary():  # a custom space may not implement it
        valid = True
    for leaf, part in zip(spaces.leaves(layout), parts, strict=True):
        box: Any = functools.reduce(operator.getitem, leaf.path, space)  # type: ignore[arg-type]
        if isinstance(box, gym.spaces.Box):
            outside = ~((part >= box.low) & (part <= box.high))  # NaN included
            wrong = np.argwhere(np.isnan(part) if valid else outside)
            if len(wrong):
                at = tuple(wrong[0].tolist())
                text = f"{leaf.name('obs')}{[*at] if at else ''} is {part[at]}"
                limits = f", but observation_space has {box.low[at]} to {box.high[at]}"
                return text if np.isnan(part[at]) else text + limits
    if valid:
        return None
    return f"obs is {fitted!r:.80}, which is not in observation_space {space!r:.120}"


def lost_digits(space: gym.Space[Any], obs: Any) -> str | None:
    """Return a text if a float of ``obs`` has more digits than its space holds, else None."""
    layout = spaces.layout_of(space)
    try:
        fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
        pairs = zip(*(spaces.split(layout, each, "obs") for each in (obs, fitted)), strict=True)
        for leaf, (value, part) in zip(spaces.leaves(layout), pairs, strict=True):
            given = np.asarray(value)
            if given.dtype.kind == "f" and not np.array_equal(given, part, equal_nan=True):
                types = f"{given.dtype}, but observation_space has {leaf.dtype}: digits are lost"
                return f"{leaf.name('obs')} has dtype {types}"
    except ordinary(TypeError, ValueError):
        pass  # as above
    return None


def reward_complaint(reward: Any) -> str | None:
    """Return a text if a reward is NaN, else None; other invalid rewards are refused later."""
    try:
        return f"reward is {reward}" if has_nan(np.asarray(reward)) else None
    except ordinary(TypeError, ValueError):
        return None


def has_nan(action: Any) -> bool:
    """Return whether an action, or a part of it, is NaN."""
    if isinstance(action, Mapping):
        action = [*action.values()]
    if isinstance(action, (tuple, list)):
        return any(map(has_nan, action))
    return isinstance(action, (float, np.floating, np.ndarray)) and (
        np.asarray(action).dtype.kind == "f" and bool(np.isnan(action).any())
    )


def _warning(kind: str, texts: Mapping[int, str]) -> str:
    """Return the warning for the texts found in some envs, all of one kind."""
    ids = sorted(texts)
    first = texts[ids[0]]
    if kind == CLOSE:
        return f"{name_ids(ids)}: {first}; the env was recreated nevertheless"
    if kind != AFTER_END:
        of = "" if set(texts.values()) == {first} else f" in env {ids[0]}"
        return f'{name_ids(ids)}: {first}{of}; pass validate="off" to silence this'
    ended = f"its episode ended; call reset({ids[0]})"
    if len(ids) > 1:
        ended = "their episodes ended; call reset(ids) with these ids"
    return f'{name_ids(ids)}: stepped after {ended}, or pass autoreset_mode="same_step"'


def warn_of_rows(beside: Mapping[int, dict[str, Any]], issued: set[str]) -> None:
    """Warn of invalid values in rows that are returned nevertheless, unless the kind was issued."""
    found: dict[str, dict[int, str]] = {}
    for i, values in beside.items():
        for kind, text in values.get("warnings", {}).items():
            if kind not in issued:
                found.setdefault(kind, {})[i] = text
    issued.update(found)
    for kind, texts in found.items():
        warn(_warning(kind, texts))
