"""``env_type="dm"``: the interface of ``dm_env``, for batches, and spaces as its specs."""

from __future__ import annotations

import functools
import keyword
from collections import namedtuple
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import extras
from envpool_py.envpool.face import EnvPool

_NEEDED = "the specs and env_type='dm' need the package dm_env; pip install dm-env"
dm_env, specs = (extras.load(name, _NEEDED) for name in ("dm_env", "dm_env.specs"))


class DMEnvPool(EnvPool, dm_env.Environment):  # type: ignore[misc, name-defined]
    """``env_type="dm"``.

    ``reset``, ``step`` and ``recv`` return a ``dm_env.TimeStep`` of arrays: ``step_type`` int32
    ``(k,)`` (0 first, 1 mid, 2 last), ``reward`` and ``discount`` float32 ``(k,)``, and an
    ``observation`` with the fields ``env_id``, ``obs`` (for a Dict space its keys) and the infos:
    ``name``, and ``name_mask``, which says the rows that have it. A field cannot be ``_name``.
    """

    def __init__(self, pool: Any, *args: Any) -> None:
        space = pool.single_observation_space
        for key in space.spaces if isinstance(space, gym.spaces.Dict) else ():
            if not _is_name(key) or key in ("env_id", "players"):
                raise ValueError(f"env_type='dm': {key!r} cannot be a field of the observation")
        super().__init__(pool, *args)
        self.observation_spec()  # an error if a space has none
        self.action_spec()

    def reward_spec(self) -> Any:
        """The reward as ``dm_env.specs``."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> Any:
        """The discount as ``dm_env.specs``."""
        return specs.BoundedArray((), np.float32, 0, 1, "discount")

    def observation_spec(self) -> Any:
        """The observation as ``dm_env.specs``, without the infos."""
        return self.spec.observation_spec()

    def action_spec(self) -> Any:
        """The action as ``dm_env.specs``."""
        return self.spec.action_spec()

    def _result(self, batch: Any, info: Any, *, reset: bool) -> Any:  # noqa: ARG002
        obs, reward, terminated, truncated = batch
        over, begun = terminated | truncated, info.pop("elapsed_step") > 0
        step_type = np.where(over, 2, begun).astype(np.int32)
        floats = reward.astype(np.float32), (~over).astype(np.float32)
        return dm_env.TimeStep(step_type, *floats, _state(info["env_id"], obs, info))


def observation_spec(space: gym.Space[Any]) -> Any:
    """The observation of one env, without the infos."""
    return _state(specs.Array((), np.int32, "env_id"), _as_spec(space, "obs"), {})


def action_spec(space: gym.Space[Any]) -> Any:
    """The action of one env."""
    return _as_spec(space, "action")


def _state(env_id: Any, obs: Any, info: dict[str, Any]) -> Any:
    """Return a named tuple; infos whose keys cannot be the name of a field are left out."""
    masks = {f"{key}_mask": info[f"_{key}"] for key in info if f"_{key}" in info}
    fields = {key: value for key, value in (masks | info).items() if _is_name(key)}
    fields |= {"env_id": env_id, "players": _type_of("players", ("env_id",))(env_id)}
    fields |= obs if isinstance(obs, dict) else {"obs": obs}
    return _type_of("State", tuple(fields))(*fields.values())


def _is_name(key: Any) -> bool:
    name = isinstance(key, str) and key.isidentifier() and not key.startswith("_")
    return name and not keyword.iskeyword(key)


@functools.lru_cache(maxsize=256)
def _type_of(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)  # noqa: PYI024


def _as_spec(space: Any, name: str) -> Any:
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
