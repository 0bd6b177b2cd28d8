"""Interrupts: exceptions that signal handlers raise, Ctrl-C's KeyboardInterrupt included.

Python calls a signal handler between any two bytecodes of the main thread. So an interrupt may come
out of any line: of an env, where it must not be taken for an error of the env, and of this package,
where lines that belong together run within ``deferred``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# The functions in C: those of ``signal`` make an enum of the result, and take much longer.
_SIGNAL_IN_C = importlib.import_module("_signal")
_getsignal: Callable[[int], Any] = _SIGNAL_IN_C.getsignal
_set_signal: Callable[[int, Any], Any] = _SIGNAL_IN_C.signal
_SIGNALS = sorted(signal.valid_signals())


class _Deferral:
    """The handler of all signals in a block: it notes them, and calls their handlers later."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: list[int] = []
        self._pid = os.getpid()
        self._is_over = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._is_over or self._pid != os.getpid():
            self.handlers[signum](signum, frame)
        else:
            self._noted.append(signum)

    def begin(self) -> None:
        handlers = [*map(_getsignal, _SIGNALS)]
        pairs = zip(_SIGNALS, handlers, strict=True)
        for signum, handler in itertools.compress(pairs, map(callable, handlers)):
            self.handlers[signum] = handler
            _set_signal(signum, self)

    def end(self) -> None:
        """Restore the handlers, call those of the noted signals, and raise their first error."""
        errors: list[BaseException] = []
        while True:  # again after each error, which may come out of any line
            try:
                self._is_over = True  # from here on handlers run
                self._restore()
                while self._noted:
                    # The signal is not raised again: an event loop has been woken by it already.
                    self.handlers[signum := self._noted.pop(0)](signum, sys._getframe())  # noqa: SLF001 - see `is_interrupt`
                break
            except BaseException as error:  # noqa: BLE001 - of a handler
                errors.append(error)
        if errors:
            try:
                raise errors[0]
            finally:
                del errors  # whose tracebacks hold this frame

    def _restore(self) -> None:
        # Not in `end`: in Python 3.12 a `try` around such a loop does not cover its last jump.
        for signum, handler in self.handlers.items():
            if _getsignal(signum) is self:  # else another was installed in the block
                _set_signal(signum, handler)


_deferrals: list[_Deferral] = []  # at most one


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Run no signal handler of Python within the block; those of signals in it run after it.

    For blocks that end within a bounded time and call no code of users. Handlers only run in the
    main thread, so the block does nothing in other threads, nor within another such block. It takes
    20 to 40 µs: too long for the path of every step.
    """
    if _deferrals or threading.current_thread() is not threading.main_thread():
        yield
        return
    deferral = _Deferral()
    try:
        _deferrals.append(deferral)
        deferral.begin()
        yield
    finally:
        _deferrals.clear()
        deferral.end()


@contextlib.contextmanager
def kept_from_children(method: str) -> Iterator[None]:
    """Start processes with SIGINT blocked: a terminal sends it to all. Workers unblock it."""
    if method != "fork":
        from multiprocessing import resource_tracker  # noqa: PLC0415 - few programs need it

        resource_tracker.ensure_running()  # its start unblocks SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal handler raised this exception; any KeyboardInterrupt counts as one.

    A frame of the traceback is that of a handler if it got a signal and the frame below it, which
    the signal has interrupted. So a handler need not be installed any more. One that has deleted
    its arguments is recognised while it is installed.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    deferred_ones = (deferral.handlers.values() for deferral in _deferrals)
    handlers = itertools.chain(map(_getsignal, _SIGNALS), *deferred_ones)
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    # The first frame, which runs, is left out: to read its variables would make them outlive it.
    return any(
        frame.f_code in codes or _is_handler(frame, interrupted)
        for interrupted, frame in itertools.pairwise(frames)
    )


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether the frame has got a signal and ``interrupted`` as arguments, maybe after others."""
    code, values = frame.f_code, frame.f_locals
    given: list[Any] = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest if type(rest) is tuple else ()  # the function may have changed it
    return any(
        later is interrupted and type(signum) in (int, signal.Signals) and signum in _SIGNALS
        for signum, later in itertools.pairwise(given)
    )


@contextlib.contextmanager
def suppressed(*kinds: type[BaseException]) -> Iterator[None]:
    """Suppress exceptions of these kinds in the block, but no interrupt; default: ``Exception``."""
    try:
        yield
    except ordinary(*kinds):
        pass


def ordinary(*kinds: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Return the classes for an ``except`` around code of users: none for an interrupt.

    ``except ordinary(TypeError) as error:`` catches a TypeError of the code in the ``try`` block,
    and lets that of a signal handler, which may run at any line, pass. Default: ``Exception``.
    """
    error: Any = sys.exc_info()[1]
    # An error of C code that the block itself calls has no deeper frame; a handler has one.
    is_deeper = error.__traceback__.tb_next is not None
    return () if is_deeper and is_interrupt(error) else kinds or (Exception,)
