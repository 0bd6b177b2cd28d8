"""Convert env ids from any form that a user may pass to an array of distinct ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Ids as a user passes them.
Ids: TypeAlias = (
    "SupportsIndex | Sequence[int] | slice | NDArray[np.integer] | NDArray[np.bool_] | None"
)
#: Ids as the package handles them.
IdArray: TypeAlias = "NDArray[np.intp]"


class Selection:
    """Some envs of a pool.

    Attributes:
        ids: the ids, in order.
        is_whole: whether these are all envs, in order.
        index: an index of their rows: a slice for all envs, because it is faster than the ids.
    """

    __slots__ = ("ids", "index", "is_whole")

    def __init__(self, ids: IdArray, *, is_whole: bool = False) -> None:
        self.ids, self.is_whole = ids, is_whole
        self.index: Any = slice(None) if is_whole else ids


def one_of(ids: Ids, other: Ids) -> Ids:
    """Return the ids that were given as ``id`` or as ``env_id``; TypeError if as both."""
    if ids is not None and other is not None:
        raise TypeError("ids are given twice, as env_id and as id; pass one of them")
    return other if ids is None else ids


def resolve(ids: Ids, num_envs: int) -> IdArray:
    """Return the env ids as an array ``(k,)``, in the order given.

    ``ids`` is None (all), an integer, a sequence or array of integers, a boolean mask of shape
    ``(num_envs,)``, or a slice. Raises IndexError, TypeError or ValueError for wrong ids.
    """
    if ids is None or isinstance(ids, slice):
        return np.arange(num_envs)[slice(None) if ids is None else ids]
    array = np.asarray(ids)
    if array.dtype == np.intp and array.ndim == 1 and 0 < len(array) < 64:
        # So few ids are checked faster in a list than in an array.
        listed = array.tolist()
        if min(listed) >= 0 and max(listed) < num_envs and len(set(listed)) == len(listed):
            return array.astype(np.intp)
    if array.ndim == 0 and array.dtype != np.bool_:
        array = array.reshape(1)
    if array.ndim > 1:
        raise TypeError(f"env ids must be one-dimensional, got shape {array.shape}")
    if array.ndim == 1 and array.dtype == np.bool_:
        if len(array) != num_envs:
            raise IndexError(f"the mask has {len(array)} entries, but the pool has {num_envs} envs")
        return np.flatnonzero(array)
    if array.size > 0 and array.dtype.kind not in "iu":
        raise TypeError(f"env ids must be integers, got {ids!r}")
    wrong = (array < 0) | (array >= num_envs)
    if wrong.any():
        raise IndexError(
            f"env id {array[wrong.argmax()]} is out of range:"
            f" this pool has envs 0 to {num_envs - 1}"
        )
    resolved: IdArray = array.astype(np.intp)
    twice = np.bincount(resolved)[resolved] > 1
    if twice.any():
        raise ValueError(f"env id {resolved[twice.argmax()]} is given twice")
    return resolved
