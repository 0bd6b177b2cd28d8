"""Find an attribute in the wrappers of an env."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from envpool_py.interrupts import ordinary

#: The attribute of a turn-based env that is True if its episode is over for all agents; the flags
#: of a row belong to one agent.
EPISODE_OVER = "_envpool_py_episode_over"

_NO_DEFAULT: Any = object()


def layers_of(env: Any) -> list[Any]:
    """Return the env's wrappers, the outermost first, and the base env."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def turn_based_layer(env: Any) -> Any:
    """Return the wrapper or base env that has ``EPISODE_OVER``; None if there is none."""
    layer = env
    for _ in range(100):  # the ``env`` attributes of users may form a cycle
        if layer is None or hasattr(type(layer), EPISODE_OVER):
            return layer
        # Not through __dict__: reading that makes every later attribute access slower.
        try:
            layer = getattr(layer, "env", None)
        except ordinary():  # a user's property may raise anything
            return None
    return None


def make_for_random_actions(env_fn: Callable[[], Any]) -> Any:
    """Make an env; if it is turn-based it takes illegal actions as legal ones."""
    env = env_fn()
    if (layer := turn_based_layer(env)) is not None:
        vars(layer)["_envpool_py_takes_any_action"] = True
    return env


def takes_seed(env: Any) -> bool:
    """Whether the ``reset`` of the base env has an argument ``seed``."""
    try:
        names = inspect.signature(layers_of(env)[-1].reset).parameters
    except (TypeError, ValueError):  # of a function in C
        return False
    return "seed" in names or any(each.kind is each.VAR_KEYWORD for each in names.values())


def has_own(layer: Any, name: str) -> bool:
    """Whether this layer itself has the attribute; forwarding by ``gym.Wrapper`` does not count."""
    if isinstance(layer, gym.Wrapper):
        return name in vars(layer) or any(
            name in vars(base) for base in type(layer).__mro__ if base not in gym.Wrapper.__mro__
        )
    return hasattr(layer, name)


def lookup(env: Any, name: str, default: Any = _NO_DEFAULT) -> Any:
    """Return an attribute of the env as ``gymnasium.Env.get_wrapper_attr`` does."""
    for layer in layers_of(env):
        try:
            return getattr(layer, name)
        except AttributeError:
            continue
    if default is not _NO_DEFAULT:
        return default
    kind = type(env).__name__
    raise AttributeError(f"neither {kind} nor an env that it wraps has the attribute {name!r}")
