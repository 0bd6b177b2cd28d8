"""Digests of rows, to compare two runs without storing their observations. Pure functions.

The digest of a row is the CRC-32 of the bytes of its leaves. A leaf with a code enters by its
encoded values, which a pool keeps. An object that no array can hold enters by its bytes in
``plain_codec``; an object that ``plain_codec`` does not support is not compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_py.env import spaces
from envpool_py.record import plain_codec


def of_observations(leaves: Sequence[spaces.Leaf], parts: Sequence[Any], count: int) -> list[int]:
    """Digest ``count`` observations, given as an array ``(count, ...)`` for each leaf."""
    digests = [0] * count
    for leaf, part in zip(leaves, parts, strict=True):
        rows = map(_object_bytes, part) if leaf.dtype is None else np.ascontiguousarray(part)
        digests = list(map(zlib.crc32, rows, digests))
    return digests


def _object_bytes(value: Any) -> bytes:
    # Rows that were stacked into one array may have changed their dtype in the process.
    if isinstance(value, spaces.NUMERIC):
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array.astype(np.complex128).tobytes()
    try:
        return plain_codec.encode(value)
    except TypeError:
        return b""
