"""Digests of rows: two runs are compared without keeping what was observed. Pure functions.

The digest of an observation is a number of 64 bits: its bytes, in words of 64 bits, times odd
numbers that look random, added up. Two observations that differ in one word always differ in it,
any others but for one chance in 2**63 or so. It is a matrix product, so it costs about as much as
to copy the batch. An object that no array holds counts by its plain bytes, or not at all where it
has none; see ``envpool_py.plain``.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py import plain, spaces
from envpool_py.spaces import Array, Leaf

_OF_REWARD, _OF_FLAGS = 1 << 20, 1 << 21  # beyond the number of any leaf


def of_observations(leaves: Sequence[Leaf], parts: Sequence[Any], count: int) -> NDArray[np.uint64]:
    """The digests of a batch of observations.

    Args:
        leaves: of their layout.
        parts: for each leaf an array ``(count, ...)``.
        count: the rows.

    Returns:
        Shape ``(count,)``.
    """
    total = np.zeros(count, dtype=np.uint64)
    for n, (leaf, part) in enumerate(zip(leaves, parts, strict=True)):
        if leaf.dtype is not None:
            total += _of_column(part, n)
        else:
            own = np.array([_of_object(value) for value in part], dtype=np.uint64)
            total += own * _weights(n, 1)[0]
    return total


def of_outcomes(
    reward: Array, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """The digests of the rewards and flags of a batch; 0 for those of a reset."""
    if reward.dtype == object:
        own = [_of_column(np.asarray([one], np.float64), _OF_REWARD)[0] for one in reward]
        total = np.array(own, dtype=np.uint64)
    else:
        total = _of_column(reward, _OF_REWARD)
    flags = terminated.astype(np.uint64) + np.uint64(2) * truncated
    total += flags * _weights(_OF_FLAGS, 1)[0]
    return total


def of_row(layout: Any, row: Sequence[Any]) -> int:
    """The digest of (obs, reward, terminated, truncated) as an env returned them."""
    obs, reward, terminated, truncated = row
    fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
    leaves = spaces.leaves(layout)
    parts = []
    for leaf, part in zip(leaves, spaces.split(layout, fitted, "obs"), strict=True):
        column = np.empty(1, dtype=object)
        column[0] = part
        parts.append(column if leaf.dtype is None else np.asarray(part)[None])
    outcome = of_outcomes(
        np.asarray([reward], np.float64), np.array([bool(terminated)]), np.array([bool(truncated)])
    )
    return int((of_observations(leaves, parts, 1) + outcome)[0])


def fold(digests: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Digests of 64 bits as ones of 32."""
    return (digests ^ (digests >> np.uint64(32))).astype("<u4")


def _of_column(array: Array, n: int) -> NDArray[np.uint64]:
    """The digest of each row of an array of numbers, as leaf ``n``."""
    count = len(array)
    if not array.size:
        return np.zeros(count, dtype=np.uint64)
    raw = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
    words, rest = divmod(raw.shape[1], 8)
    weights = _weights(n, words + (rest > 0))
    if rest:
        padded = np.zeros((count, (words + 1) * 8), dtype=np.uint8)
        padded[:, : raw.shape[1]] = raw
        raw = padded
    total: NDArray[np.uint64] = raw.view("<u8") @ weights
    return total


def _of_object(value: Any) -> int:
    # Rows that became one array may have changed their dtype by it.
    if isinstance(value, (np.ndarray, np.generic, int, float, complex)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return zlib.crc32(array.astype(np.float64).tobytes())
        if array.dtype.kind == "c":
            return zlib.crc32(array.astype(np.complex128).tobytes())
    try:
        return zlib.crc32(plain.encode(value))
    except TypeError:
        return 0


@functools.lru_cache(maxsize=64)
def _weights(n: int, count: int) -> NDArray[np.uint64]:
    # Raw words: what a generator makes of them may change with NumPy, they do not.
    words = np.random.PCG64(n).random_raw(count) | np.uint64(1)
    weights: NDArray[np.uint64] = np.asarray(words, dtype=np.uint64)
    weights.setflags(write=False)
    return weights
