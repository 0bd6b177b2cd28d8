"""Register our classes as virtual subclasses of Stable-Baselines3's, for its ``isinstance`` checks.

Stable-Baselines3's classes are ABCs, so ours can be registered with them. Importing it takes a
second and loads torch, so only an explicit ``register()`` does that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

_OURS, _THEIRS = "envpool_py.sb3.", "stable_baselines3."


def register_bases(cls: type[Any]) -> None:
    """Register ``cls`` and its bases, as far as Stable-Baselines3 is imported.

    Every VecEnv does this when it is constructed.
    """
    for base in cls.__mro__:
        if base.__module__.startswith(_OURS):
            module = sys.modules.get(base.__module__.replace(_OURS, _THEIRS, 1))
            theirs = getattr(module, base.__name__, None)
            if theirs is not None and not issubclass(base, theirs):
                theirs.register(base)


def register() -> bool:
    """Import Stable-Baselines3 and register all classes of ours with its classes.

    A program needs this only if it imports Stable-Baselines3 after it has constructed a VecEnv.

    Returns:
        Whether Stable-Baselines3 is installed.
    """
    try:
        importlib.import_module("stable_baselines3.common.vec_env")
    except ImportError:
        return False
    base_vec_env = importlib.import_module("envpool_py.sb3.common.vec_env.base_vec_env")
    for cls in _with_subclasses(base_vec_env.VecEnv):
        register_bases(cls)
    return True


def _with_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)
