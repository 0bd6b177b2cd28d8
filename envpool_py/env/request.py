"""Requests to one env, and a table of their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from envpool_py.env.spaces import snapshot


class Kind(NamedTuple):
    """The properties of a kind of request.

    ``has_row``: it is answered by a row, else by a reply. ``recorded``: it may change the env, so a
    record holds it; steps and resets have their own entries there. ``sets_up``: it may make an env,
    so ``step_timeout`` does not apply, and its arguments are functions and options.
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
}


class Request(NamedTuple):
    """A request to one env.

    An ``Executor`` carries it out, by its ``kind``, with ``args`` and ``kwargs``:

    ============== ============================== ==========================================
    kind           arguments                      reply
    ============== ============================== ==========================================
    ``step``       ``action``                     (obs, reward, terminated, truncated, info)
    ``reset``      ``seed=``, ``options=``, ...   (obs, info)
    ``seed``       ``seed``                       ``[seed]``
    ``lost_step``  ``obs``                        a row, see ``Executor.lost_step``
    ``get_attr``   ``name``                       the value
    ``set_attr``   ``name, value``                None
    ``call``       ``method, *args, **kwargs``    the result of the method
    ``apply``      ``function, *args, **kwargs``  the result of ``function(env, ...)``
    ``render``     ``**kwargs``                   the frame
    ``configure``  see ``Executor.configure``     None; not sent to a new env without options
    ``env_fn``     ``env_fn``                     None; it makes the env at later recreations
    ============== ============================== ==========================================

    ``error``: the text of the error after which this request is sent; the info of its row has it as
    ``env_error``. ``before``: the request that the executor carries out before this one.
    """

    kind: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    error: str = ""
    before: Request | None = None

    def with_own_arguments(self) -> Request:
        """Return this request with copies of its arguments, which the env may change."""
        if KINDS[self.kind].sets_up:
            return self
        functions = self.kind == "apply"  # the first argument
        args = (*self.args[:functions], *map(snapshot, self.args[functions:]))
        kwargs = {key: snapshot(one) for key, one in self.kwargs.items()}
        return self._replace(args=args, kwargs=kwargs)
