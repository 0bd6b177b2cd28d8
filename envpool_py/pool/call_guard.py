"""Allow one call of a pool at a time; refuse a second one by another thread or a signal handler.

A pool keeps the frame of the call that is under way. If an interrupt prevents the removal of that
frame, the next call finds that the frame has ended.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py.errors import EnvError
from envpool_py.interrupts import is_interrupt, ordinary

F = TypeVar("F", bound=Callable[..., Any])
_CLOSED = "{} was closed while a call was under way"

#: ``pid`` of this process, kept because ``os.getpid`` takes longer than all other checks of a call.
this_process = SimpleNamespace(pid=os.getpid())
if hasattr(os, "register_at_fork"):  # does not cover a fork by C code
    os.register_at_fork(after_in_child=lambda: vars(this_process).update(pid=os.getpid()))


def one_at_a_time(method: F) -> F:
    """Make a pool's ``method`` raise if another call is under way or the pool is closed."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe()  # noqa: SLF001 - there is no public way
        try:
            if self.is_closed or self._pid != this_process.pid:
                self._assert_open()
            if self._under_way.setdefault("now", frame) is not frame:
                if is_running(self._under_way.get("now")):
                    name, kind = method.__name__, type(self).__name__
                    text = f"another call of this {kind} is under way; a pool takes one call at a"
                    text += " time, from any thread or signal handler; only close() is always"
                    text = getattr(self._under_way.get("now"), "refusal", f"{text} allowed")
                    raise AlreadyPendingCallError(f"{name}: {text}", name)  # noqa: TRY301 - `finally` drops the frame
                self._under_way["now"] = frame
            flight = self.engine.flight
            if flight.ids_of_call is not None:  # a second interrupt has ended the end of a call
                flight.end_interrupted(flight.ids_of_call)
            result = method(self, *args, **kwargs)
            if self.is_closed:
                raise ClosedEnvironmentError(_CLOSED.format(type(self).__name__))  # noqa: TRY301
            return result  # noqa: TRY300
        except Exception as error:
            consequence = self.is_closed and not isinstance(error, ClosedEnvironmentError)
            if consequence and not is_interrupt(error):
                raise ClosedEnvironmentError(_CLOSED.format(type(self).__name__)) from error
            if isinstance(error, EnvError):  # a user needs no frames of this package
                raise error.with_traceback(None)  # noqa: B904 - it keeps its cause
            raise
        finally:
            if self._under_way.get("now") is frame:
                self._under_way.clear()
            del frame  # a frame that refers to itself would stay until the garbage collector runs

    return cast("F", call)


def is_running(frame: Any) -> bool:
    """Whether the call with this frame has not ended; ``clear`` of such a frame raises.

    What is in the place of a frame, with a ``refusal``, does not end by itself.
    """
    try:
        if hasattr(frame, "refusal"):
            return True
        if frame is not None:
            frame.clear()
    except ordinary(RuntimeError):
        return True
    return False


def settle(pool: Any) -> Any:
    """End what an interrupted call has left, unless a call is under way; return the states."""
    flight = pool.engine.flight
    if flight.ids_of_call is not None and not is_running(pool._under_way.get("now")):  # noqa: SLF001 - as below
        flight.end_interrupted(flight.ids_of_call)
    return flight.states


def await_end(pool: Any, seconds: float) -> None:
    """Wait at most ``seconds`` until a call in another thread has noticed the close."""
    noted = pool._under_way.get("now")  # noqa: SLF001 - the calls are kept for this
    noted = getattr(noted, "frame", noted)  # sessions let other calls wait, but no close
    # If the call is in this thread, a signal handler runs above it: the call cannot go on now.
    stack = traceback.walk_stack(sys._getframe())  # noqa: SLF001
    if all(frame is not noted for frame, _ in stack):
        deadline = time.monotonic() + seconds
        while is_running(noted) and time.monotonic() < deadline:
            time.sleep(1e-3)
