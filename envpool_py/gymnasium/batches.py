"""Observations and masks between Gymnasium's form and a pool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envpool_py.env.spaces import Array, as_columns, map_tree, objects
from envpool_py.ids import IdArray


def columns(layout: Any, obs: Any) -> Any:
    """A pool's observations, made with ``columns`` or without, as an array for each leaf.

    Objects are in an object array, also where they could be stacked.
    """
    return map_tree(
        lambda leaf, values: objects(values) if leaf.dtype is None else values,
        layout,
        as_columns(layout, obs),
    )


def put(ids: IdArray, whole: Array, rows: Array) -> Array:
    """``whole``, an array of all envs, with ``rows`` in the places ``ids``."""
    # The first rows.
    if whole.dtype != rows.dtype or whole.shape[1:] != rows.shape[1:]:
        whole = np.zeros((len(whole), *rows.shape[1:]), rows.dtype)
    whole[ids] = rows
    return whole


def split_mask(options: Any, num_envs: int) -> tuple[IdArray | None, Any]:
    """The envs in ``options["reset_mask"]``, None without one, and the options without it.

    TypeError or ValueError, with Gymnasium's texts, for another mask than a bool array ``(n,)``
    with at least one True.
    """
    if not isinstance(options, Mapping) or "reset_mask" not in options:
        return None, options
    text, mask = "`options['reset_mask']` must", options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{text} be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{text} have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{text} have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        what = "contain a boolean array with at least one True value"
        raise ValueError(f"{text} {what}, got reset_mask={mask}")
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return mask.nonzero()[0], rest
