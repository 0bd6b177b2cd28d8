"""Encode plain values as bytes without pickle, so that decoding a file never runs code.

Supported are None, bool, int, float, complex, str, bytes, list, tuple, dict, NumPy scalars and
arrays of numbers, strings and dates, and Gymnasium's ``GraphInstance``, nested up to ``MAX_DEPTH``
levels. A decoded value is equal to the original and has the same types. The first byte of a value
is a letter for its type:

========= =======================================================================================
``N T F`` None, True, False
``i``     int: the size, then so many bytes, little-endian and signed
``f c``   float, complex: one double, two doubles
``s b``   str (UTF-8), bytes: the size, then so many bytes
``l t G`` list, tuple, ``GraphInstance``: the length, then the values
``d``     dict: the length, then each key followed by its value
``a g``   array, NumPy scalar: the dtype as ``b``, the shape as ``t``, the bytes as ``b``
========= =======================================================================================

Sizes and lengths are unsigned, four bytes, little-endian. Pure functions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

#: The deepest nesting that is encoded and decoded.
MAX_DEPTH = 100

_SIZE = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
# Numbers, strings and dates: no objects and no structured dtypes.
_DTYPE = re.compile(r"[<>|=]?[biufcSUMm?][0-9]*(\[[0-9]*[A-Za-z]+\])?")
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_SEQUENCES = {list: b"l", tuple: b"t", gym.spaces.GraphInstance: b"G"}


def encode(value: Any) -> bytes:
    """Encode ``value`` as bytes.

    Raises:
        TypeError: a part of ``value`` has an unsupported type.
    """
    parts: list[bytes] = []
    _encode(value, parts.append, 0)
    return b"".join(parts)


def _encode(value: Any, add: Callable[[bytes], object], depth: int) -> None:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise TypeError("it is nested too deeply")
    if value is None:
        add(b"N")
    elif kind is bool:
        add(b"T" if value else b"F")
    elif kind is int:
        size = value.bit_length() // 8 + 1
        _add_sized(b"i", value.to_bytes(size, "little", signed=True), add)
    elif kind is float:
        add(b"f" + _FLOAT.pack(value))
    elif kind is complex:
        add(b"c" + _COMPLEX.pack(value.real, value.imag))
    elif kind is str:
        _add_sized(b"s", value.encode(errors="surrogatepass"), add)
    elif kind is bytes:
        _add_sized(b"b", value, add)
    elif kind in _SEQUENCES:
        add(_SEQUENCES[kind] + _SIZE.pack(len(value)))
        for part in value:
            _encode(part, add, depth + 1)
    elif kind is dict:
        add(b"d" + _SIZE.pack(len(value)))
        for key, part in value.items():
            _encode(key, add, depth + 1)
            _encode(part, add, depth + 1)
    elif (kind is np.ndarray or isinstance(value, np.generic)) and _DTYPE.fullmatch(
        value.dtype.str
    ):
        add(b"a" if kind is np.ndarray else b"g")
        _add_sized(b"b", value.dtype.str.encode(), add)
        _encode(value.shape, add, depth + 1)
        _add_sized(b"b", value.tobytes(), add)
    else:
        raise TypeError(f"it holds a {kind.__name__}")


def _add_sized(letter: bytes, data: bytes, add: Callable[[bytes], object]) -> None:
    add(letter + _SIZE.pack(len(data)))
    add(data)


def decode(data: bytes) -> Any:
    """Decode what ``encode`` returned.

    Raises:
        ValueError: ``data`` is not the result of ``encode``.
    """
    try:
        value, end = _decode(data, 0, 0)
    except (ValueError, TypeError, LookupError, struct.error, OverflowError) as error:
        raise ValueError(f"no plain value: {error}") from error
    if end != len(data):
        raise ValueError("no plain value: bytes are left over")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Decode the value that begins at byte ``at``; return the value and where it ends."""
    letter = data[at : at + 1]
    at += 1
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if letter in _CONSTANTS:
        return _CONSTANTS[letter], at
    if letter == b"f":
        return _FLOAT.unpack_from(data, at)[0], at + 8
    if letter == b"c":
        return complex(*_COMPLEX.unpack_from(data, at)), at + 16
    if letter in (b"i", b"s", b"b"):
        raw, at = _sized(data, at)
        if letter == b"i":
            return int.from_bytes(raw, "little", signed=True), at
        return (raw.decode(errors="surrogatepass") if letter == b"s" else raw), at
    if letter in (b"l", b"t", b"G", b"d"):
        (count,) = _SIZE.unpack_from(data, at)
        at += 4
        parts = []
        for _ in range(count * 2 if letter == b"d" else count):
            part, at = _decode(data, at, depth + 1)
            parts.append(part)
        if letter == b"d":
            return dict(zip(parts[::2], parts[1::2], strict=True)), at
        if letter == b"G":
            return gym.spaces.GraphInstance(*parts), at
        return (parts if letter == b"l" else tuple(parts)), at
    if letter in (b"a", b"g"):
        return _array(data, at, depth, scalar=letter == b"g")
    raise ValueError(f"unknown letter {letter!r}")


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += 4
    if at + size > len(data):
        raise ValueError("the data is cut off")
    return data[at : at + size], at + size


def _array(data: bytes, at: int, depth: int, *, scalar: bool) -> tuple[Any, int]:
    name, at = _decode(data, at, depth + 1)
    shape, at = _decode(data, at, depth + 1)
    raw, at = _decode(data, at, depth + 1)
    text = name.decode("ascii")
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r}")
    dtype = np.dtype(text)
    if not dtype.itemsize:  # strings of length 0
        array = np.zeros(shape, dtype)
    else:
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
    return (array[()] if scalar else array), at
