"""Spaces as JSON, and back."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.record.untrusted_files import LEAST_LIMIT, checked_size, require

#: By kind of space, the arguments of its constructor, which are attributes of the space as well.
_ARGUMENTS: dict[type[gym.Space[Any]], tuple[str, ...]] = {
    gym.spaces.Box: ("low", "high", "shape", "dtype"),
    gym.spaces.Discrete: ("n", "start", "dtype"),
    gym.spaces.MultiDiscrete: ("nvec", "start", "dtype"),
    gym.spaces.MultiBinary: ("n",),
    gym.spaces.Text: ("min_length", "max_length", "charset"),
}
#: But this one has another name there.
_ATTRIBUTES = {"charset": "characters"}
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in _ARGUMENTS}
_DTYPE = re.compile(r"bool|(u?int|float)[0-9]+|[<>|]?[biuf][0-9]+")


def to_json(space: gym.Space[Any] | None) -> dict[str, Any]:
    """Convert ``space`` to what ``json.dumps`` accepts; TypeError if its values are no arrays."""
    if isinstance(space, gym.spaces.Dict) and all(isinstance(key, str) for key in space.spaces):
        parts = [[key, to_json(part)] for key, part in space.spaces.items()]
        return {"type": "Dict", "spaces": parts}
    if isinstance(space, gym.spaces.Tuple):
        return {"type": "Tuple", "spaces": [to_json(part) for part in space.spaces]}
    for kind, arguments in _ARGUMENTS.items():
        if isinstance(space, kind):
            values = {name: getattr(space, _ATTRIBUTES.get(name, name)) for name in arguments}
            plain = {name: _plain(name, value) for name, value in values.items()}
            return {"type": kind.__name__, **plain}
    if space is None:
        raise TypeError("the env declares no space, so its values have no form of arrays")
    raise TypeError(
        f"a {type(space).__name__} space has no form of arrays; make it a Box, Discrete,"
        " MultiDiscrete, MultiBinary, Text, Dict (of str keys) or Tuple with a wrapper"
    )


def from_json(data: dict[str, Any], limit: int = LEAST_LIMIT) -> gym.Space[Any]:
    """The space that ``to_json`` wrote, with values of ``limit`` bytes at most; else ValueError."""
    return _space_of(data, limit)[0]


def _space_of(data: dict[str, Any], limit: int) -> tuple[gym.Space[Any], int]:
    """The space, and what it leaves of the limit."""
    arguments = {key: value for key, value in data.items() if key != "type"}
    kind = data["type"]
    if kind in ("Dict", "Tuple"):
        parts: list[Any] = []
        for part in data["spaces"]:
            key, own = part if kind == "Dict" else (None, part)
            space, limit = _space_of(own, limit)
            require(kind == "Tuple" or type(key) is str, f"the key {key!r:.80} of a Dict")
            parts.append((key, space) if kind == "Dict" else space)
        return getattr(gym.spaces, kind)(parts), limit
    require(kind in _KINDS, f"unknown type of space: {kind!r:.80}")
    names, given = _ARGUMENTS[_KINDS[kind]], sorted(arguments)
    require(sorted(names) == given, f"a {kind} needs {', '.join(names)}; got {given!s:.80}")
    shape = arguments.get("shape", ())
    dtype: np.dtype[Any] = np.dtype(np.int64)
    if "dtype" in arguments:
        known = _DTYPE.fullmatch(arguments["dtype"])
        require(known, f"the dtype {arguments['dtype']!r:.80} of a {kind}")
        dtype = np.dtype(arguments["dtype"])
        arguments["dtype"] = dtype.type
    if kind in ("MultiBinary", "Text"):
        name = "n" if kind == "MultiBinary" else "max_length"
        n = arguments[name]
        shape, dtype = n if isinstance(n, list) else [n], np.dtype(np.int8 if name == "n" else "U1")
    limit -= checked_size(dtype, shape, limit)
    if kind == "Box":
        arguments["shape"] = tuple(shape)
        for bound in ("low", "high"):
            arguments[bound] = np.full(arguments["shape"], arguments[bound], dtype)
    return _KINDS[kind](**arguments), limit


def _plain(name: str, value: Any) -> Any:
    """An argument of a space as JSON; a bound is one number where all its elements are equal."""
    if isinstance(value, (str, np.dtype)):
        return str(value)
    if name in ("low", "high") and not value.size:
        return 0
    if name in ("low", "high") and (value == value.flat[0]).all():
        value = value.flat[0]
    return _finite(np.asarray(value).tolist())


def _finite(value: Any) -> Any:
    """Lists of numbers in which an infinity, which JSON lacks, is a str."""
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and np.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
