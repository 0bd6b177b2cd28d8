"""Encode plain values as bytes without pickle, so that decoding a file never runs code.

Supported are None, bool, int, float, complex, str, bytes, list, tuple, dict, NumPy scalars and
arrays of numbers, strings and dates, and Gymnasium's ``GraphInstance``. A decoded value is equal to
the original and has the same types. The bytes are a line of JSON, followed by the bytes of the
arrays and scalars in their order. A value that JSON lacks is an object with one key, its type:
``{"tuple": [1, 2]}``. Pure functions.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.record.untrusted_files import KINDS, check_values, checked_size

MAX_DEPTH = 100

_DTYPE = re.compile(rf"[<>|][{KINDS}][0-9]*(\[[0-9]*[A-Za-z]+\])?")
_to_text = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_SEQUENCES = {tuple: "tuple", gym.spaces.GraphInstance: "graph"}
_BUILD: dict[str, Callable[[Any], Any]] = {
    "complex": lambda parts: complex(*parts),
    "dict": dict,
    "tuple": tuple,
    "graph": lambda parts: gym.spaces.GraphInstance(*parts),
    # TypeError for other types: NumPy would make as many bytes as an int says.
    "str_": lambda text: np.str_(str.__add__("", text)),
    "bytes_": lambda data: np.bytes_(bytes.__add__(b"", data)),
}


def encode(value: Any) -> bytes:
    """Encode ``value``; TypeError if a part of it has an unsupported type."""
    arrays: list[bytes] = []
    tree = _to_json(value, arrays, 0)
    try:
        text = _to_text(tree)
    except ValueError as error:  # an int of thousands of digits
        raise TypeError(f"it holds an int that is too large: {error}") from error
    return b"".join([text.encode(), b"\n", *arrays])


def _to_json(value: Any, arrays: list[bytes], depth: int) -> Any:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise TypeError("it is nested too deeply")
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return {"bytes": value.decode("latin-1")}
    if kind is np.str_ or kind is np.bytes_:  # their arrays lose zeros at the end
        plain = str(value) if kind is np.str_ else bytes(value)
        return {kind.__name__: _to_json(plain, arrays, depth)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is dict:
        return {"dict": _to_json([list(pair) for pair in value.items()], arrays, depth)}
    if kind is list or kind in _SEQUENCES:
        parts = [_to_json(part, arrays, depth + 1) for part in value]
        return parts if kind is list else {_SEQUENCES[kind]: parts}
    is_array = kind is np.ndarray
    if (is_array or isinstance(value, np.generic)) and value.dtype.kind in KINDS:
        arrays.append(value.tobytes())
        return {"array" if is_array else "scalar": [value.dtype.str, value.shape]}
    raise TypeError(f"it holds a {kind.__name__}")


def decode(data: bytes) -> Any:
    """Decode the result of ``encode``; ValueError if ``data`` is something else."""
    text, newline, rest = data.partition(b"\n")
    arrays = io.BytesIO(rest)
    try:
        value = _from_json(json.loads(text), arrays, 0)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"no plain value: {error}") from error
    if not newline or arrays.read(1):
        raise ValueError("no plain value: the data is cut off, or bytes are left over")
    return value


def _from_json(value: Any, arrays: io.BytesIO, depth: int) -> Any:
    if depth > MAX_DEPTH + 2:  # of the sizes in the shape of an array
        raise ValueError("nested too deeply")
    if type(value) is list:
        return [_from_json(part, arrays, depth + 1) for part in value]
    if type(value) is not dict:
        return value
    ((kind, inner),) = value.items()
    if kind == "bytes":
        return str.encode(inner, "latin-1")
    parts = _from_json(inner, arrays, depth)
    if kind in _BUILD:
        return _BUILD[kind](parts)
    if kind not in ("array", "scalar") or not _DTYPE.fullmatch(parts[0]):
        raise ValueError(f"unknown type {kind!r:.80}")
    dtype, shape = np.dtype(parts[0]), parts[1]
    size = checked_size(dtype, shape, len(arrays.getbuffer()) - arrays.tell())
    array: Any = np.ndarray(shape, dtype, arrays.read(size)).copy()
    check_values(array)
    return array if kind == "array" else array[()]
