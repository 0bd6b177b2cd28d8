"""Envs whose methods are coroutines (``async def``): run them in an event loop of this process.

The loop runs in a thread of its own as long as there are such envs. The thread that steps an env
waits for its coroutine, so envs in different threads are in flight at once.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import gymnasium as gym


class _Loop(threading.Thread):
    """The event loop; ``users`` is the number of envs and calls that need it."""

    def __init__(self) -> None:
        super().__init__(name="envpool_py event loop", daemon=True)
        self.users = 0
        self.started: Future[Any] = Future()
        self.start()

    def run(self) -> None:
        import asyncio  # noqa: PLC0415 - takes 30 ms, and few programs need it

        async def main() -> None:
            self.stop = asyncio.Event()
            self.started.set_result(asyncio.get_running_loop())
            await self.stop.wait()

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - it has not started; raised by ``_running``
            self.started.set_exception(error)


_lock = threading.Lock()
_loops: list[_Loop] = []  # one or none
# For each thread that waits: for what.
_waiting: dict[int, _Call] = {}
#: ``is_cancelled`` of a thread says whether the request that it carries out is cancelled.
this_thread = threading.local()


class _Call:
    """A coroutine for which a thread waits."""

    def __init__(self, coroutine: Any, loop: Any) -> None:
        import asyncio  # noqa: PLC0415 - as above

        self.coroutine, self._loop, self._asyncio = coroutine, loop, asyncio
        self._task: Any = None
        self._is_cancelled = False
        self.error: BaseException | None = None  # one that would end the event loop of all envs
        self.future = asyncio.run_coroutine_threadsafe(self._run(), loop)

    async def _run(self) -> Any:
        self._task, lock = self._asyncio.current_task(), _lock
        if self._is_cancelled:
            self.coroutine.close()
            raise self._asyncio.CancelledError
        try:
            return await self.coroutine
        except (SystemExit, KeyboardInterrupt) as error:
            self.error = error
        finally:
            if _lock is not lock:  # the coroutine has forked this copy of the process
                os._exit(int(sys.exc_info()[0] is not None))

    def cancel(self) -> None:
        """Cancel it; the thread waits until it has ended."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # it has ended, and so has the loop
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a fork may copy a lock that is taken
    _lock = threading.Lock()
    _loops.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def _running() -> Iterator[Any]:
    """Keep the event loop running."""
    with _lock:
        used = _loops[0] if _loops else _Loop()
        loop = used.started.result()
        used.users += 1
        _loops[:] = [used]
    try:
        yield loop
    finally:
        with _lock:
            used.users -= 1
            if not used.users and used in _loops:  # else a fork has copied it
                _loops.clear()
                loop.call_soon_threadsafe(used.stop.set)
                used.join(1)


def run(result: Any) -> Any:
    """Run a coroutine in the event loop and return its result; return anything else unchanged."""
    if not inspect.iscoroutine(result):
        return result
    thread = threading.get_ident()
    with _running() as loop:
        _waiting[thread] = call = _Call(result, loop)
        try:
            cancel(thread, getattr(this_thread, "is_cancelled", lambda: False))
            result = call.future.result()
            if call.error is not None:
                raise call.error
            return result
        finally:
            call.future.cancel()  # has no effect if it has ended
            del _waiting[thread]


def cancel(thread: int, is_cancelled: Callable[[], bool]) -> None:
    """Cancel the coroutine for which this thread waits, if its request is cancelled."""
    # In this order: if the thread goes on in between, this call has ended.
    call = _waiting.get(thread)
    if call is not None and is_cancelled():
        call.cancel()


def abandon(thread: int) -> None:
    """Cancel the coroutine for which this thread waits; the thread does not wait for its end."""
    if (call := _waiting.get(thread)) is not None:
        call.future.cancel()


def waits(thread: int) -> bool:
    """Whether this thread waits for a coroutine, or for its result."""
    return thread in _waiting


def frames_of(thread: int) -> list[tuple[FrameType, int]]:
    """Return frames and lines of the coroutine for which this thread waits, the innermost first."""
    found: list[tuple[FrameType, int]] = []
    coroutine: Any = getattr(_waiting.get(thread), "coroutine", None)
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.insert(0, (frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return found


class Awaited(gym.Wrapper[Any, Any, Any, Any]):
    """An env with coroutines as an env without: each call returns when its coroutine has ended."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._use = contextlib.ExitStack()
        self._use.enter_context(_running())

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        return run(self.env.step(action))

    def reset(self, **kwargs: Any) -> Any:
        return run(self.env.reset(**kwargs))

    def render(self) -> Any:
        return run(self.env.render())

    def close(self) -> None:
        with self._use:
            run(self.env.close())  # type: ignore[func-returns-value]


def adapted(made: Any) -> Any:
    """Return the env that an ``env_fn``, a coroutine or not, has made, with its base ``Awaited``.

    The base env alone is replaced, so wrappers of Gymnasium around it work.
    """
    if inspect.iscoroutine(made):
        with _running():
            return adapted(run(made))
    base, above = made, None
    while isinstance(base, gym.Wrapper):
        base, above = base.env, base
    methods = (getattr(base, name, None) for name in ("step", "reset"))
    if not isinstance(base, gym.Env) or not any(map(inspect.iscoroutinefunction, methods)):
        return made
    if above is None:
        return Awaited(base)
    above.env = Awaited(base)  # type: ignore[attr-defined]
    return made
