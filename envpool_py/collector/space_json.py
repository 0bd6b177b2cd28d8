"""Spaces as JSON, and back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

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


def to_json(space: gym.Space[Any] | None) -> dict[str, Any]:
    """Convert ``space`` to values that ``json.dumps`` accepts.

    Raises:
        TypeError: a space whose values can't be stored as arrays of a fixed shape and dtype.
    """
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


def from_json(data: dict[str, Any]) -> gym.Space[Any]:
    """The space that ``to_json`` wrote; ValueError if it is no such space."""
    arguments = {key: value for key, value in data.items() if key != "type"}
    kind = data["type"]
    if kind == "Dict":
        return gym.spaces.Dict([(key, from_json(part)) for key, part in data["spaces"]])
    if kind == "Tuple":
        return gym.spaces.Tuple([from_json(part) for part in data["spaces"]])
    if kind not in _KINDS:
        raise ValueError(f"unknown type of space: {kind!r}")
    if "dtype" in arguments:
        arguments["dtype"] = np.dtype(arguments["dtype"]).type
    if kind == "Box":
        shape = arguments["shape"] = tuple(arguments["shape"])
        for bound in ("low", "high"):
            arguments[bound] = np.full(shape, arguments[bound], arguments["dtype"])
    space: gym.Space[Any] = _KINDS[kind](**arguments)
    return space


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
