"""Requests to one env: their kinds, and their tokens.

The token of a request is an int64 that the request and its answer have in common.

It has the env id in the low bits, then two bits for a reset and for a request without a row, then
the env's *generation*. An env has one request at a time, so the next one has the same token. A
request is cancelled by increasing the env's generation: a late answer has an older generation, and
is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from envpool_py.env.spaces import snapshot

#: The bits of a token that hold the env id.
ID_MASK = (1 << 24) - 1
#: The bit of a reset without arguments, which is sent as its token alone, as a step is.
RESET = 1 << 24
#: The bit of a request without a row.
ASK = 1 << 25
GENERATION = 1 << 26
TOKEN_BYTES = 8

#: Return the bytes of a token, in the byte order of the machine.
pack_token = struct.Struct("=q").pack


class Kind(NamedTuple):
    """The properties of a kind of request.

    ``has_row``: it is answered by a row, else by a reply. ``recorded``: it may change the env, so a
    record holds it; steps and resets have their own entries there. ``sets_up``: it needs no env,
    and may make one, so ``step_timeout`` does not apply; its arguments are functions and options.
    """

    has_row: bool = False
    recorded: bool = False
    sets_up: bool = False


KINDS = {
    "step": Kind(has_row=True),
    "reset": Kind(has_row=True),
    "seed": Kind(has_row=True),
    "lost_step": Kind(has_row=True),
    "get_attr": Kind(),
    "set_attr": Kind(recorded=True),
    "call": Kind(recorded=True),
    "apply": Kind(recorded=True),
    "render": Kind(),
    "configure": Kind(sets_up=True),
    "env_fn": Kind(recorded=True, sets_up=True),
    "ping": Kind(sets_up=True),
}


class Request(NamedTuple):
    """A request to one env.

    An ``Executor`` carries it out, by its ``kind``, with ``args`` and ``kwargs``:

    =============== ============================== =========================================
    kind            arguments                      reply
    =============== ============================== =========================================
    ``step``        ``action``                     (obs, reward, terminated, truncated, info)
    ``reset``       ``seed=``, ``options=``, ...   (obs, info)
    ``seed``        ``seed``                       ``[seed]``
    ``lost_step``   ``obs``                        a row, see ``Executor.lost_step``
    ``get_attr``    ``name``                       the value
    ``set_attr``    ``name, value``                None
    ``call``        ``method, *args, **kwargs``    the result of the method
    ``apply``       ``function, *args, **kwargs``  the result of ``function(env, ...)``
    ``render``      ``**kwargs``                   the frame
    ``configure``   see ``Executor.configure``     None; at the start only if there are options
    ``env_fn``      ``env_fn``                     None; it makes the env at later recreations
    ``ping``                                       None
    =============== ============================== =========================================

    ``error``: the text of the error after which this request is sent; the info of its row has it as
    ``env_error``. ``no_autoreset``: of a reset or a lost step: the end of its episode resets
    nothing.
    """

    kind: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    error: str = ""
    no_autoreset: bool = False

    def with_own_arguments(self) -> Request:
        """Return this request with copies of its arguments, which the env may change."""
        if KINDS[self.kind].sets_up:
            return self
        functions = self.kind == "apply"  # the first argument
        args = self.args[:functions] + snapshot(self.args[functions:])
        return Request(self.kind, args, snapshot(self.kwargs), self.error, self.no_autoreset)
