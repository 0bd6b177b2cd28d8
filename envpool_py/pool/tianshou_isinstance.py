"""Pools as instances of Tianshou's classes, for ``isinstance`` checks.

Tianshou's pools are no ABCs, so ours cannot be registered with them. But ``isinstance`` also asks
an object for its ``__class__``: once Tianshou is imported, that is a subclass of both.
"""

from __future__ import annotations

import sys
import types
from typing import Any

_JOINED: dict[type[Any], type[Any]] = {}


def class_of(pool: object) -> Any:
    """Return the class of a pool; if Tianshou is imported, a subclass also of Tianshou's class."""
    cls = type(pool)
    if cls not in _JOINED and (tianshou := sys.modules.get("tianshou.env")) is not None:
        own = (base.__name__ for base in cls.__mro__ if base.__module__.startswith("envpool_py."))
        # None of them is there while Tianshou is being imported.
        theirs = next((found for name in own if (found := getattr(tianshou, name, None))), None)
        if theirs is not None:
            bases = (cls,) if issubclass(cls, theirs) else (cls, theirs)
            joined = types.new_class(cls.__name__, bases)
            joined.__module__, joined.__doc__ = cls.__module__, cls.__doc__
            _JOINED[cls] = joined
    return _JOINED.get(cls, cls)
