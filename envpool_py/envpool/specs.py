"""Spaces as ``dm_env.specs``, and the named tuples that EnvPool's states are."""

from __future__ import annotations

import functools
import keyword
from collections import namedtuple
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import extras

NEEDED = "the specs and env_type='dm' need the package dm_env; pip install dm-env"
specs = extras.load("dm_env.specs", NEEDED)


def observation_spec(space: gym.Space[Any]) -> Any:
    """The observation of one env, without the infos."""
    return state(specs.Array((), np.int32, "env_id"), _as_spec(space, "obs"), {})


def action_spec(space: gym.Space[Any]) -> Any:
    """The action of one env."""
    return _as_spec(space, "action")


def state(env_id: Any, obs: Any, info: dict[str, Any]) -> Any:
    """Return a named tuple; infos whose keys cannot be the name of a field are left out."""
    masks = {f"{key}_mask": info[f"_{key}"] for key in info if f"_{key}" in info}
    fields = {key: value for key, value in (masks | info).items() if is_name(key)}
    fields |= {"env_id": env_id, "players": _type_of("players", ("env_id",))(env_id)}
    fields |= obs if isinstance(obs, dict) else {"obs": obs}
    return _type_of("State", tuple(fields))(*fields.values())


def is_name(key: Any) -> bool:
    """Whether a named tuple can have a field of this name."""
    name = isinstance(key, str) and key.isidentifier() and not key.startswith("_")
    return name and not keyword.iskeyword(key)


@functools.lru_cache(maxsize=256)
def _type_of(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)  # noqa: PYI024


def _as_spec(space: Any, name: str) -> Any:
    """A space as ``dm_env.specs``; Dict and Tuple as a dict and a tuple of them."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _as_spec(each, key) for key, each in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_as_spec(each, name) for each in space)
    if isinstance(space, gym.spaces.Discrete) and space.start == 0:
        return specs.DiscreteArray(int(space.n), space.dtype, name)
    low, high = getattr(space, "low", getattr(space, "start", 0)), getattr(space, "high", 1)
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        high = low + getattr(space, "nvec", getattr(space, "n", 1)) - 1
    elif not isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        raise TypeError(f"{name}: dm_env has no spec for {space}")
    return specs.BoundedArray(space.shape, space.dtype, low, high, name)
