"""Infos of many envs as one dict of arrays and masks, in Gymnasium's form.

Each array has a dtype that holds the values of all envs; Gymnasium looks at the first env alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.env.spaces import Array


def combine_rows(ids: Sequence[int], infos: Array, num_envs: int) -> dict[str, Any]:
    """As ``combine``, for the infos of a pool, without the keys that every pool adds."""
    own = {
        i: {key: value for key, value in info.items() if key not in ("env_id", "is_reset")}
        for i, info in zip(ids, infos, strict=True)
        if len(info) > 1  # than the env's id
    }
    return combine(own, num_envs)


def combine(infos: Mapping[int, Mapping[str, Any]], num_envs: int) -> dict[str, Any]:
    """The infos of some envs, by id: for each key an array ``(num_envs, ...)``, and its mask."""
    columns: dict[str, dict[int, Any]] = {}
    for i, info in infos.items():
        for key, value in info.items():
            columns.setdefault(key, {})[i] = value
    combined: dict[str, Any] = {}
    if not columns.keys().isdisjoint(f"_{key}" for key in columns):
        # A column and the mask of another are one array, which Gymnasium fills env by env.
        envs: Any = gym.vector.VectorEnv()
        envs.num_envs = num_envs
        for i, info in infos.items():
            combined = envs._add_info(combined, info, i)  # noqa: SLF001 - the same in any case
        return combined
    for key, values in columns.items():
        combined[key] = _column(key, values, num_envs)
        combined[f"_{key}"] = mask = np.zeros(num_envs, dtype=np.bool_)
        mask[list(values)] = True
    return combined


def _column(key: str, values: Mapping[int, Any], num_envs: int) -> Any:
    listed = list(values.values())
    if key != "final_obs" and all(isinstance(value, dict) for value in listed):
        return combine(values, num_envs)
    stacked = _stack(listed) if key != "final_obs" else None  # always one object per env
    if stacked is None:
        column = np.full(num_envs, None, dtype=object)
        stacked = np.fromiter(listed, object, len(listed))
    else:
        column = np.zeros((num_envs, *stacked.shape[1:]), stacked.dtype)
    column[list(values)] = stacked
    return column


def _stack(values: list[Any]) -> Array | None:
    """The values as one array that holds each of them without loss; None if there is none."""
    kinds = set(map(type, values))
    if not all(k in (int, float, bool) or issubclass(k, (np.number, np.ndarray)) for k in kinds):
        return None
    try:
        if len(kinds) == 1 and np.ndarray not in kinds:
            return np.array(values, dtype=kinds.pop())
        arrays = [v if isinstance(v, np.ndarray) else np.array(v, type(v)) for v in values]
        stacked = np.stack(arrays)
    except (OverflowError, TypeError, ValueError):  # no common dtype or shape, more than 64 bits
        return None
    for held, array in zip(stacked, arrays, strict=True):
        with np.errstate(all="ignore"):
            restored = np.asarray(held).astype(array.dtype)
        if not ((restored == array) | (array != array)).all():  # noqa: PLR0124 - NaN
            return None
    return stacked
