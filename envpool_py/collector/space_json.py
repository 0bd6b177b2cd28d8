"""Spaces as JSON, and back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


def to_json(space: gym.Space[Any] | None) -> dict[str, Any]:
    """``space`` as what ``json.dumps`` takes.

    Raises:
        TypeError: a space whose values can't be stored as arrays of a fixed shape and dtype.
    """
    if isinstance(space, gym.spaces.Box):
        return {
            "type": "Box",
            "low": _bound(space.low),
            "high": _bound(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.Discrete):
        return {
            "type": "Discrete",
            "n": int(space.n),
            "start": int(space.start),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    if isinstance(space, gym.spaces.Text):
        return {
            "type": "Text",
            "min_length": space.min_length,
            "max_length": space.max_length,
            "charset": space.characters,
        }
    if isinstance(space, gym.spaces.Dict) and all(isinstance(key, str) for key in space.spaces):
        return {
            "type": "Dict",
            "spaces": [[key, to_json(part)] for key, part in space.spaces.items()],
        }
    if isinstance(space, gym.spaces.Tuple):
        return {"type": "Tuple", "spaces": [to_json(part) for part in space.spaces]}
    if space is None:
        raise TypeError("the env declares no space, so its values have no form of arrays")
    raise TypeError(
        f"a {type(space).__name__} space has no form of arrays; make it a Box, Discrete,"
        " MultiDiscrete, MultiBinary, Text, Dict (of str keys) or Tuple with a wrapper"
    )


def from_json(data: dict[str, Any]) -> gym.Space[Any]:
    """The space that ``to_json`` wrote.

    Raises:
        ValueError: not written by ``to_json``.
    """
    kind = data["type"]
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.full(shape, data[name], dtype) for name in ("low", "high"))
        return gym.spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return gym.spaces.Discrete(
            data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type
        )
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(
            data["nvec"], np.dtype(data["dtype"]).type, start=data["start"]
        )
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(data["n"])
    if kind == "Text":
        return gym.spaces.Text(
            data["max_length"], min_length=data["min_length"], charset=data["charset"]
        )
    if kind == "Dict":
        return gym.spaces.Dict([(key, from_json(part)) for key, part in data["spaces"]])
    if kind == "Tuple":
        return gym.spaces.Tuple([from_json(part) for part in data["spaces"]])
    raise ValueError(f"unknown type of space: {kind!r}")


def _bound(values: Any) -> Any:
    """One number where all are equal, else nested lists; an infinity, as JSON has none, a str."""
    values = np.asarray(values)
    if not values.size:
        return 0
    if (values == values.flat[0]).all():
        values = values.flat[0]
    return _finite(values.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and np.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
