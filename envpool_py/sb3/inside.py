"""Functions that are carried out where an env lives: ``function(env, ...)``.

Wrapper classes are told by name, so that no worker process imports what it does not need: the class
asked for may be Stable-Baselines3's, whose import brings torch along.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym

_OURS = "envpool_py.sb3."
_THEIRS = "stable_baselines3."


def class_names(cls: type[Any]) -> set[str]:
    """The full name of a class, and that of its counterpart in Stable-Baselines3, or here."""
    if not isinstance(cls, type):
        raise TypeError(f"wrapper_class must be a class, got {cls!r}")
    name = _full_name(cls)
    names = {name}
    if name.startswith(_OURS):
        names.add(_THEIRS + name[len(_OURS) :])
    elif name.startswith(_THEIRS):
        names.add(_OURS + name[len(_THEIRS) :])
    return names


def is_wrapped_by(env: Any, names: Collection[str]) -> bool:
    """Whether a wrapper of ``env`` is an instance of a class of one of these names."""
    return find_wrapper(env, names) is not None


def find_wrapper(env: Any, names: Collection[str]) -> Any:
    """The outermost wrapper of ``env`` that is an instance of a class of one of these names."""
    while isinstance(env, gym.Wrapper):
        if is_named(type(env), names):
            return env
        env = env.env
    return None


def is_named(cls: type[Any], names: Collection[str]) -> bool:
    """Whether a class, or a base class of it, has one of these names."""
    return any(_full_name(base) in names for base in cls.__mro__)


def call_method(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the method of the outermost wrapper that has it returns."""
    while not hasattr(env, name) and isinstance(env, gym.Wrapper):
        env = env.env
    return getattr(env, name)(*args, **kwargs)


def has_attribute(env: Any, name: str) -> bool:
    """Whether ``env``, or what it wraps, has the attribute."""
    while not hasattr(env, name):
        if not isinstance(env, gym.Wrapper):
            return False
        env = env.env
    return True


def _full_name(cls: type[Any]) -> str:
    # A spawned process knows the main module by another name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"
