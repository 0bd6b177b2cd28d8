"""Env ids: what a user may write, made into an array of distinct ids. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Ids as a user writes them.
Ids: TypeAlias = (
    "SupportsIndex | Sequence[int] | slice | NDArray[np.integer] | NDArray[np.bool_] | None"
)
#: Ids as the package handles them.
IdArray: TypeAlias = "NDArray[np.intp]"


#: Up to about so many ids, a list is quicker to look through than an array.
_FEW = 1024


def resolve(ids: Ids, num_envs: int) -> IdArray:
    """The env ids that ``ids`` means, in the order written.

    Args:
        ids: None (all), an integer, a sequence or array of integers, a boolean mask of shape
            ``(num_envs,)``, or a slice.
        num_envs: the number of envs of the pool.

    Returns:
        An integer array of shape ``(k,)``.

    Raises:
        IndexError: an id is negative or not below ``num_envs``; a mask of another length.
        ValueError: an id stands twice.
        TypeError: not of the forms above.
    """
    if type(ids) is np.ndarray and _are_few_and_right(ids, num_envs):
        return ids.astype(np.intp)
    if ids is None:
        return np.arange(num_envs)
    if isinstance(ids, slice):
        return np.arange(num_envs)[ids]
    array = np.asarray(ids)
    if array.ndim == 0:
        array = array.reshape(1)
        if array.dtype == np.bool_:
            raise TypeError(f"env ids must be integers, got {ids!r}")
    if array.ndim != 1:
        raise TypeError(f"env ids must be one-dimensional, got shape {array.shape}")
    if array.dtype == np.bool_:
        if len(array) != num_envs:
            raise IndexError(f"the mask has {len(array)} entries, but the pool has {num_envs} envs")
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, dtype=np.intp)
    if array.dtype.kind not in "iu":
        raise TypeError(f"env ids must be integers, got {ids!r}")
    wrong = (array < 0) | (array >= num_envs)
    if wrong.any():
        raise IndexError(
            f"env id {array[wrong.argmax()]} is out of range:"
            f" this pool has envs 0 to {num_envs - 1}"
        )
    resolved: IdArray = array.astype(np.intp)
    if len(resolved) > 1:
        first = np.empty(num_envs, dtype=np.intp)
        order = np.arange(len(resolved))
        first[resolved] = order
        twice = first[resolved] != order
        if twice.any():
            raise ValueError(f"env id {resolved[twice.argmax()]} stands twice in the ids")
    return resolved


def _are_few_and_right(ids: NDArray[Any], num_envs: int) -> bool:
    """Whether these are distinct ids of the pool; of few, Python's own loops tell sooner."""
    if ids.dtype != np.intp or ids.ndim != 1 or not 0 < len(ids) < _FEW:
        return False
    listed = ids.tolist()
    return min(listed) >= 0 and max(listed) < num_envs and len(set(listed)) == len(listed)
