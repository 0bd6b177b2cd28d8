"""The env of a run by its name, so that ``envpool-py replay FILE`` needs no other argument."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ATTRIBUTE = "envpool_py_env"


def attach(
    env_fn: Callable[[], Any],
    env: str | Callable[..., Any],
    kwargs: Mapping[str, Any],
    wrappers: Sequence[str | Callable[..., Any]],
) -> None:
    """Name what ``env_fn`` makes, if the command line can make it again.

    The names are ids or ``module:name``; keyword arguments must be Python literals.
    """
    names = [each if isinstance(each, str) else _name(each) for each in (env, *wrappers)]
    if None not in names and all(map(_is_literal, kwargs.values())):
        texts = {key: repr(value) for key, value in kwargs.items()}
        found = {"env": names[0], "env_kwargs": texts, "wrappers": names[1:]}
        setattr(env_fn, _ATTRIBUTE, found)


def of(env_fns: Sequence[Callable[[], Any]]) -> dict[str, Any] | None:
    """What ``attach`` has noted of these env_fns; None if they differ or nothing is noted."""
    first = env_fns[0]
    same = all(env_fn is first for env_fn in env_fns)
    return getattr(first, _ATTRIBUTE, None) if same else None


def _name(function: Callable[..., Any]) -> str | None:
    """``module:name`` of a class or function that can be imported under it."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    try:
        found: Any = functools.reduce(getattr, path.split("."), sys.modules[str(module)])
    except (KeyError, AttributeError):
        return None
    # To import the main module again would run the program.
    return f"{module}:{path}" if found is function and module != "__main__" else None


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False
