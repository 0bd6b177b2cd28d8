"""Requests to one env, and a table of their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from envpool_py.env.spaces import snapshot


class Kind(NamedTuple):
    """The properties of a kind of request.

    ``has_row``: it is answered by a row, else by a reply. ``timed``: ``step_timeout`` applies.
    ``recorded``: it may change the env, so a record holds it; steps and resets have their own
    entries there. ``copied``: an env of this process gets copies of its arguments, because it may
    change them, as one in a worker process does.
    """

    has_row: bool = False
    timed: bool = True
    recorded: bool = False
    copied: bool = True


KINDS = {
    "step": Kind(has_row=True),
    "reset": Kind(has_row=True),
    "seed": Kind(has_row=True),
    "lose": Kind(has_row=True),
    "get_attr": Kind(copied=False),
    "set_attr": Kind(recorded=True),
    "call": Kind(recorded=True),
    "apply": Kind(recorded=True),
    "render": Kind(),
    "configure": Kind(timed=False, copied=False),
    "env_fn": Kind(timed=False, recorded=True, copied=False),
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
    ``lose``       ``obs``                        the row of a lost step, see ``Executor.lose``
    ``get_attr``   ``name``                       the value
    ``set_attr``   ``name, value``                None
    ``call``       ``method, *args, **kwargs``    the result of the method
    ``apply``      ``function, *args, **kwargs``  the result of ``function(env, ...)``
    ``render``     ``**kwargs``                   the frame
    ``configure``  see ``Executor.configure``     None; not sent to a new env without options
    ``env_fn``     ``env_fn``                     None; see ``Executor.env_fn``
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
        """Return this request with copies of its arguments, except for functions and options."""
        if not KINDS[self.kind].copied:
            return self
        functions = self.kind == "apply"  # the first argument
        args = (*self.args[:functions], *map(snapshot, self.args[functions:]))
        kwargs = {key: snapshot(one) for key, one in self.kwargs.items()}
        return self._replace(args=args, kwargs=kwargs)
