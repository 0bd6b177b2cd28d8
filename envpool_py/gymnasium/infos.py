"""Infos of many envs as one dict of arrays and masks, in Gymnasium's form.

Each array has a dtype that holds the values of all envs; Gymnasium looks at the first env alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_py.spaces import Array


def combine(ids: Sequence[int], infos: Sequence[dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """The infos of the envs ``ids``: for each key an array ``(num_envs, ...)``, and its mask."""
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for i, info in zip(ids, infos, strict=True):
        for key, value in info.items():
            owners, values = columns.setdefault(key, ([], []))
            owners.append(i)
            values.append(value)
    combined: dict[str, Any] = {}
    for key, (owners, values) in columns.items():
        combined[key] = _column(key, owners, values, num_envs)
        combined[f"_{key}"] = mask = np.zeros(num_envs, dtype=np.bool_)
        mask[owners] = True
    return combined


def _column(key: str, owners: list[int], values: list[Any], num_envs: int) -> Any:
    if key != "final_obs":  # always one object per env
        if all(isinstance(value, dict) for value in values):
            return combine(owners, values, num_envs)
        stacked = _stack(values)
        if stacked is not None:
            column = np.zeros((num_envs, *stacked.shape[1:]), stacked.dtype)
            column[owners] = stacked
            return column
    column = np.full(num_envs, None, dtype=object)
    column[owners] = np.fromiter(values, object, len(values))
    return column


def _stack(values: list[Any]) -> Array | None:
    """The values as one array that holds each of them without loss; None if there is none."""
    kinds = set(map(type, values))
    are_numbers = all(kind in (int, float, bool) or issubclass(kind, np.number) for kind in kinds)
    if not are_numbers and not all(issubclass(kind, np.ndarray) for kind in kinds):
        return None
    try:
        if are_numbers and len(kinds) == 1:
            return np.array(values, dtype=kinds.pop())
        arrays = [np.array(v, dtype=type(v)) for v in values] if are_numbers else values
        if len({array.shape for array in arrays}) > 1:
            return None
        stacked = np.array(arrays, dtype=np.result_type(*(array.dtype for array in arrays)))
    except (OverflowError, TypeError):  # an int of more than 64 bits, dtypes without a common one
        return None
    for held, array in zip(stacked, arrays, strict=True):
        with np.errstate(all="ignore"):
            restored = np.asarray(held).astype(array.dtype)
        if not ((restored == array) | (array != array)).all():  # noqa: PLR0124 - NaN
            return None
    return stacked
