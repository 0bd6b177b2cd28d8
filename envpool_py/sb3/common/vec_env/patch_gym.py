"""Envs and spaces of the old ``gym``, converted by Shimmy, as Stable-Baselines3 converts them."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any

import gymnasium

from envpool_py import extras


def _patch_env(env: Any) -> Any:
    """A Gymnasium env unchanged, an env of gym wrapped; ValueError for another object."""
    if isinstance(env, gymnasium.Env):
        return env
    shimmy = _shimmy_for(env, "Env")
    is_new = "seed" in inspect.signature(env.unwrapped.reset).parameters
    return (shimmy.GymV26CompatibilityV0 if is_new else shimmy.GymV21CompatibilityV0)(env=env)


def _convert_space(space: Any) -> Any:
    """A Gymnasium space unchanged, a space of gym converted; ValueError for another object."""
    if isinstance(space, gymnasium.Space):
        return space
    return _shimmy_for(space, "Space").openai_gym_compatibility._convert_space(space)  # noqa: SLF001


def _shimmy_for(value: Any, base: str) -> Any:
    old = getattr(sys.modules.get("gym"), base, None)  # such a value's program has imported gym
    if old is None or not isinstance(value, old):
        kind = type(value).__name__
        raise ValueError(f"got a {kind}, but a gymnasium.{base} or a gym.{base} is needed")
    shimmy = extras.load("shimmy", f"a gym.{base} needs Shimmy; pip install 'shimmy>=2.0'")
    warnings.warn(f"a gym.{base} is converted by Shimmy; gymnasium is safer", stacklevel=3)
    return shimmy
