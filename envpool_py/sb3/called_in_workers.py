"""Functions that are called with an env in its own process.

Wrapper classes are found by name, so that a worker process imports only what it needs: the class
may be Stable-Baselines3's, whose import loads torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym

from envpool_py.env.wrapper_layers import layers_of

_OURS, _THEIRS = "envpool_py.sb3.", "stable_baselines3."


def class_names(cls: type[Any]) -> set[str]:
    """The full name of a class, and that of its counterpart in the other of the two libraries."""
    if not isinstance(cls, type):
        raise TypeError(f"wrapper_class must be a class, got {cls!r}")
    name = _full_name(cls)
    return {name, name.replace(_OURS, _THEIRS, 1), name.replace(_THEIRS, _OURS, 1)}


def is_named(cls: type[Any], names: Collection[str]) -> bool:
    """Whether a class, or a base class of it, has one of these names."""
    return any(_full_name(base) in names for base in cls.__mro__)


def find_wrapper(env: Any, names: Collection[str]) -> Any:
    """The outermost wrapper of ``env`` whose class, or a base of it, has one of these names."""
    wrappers = layers_of(env)[:-1]
    return next((layer for layer in wrappers if is_named(type(layer), names)), None)


def is_wrapped_by(env: Any, names: Collection[str]) -> bool:
    return find_wrapper(env, names) is not None


def has_attribute(env: Any, name: str) -> bool:
    return env.has_wrapper_attr(name) if isinstance(env, gym.Env) else hasattr(env, name)


def call_method(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    method = env.get_wrapper_attr(name) if isinstance(env, gym.Env) else getattr(env, name)
    return method(*args, **kwargs)


def _full_name(cls: type[Any]) -> str:
    # A spawned process knows the main module by another name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"
