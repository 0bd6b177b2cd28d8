"""Plain values as bytes, and back, without pickle: reading them runs no code of the file's.

Taken are None, bool, int, float, complex, str, bytes, list, tuple, dict, NumPy scalars and arrays
of numbers, strings and dates, and Gymnasium's ``GraphInstance``, nested to ``DEEPEST``. What comes
back is equal and of the same types. A value begins with a letter that says what it is:

========= =======================================================================================
``N T F`` None, True, False
``i``     int: its size, then as many bytes, little-endian and signed
``f c``   float, complex: one double, two
``s b``   str (UTF-8), bytes: the size, then as many bytes
``l t G`` list, tuple, ``GraphInstance``: how many, then the values
``d``     dict: how many, then key and value by turns
``a g``   array, NumPy scalar: the dtype as ``b``, the shape as ``t``, the bytes as ``b``
========= =======================================================================================

Sizes are unsigned, of four bytes, little-endian. Pure functions.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import gymnasium as gym
import numpy as np

#: How deep values may be nested.
DEEPEST = 100

_SIZE = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
# Numbers, strings and dates: no objects, no structures.
_DTYPE = re.compile(r"[<>|=]?[biufcSUMm?][0-9]*(\[[0-9]*[A-Za-z]+\])?")
_CONTAINERS = {list: b"l", tuple: b"t", gym.spaces.GraphInstance: b"G"}


def encode(value: Any) -> bytes:
    """``value`` as bytes.

    Raises:
        TypeError: it holds something that only pickle could take.
    """
    parts: list[bytes] = []
    _encode(value, parts.append, 0)
    return b"".join(parts)


def _encode(value: Any, add: Any, depth: int) -> None:
    kind = type(value)
    if depth > DEEPEST:
        raise TypeError("it is nested too deeply")
    if value is None:
        add(b"N")
    elif kind is bool:
        add(b"T" if value else b"F")
    elif kind is int:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        add(b"i" + _SIZE.pack(len(data)) + data)
    elif kind is float:
        add(b"f" + _FLOAT.pack(value))
    elif kind is complex:
        add(b"c" + _COMPLEX.pack(value.real, value.imag))
    elif kind is str:
        _add_sized(b"s", value.encode(errors="surrogatepass"), add)
    elif kind is bytes:
        _add_sized(b"b", value, add)
    elif kind in _CONTAINERS:
        add(_CONTAINERS[kind] + _SIZE.pack(len(value)))
        for part in value:
            _encode(part, add, depth + 1)
    elif kind is dict:
        add(b"d" + _SIZE.pack(len(value)))
        for key, part in value.items():
            _encode(key, add, depth + 1)
            _encode(part, add, depth + 1)
    elif (kind is np.ndarray or isinstance(value, np.generic)) and _is_plain(value.dtype):
        add(b"a" if kind is np.ndarray else b"g")
        _add_sized(b"b", value.dtype.str.encode(), add)
        _encode(value.shape, add, depth + 1)
        _add_sized(b"b", value.tobytes(), add)
    else:
        raise TypeError(f"it holds a {kind.__name__}")


def _add_sized(letter: bytes, data: bytes, add: Any) -> None:
    add(letter + _SIZE.pack(len(data)))
    add(data)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.fields is None and _DTYPE.fullmatch(dtype.str) is not None


def decode(data: bytes) -> Any:
    """What ``encode`` made these bytes of.

    Raises:
        ValueError: it did not.
    """
    try:
        value, end = _decode(data, 0, 0)
    except (ValueError, TypeError, LookupError, struct.error, OverflowError) as error:
        raise ValueError(f"no plain value: {error}") from error
    if end != len(data):
        raise ValueError("no plain value: bytes are left over")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    letter = data[at : at + 1]
    at += 1
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if letter in (b"N", b"T", b"F"):
        return {b"N": None, b"T": True, b"F": False}[letter], at
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
        raise ValueError("it is cut")
    return data[at : at + size], at + size


def _array(data: bytes, at: int, depth: int, *, scalar: bool) -> tuple[Any, int]:
    name, at = _decode(data, at, depth + 1)
    shape, at = _decode(data, at, depth + 1)
    raw, at = _decode(data, at, depth + 1)
    text = name.decode("ascii")
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r}")
    dtype = np.dtype(text)
    if not dtype.itemsize:  # strings of no length
        array = np.zeros(shape, dtype)
    else:
        array = np.frombuffer(raw, dtype).reshape(shape).copy()
    return (array[()] if scalar else array), at
