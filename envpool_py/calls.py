"""One call at a time: a second one, by another thread or a signal handler, is refused.

The call that is under way is known by an object that only its own frame refers to. Should an
interrupt keep that frame from saying that it has ended, the next call sees that no such frame runs.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py.errors import from_signal_handler

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "now"


def one_at_a_time(method: F) -> F:
    """Have ``method``, of an object with ``_calls`` and ``is_closed``, refuse to overlap."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = object()
        try:
            if self._calls.setdefault(_KEY, own) is not own:
                _take_over(self, own, method.__name__)
            return method(self, *args, **kwargs)
        except Exception as error:
            if (
                self.is_closed
                and not isinstance(error, ClosedEnvironmentError)
                and not from_signal_handler(error)
            ):
                text = f"{type(self).__name__} was closed while a call was under way"
                raise ClosedEnvironmentError(text) from error
            raise
        finally:
            if self._calls.get(_KEY) is own:
                self._calls.clear()

    return cast("F", call)


_CODE = one_at_a_time(lambda: None).__code__


def _take_over(pool: Any, own: object, name: str) -> None:
    """Raise if the call that is noted is under way; else take its place."""
    if is_under_way(pool):
        raise AlreadyPendingCallError(
            f"{name}: another call of this {type(pool).__name__} is under way; a pool takes one"
            " call at a time, whichever thread or signal handler makes it, but for close()",
            name,
        )
    pool._calls[_KEY] = own  # noqa: SLF001 - the calls are kept for this


def is_under_way(pool: Any, *, elsewhere: bool = False) -> bool:
    """Whether a call of the pool is under way; with ``elsewhere``, in another thread."""
    noted = pool._calls.get(_KEY)  # noqa: SLF001
    me = threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way to see them
    frames[me] = sys._getframe(1)  # noqa: SLF001
    return noted is not None and any(
        _runs(frame, noted) for thread, frame in frames.items() if not (elsewhere and thread == me)
    )


def _runs(frame: FrameType | None, noted: object) -> bool:
    while frame is not None:
        if frame.f_code is _CODE and frame.f_locals.get("own") is noted:
            return True
        frame = frame.f_back
    return False


def await_end(pool: Any, seconds: float) -> None:
    """Wait at most ``seconds`` until a call in another thread has noticed the close."""
    deadline = time.monotonic() + seconds
    while is_under_way(pool, elsewhere=True) and time.monotonic() < deadline:
        time.sleep(1e-3)
