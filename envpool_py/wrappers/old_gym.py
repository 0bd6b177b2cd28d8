"""Give an env with gym's old interface the interface of Gymnasium."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np


class OldGymEnv(gym.Env[Any, Any]):
    """Makes a Gymnasium env of an env with the old interface of gym; gym is not imported.

    The old ``step`` returns ``(obs, reward, done, info)``, the old ``reset`` an observation alone.
    Results of the newer interface are unchanged. Attributes are read and set on the old env. ::

        envpool_py.make(make_env, 8, wrappers=[OldGymEnv])

    - A ``done`` episode is truncated if its info has a true ``"TimeLimit.truncated"``, else
      terminated.
    - ``reset(seed=...)`` calls ``seed(seed)`` of the env, or, if it has none, ``reset(seed=...)``.
      An env that takes no seed is not seeded; ``envpool-py check`` says so.
    - The ``options`` of a reset are keyword arguments of the env's ``reset``.

    Args:
        env: the env.
        observation_space: replaces the env's own. gym's Box, Discrete, MultiDiscrete, MultiBinary,
            Dict and Tuple are converted.
        action_space: likewise.
        render_mode: of ``render()``; default: the env's attribute, or None.

    Raises:
        TypeError: a space is missing, or cannot be converted.
    """

    def __init__(
        self,
        env: Any,
        observation_space: Any = None,
        action_space: Any = None,
        render_mode: str | None = None,
    ) -> None:
        spaces = {"observation_space": observation_space, "action_space": action_space}
        for name, given in spaces.items():
            space = getattr(env, name, None) if given is None else given
            if space is None:
                raise TypeError(f"{type(env).__name__} has no {name}; pass {name}= to OldGymEnv")
            spaces[name] = converted(space)
        metadata = dict(getattr(env, "metadata", None) or {})
        if "render.modes" in metadata:
            metadata["render_modes"] = metadata.pop("render.modes")
        mode = getattr(env, "render_mode", None) if render_mode is None else render_mode
        # Not by assignment, which sets attributes of the old env.
        vars(self).update(spaces, env=env, metadata=metadata, render_mode=mode, spec=None)

    env: Any

    if not TYPE_CHECKING:  # type checkers would take any misspelt name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name == "env":  # of a copy that has no attributes yet
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            return getattr(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in vars(self) or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self.env, name, value)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Seed the env unless ``seed`` is None, and reset it."""
        super().reset(seed=seed)
        kwargs = dict(options or {})
        if seed is not None:
            if callable(getattr(self.env, "seed", None)):
                self.env.seed(seed)
            elif "seed" in inspect.signature(self.env.reset).parameters:
                kwargs["seed"] = seed
        result = self.env.reset(**kwargs)
        is_pair = isinstance(result, tuple) and [type(part) for part in result[1:]] == [dict]
        is_new = is_pair and not isinstance(self.observation_space, gym.spaces.Tuple)
        return (result[0], result[1]) if is_new else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env and split its ``done``; other results are returned unchanged."""
        result = self.env.step(action)
        if not isinstance(result, (tuple, list)) or len(result) != 4:
            return result  # type: ignore[return-value]  # the pool says what is wrong
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """Return the env's ``render``, in the ``render_mode``."""
        old = "mode" in inspect.signature(self.env.render).parameters
        return self.env.render(mode=self.render_mode) if old else self.env.render()

    def close(self) -> None:
        """Close the env, if it can be closed."""
        getattr(self.env, "close", lambda: None)()


def converted(space: Any) -> gym.Space[Any]:
    """Return a space of gym as Gymnasium's, and one of Gymnasium unchanged; else TypeError."""
    if isinstance(space, gym.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return gym.spaces.Dict({key: converted(part) for key, part in parts.items()})
    if isinstance(parts, (tuple, list)):
        return gym.spaces.Tuple([converted(part) for part in parts])
    if hasattr(space, "nvec"):
        return gym.spaces.MultiDiscrete(space.nvec, dtype=space.dtype)
    if hasattr(space, "n"):
        if space.shape:
            return gym.spaces.MultiBinary(space.n)
        return gym.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if hasattr(space, "low") and hasattr(space, "high"):
        low = np.asarray(space.low)
        return gym.spaces.Box(low, np.asarray(space.high), low.shape, space.dtype)
    raise TypeError(f"{space!r} is no space of Gymnasium, and OldGymEnv cannot convert it")
