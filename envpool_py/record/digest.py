"""Digests of rows, to compare two runs without storing their observations. Pure functions.

The digest of an observation is an unsigned 64-bit number: the words of its bytes, each multiplied
by a fixed odd pseudo-random weight, summed modulo 2**64. Observations that differ in one word
always have different digests; other observations share a digest with a probability of about
2**-63. The sum is a matrix product and costs about as much as a copy of the batch. An object that
no array can hold enters by its bytes in ``plain_codec``; an object that ``plain_codec`` does not
support is not compared.

Leaves with a code enter by their encoded values on both sides: a pool keeps encoded columns, and
``of_row`` encodes what the env returned.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.record import plain_codec
from envpool_py.spaces import Array, Leaf

# Weights of the reward and the flags; no layout has so many leaves.
_REWARD, _FLAGS = 1 << 20, 1 << 21


def of_observations(leaves: Sequence[Leaf], parts: Sequence[Any], count: int) -> NDArray[np.uint64]:
    """Digest a batch of observations.

    Args:
        leaves: the leaves of the observation layout.
        parts: for each leaf an array ``(count, ...)``; of a leaf with a code the encoded values.
        count: the number of rows.

    Returns:
        Shape ``(count,)``.
    """
    total = np.zeros(count, dtype=np.uint64)
    for n, (leaf, part) in enumerate(zip(leaves, parts, strict=True)):
        if leaf.dtype is not None:
            total += _of_column(part, n)
        else:
            values = np.array([_of_object(value) for value in part], dtype=np.uint64)
            total += values * _weights(n, 1)[0]
    return total


def of_outcomes(
    reward: Array, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """Digest the rewards and flags of a batch; the digest of a reset's (0, False, False) is 0."""
    if reward.dtype == object:
        digests = [_of_column(np.asarray([one], np.float64), _REWARD)[0] for one in reward]
        total = np.array(digests, dtype=np.uint64)
    else:
        total = _of_column(reward, _REWARD)
    flags = terminated.astype(np.uint64) + np.uint64(2) * truncated
    total += flags * _weights(_FLAGS, 1)[0]
    return total


def of_row(layout: Any, row: Sequence[Any]) -> int:
    """Digest (obs, reward, terminated, truncated) as an env returned them."""
    obs, reward, terminated, truncated = row
    fitted = spaces.fit_tree(layout, obs, "obs", "observation_space")
    leaves = spaces.leaves(layout)
    parts: list[Any] = []
    for leaf, part in zip(leaves, spaces.split(layout, fitted, "obs"), strict=True):
        if leaf.dtype is None:
            parts.append([part])
        else:
            kept = part if leaf.code is None else leaf.code.encode(part, "obs")
            parts.append(np.asarray(kept, leaf.dtype)[None])
    outcome = of_outcomes(
        np.asarray([reward], np.float64), np.array([bool(terminated)]), np.array([bool(truncated)])
    )
    return int((of_observations(leaves, parts, 1) + outcome)[0])


def fold(digests: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Fold 64-bit digests into 32 bits."""
    return (digests ^ (digests >> np.uint64(32))).astype("<u4")


def _of_column(array: Array, n: int) -> NDArray[np.uint64]:
    """Digest each row of an array of numbers with the weights of leaf ``n``."""
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
    # Rows that were stacked into one array may have changed their dtype in the process.
    if isinstance(value, (np.ndarray, np.generic, int, float, complex)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return zlib.crc32(array.astype(np.float64).tobytes())
        if array.dtype.kind == "c":
            return zlib.crc32(array.astype(np.complex128).tobytes())
    try:
        return zlib.crc32(plain_codec.encode(value))
    except TypeError:
        return 0


@functools.lru_cache(maxsize=64)
def _weights(n: int, count: int) -> NDArray[np.uint64]:
    # Raw words of the bit generator: the methods of numpy.random.Generator may change with NumPy.
    words = np.random.PCG64(n).random_raw(count) | np.uint64(1)
    weights: NDArray[np.uint64] = np.asarray(words, dtype=np.uint64)
    weights.setflags(write=False)
    return weights
