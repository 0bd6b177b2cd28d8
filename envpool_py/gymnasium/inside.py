"""Functions that are carried out where an env lives: ``function(env, ...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def describe(env: Any) -> tuple[dict[str, Any], str | None]:
    """The metadata and the render mode of an env."""
    return dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None)


def call(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The attribute of that name; if it can be called, what the call returns."""
    found = getattr(env, "get_wrapper_attr", lambda name: getattr(env, name))(name)
    return found(*args, **kwargs) if callable(found) else found


def set_attribute(env: Any, name: str, value: Any) -> None:
    """Set the attribute where ``gymnasium.Env.set_wrapper_attr`` does."""
    getattr(env, "set_wrapper_attr", lambda name, value: setattr(env, name, value))(name, value)
