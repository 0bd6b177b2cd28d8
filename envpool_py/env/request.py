"""Requests to one env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request to one env.

    An ``Executor`` carries it out, by its ``kind``, with ``args`` and ``kwargs``:

    ============== ============================== ==========================================
    kind           arguments                      reply
    ============== ============================== ==========================================
    ``step``       ``action``                     (obs, reward, terminated, truncated, info)
    ``reset``      ``seed=``, ``options=``, ...   (obs, info)
    ``seed``       ``seed``                       ``[seed]``
    ``get_attr``   ``name``                       the value
    ``set_attr``   ``name, value``                None
    ``call``       ``method, *args, **kwargs``    the result of the method
    ``apply``      ``function, *args, **kwargs``  the result of ``function(env, ...)``
    ``render``     ``**kwargs``                   the frame
    ``rebuild``                                   None; a new env, made by the same ``env_fn``
    ``configure``  the pool's options             None; sent only if they are not the defaults
    ============== ============================== ==========================================
    """

    kind: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


#: Requests whose reply is a row.
ROW_KINDS = frozenset({"step", "reset"})
