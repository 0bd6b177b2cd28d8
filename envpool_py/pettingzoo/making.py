"""Find envs by their names, for the command line."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pettingzoo

from envpool_py.pettingzoo.aec import PettingZooEnv


def find_env(name: str) -> Callable[..., Any] | None:
    """Return the function that makes the env of this name; None if PettingZoo has no such env.

    A name is an id of PettingZoo's registry (``classic/tictactoe-v3``), after ``module:`` also of
    one that importing the module fills; or a module with an ``env`` or a ``parallel_env``, as
    ``mpe2.simple_spread_v3`` or ``mpe2:simple_spread_v3``.
    """
    module, _, rest = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    for kind in ("aec", "parallel"):
        if rest in getattr(pettingzoo, f"{kind}_registry", ()):
            return functools.partial(pettingzoo.make, kind, rest)
    try:
        path = f"{module}.{rest}" if module else rest
        found = importlib.import_module(path) if importlib.util.find_spec(path) else None
    except (ImportError, ValueError):  # a name that is none of a module's
        return None
    return getattr(found, "env", getattr(found, "parallel_env", None))


def make_rows(maker: Callable[[], Any]) -> Any:
    """Make an env; one of PettingZoo goes into a ``PettingZooEnv`` with rows of live agents."""
    env = maker()
    is_bare = isinstance(env, (pettingzoo.AECEnv, pettingzoo.ParallelEnv))
    if not is_bare or isinstance(env, PettingZooEnv):
        return env
    return PettingZooEnv(env, dead_steps="skip", heterogeneous=True)


def make_by_name(name: str, /, **kwargs: Any) -> Any:
    """Make the env of this name, as for ``find_env``."""
    make = find_env(name)
    if make is None:
        raise ValueError(f"PettingZoo knows no env {name!r}")
    return make(**kwargs)
