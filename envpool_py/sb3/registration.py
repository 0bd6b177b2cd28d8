"""Register our classes as virtual subclasses of Stable-Baselines3's, for its ``isinstance`` checks.

Stable-Baselines3's classes are ABCs, so ours can be registered with them. Importing it takes a
second and loads torch, so only an explicit ``register()`` does that.
"""

from __future__ import annotations

import importlib
import sys

_OURS, _THEIRS = "envpool_py.sb3.common.vec_env", "stable_baselines3.common.vec_env"


def register() -> bool:
    """Import Stable-Baselines3, register all our classes, and return whether it is installed.

    A program needs this only if it imports Stable-Baselines3 after it has constructed a VecEnv.
    """
    try:
        importlib.import_module(_THEIRS)
    except ImportError:
        return False
    register_if_imported()
    return True


def register_if_imported() -> None:
    """Register our classes if Stable-Baselines3 is imported; every new VecEnv calls this."""
    theirs = sys.modules.get(_THEIRS)
    for name in getattr(theirs, "__all__", ()):
        cls, own = getattr(theirs, name), getattr(sys.modules[_OURS], name, None)
        if own is not None and hasattr(cls, "register"):
            cls.register(own)
