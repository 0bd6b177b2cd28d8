"""Envs whose methods are coroutines (``async def``): run them in one event loop of this process.

The loop runs in a thread of its own as long as there are such envs. In a pool of threads, an env
whose ``reset`` and ``step`` are coroutine functions needs no other thread: the code that steps it
runs in a greenlet of the loop's thread, see ``Runner``. Elsewhere a thread waits for the coroutine.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import queue
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import FrameType
from typing import Any

import gymnasium as gym

from envpool_py.env.end_forked_copies import EndingCopies
from envpool_py.env.wrapper_layers import layers_of


class _Loop(threading.Thread):
    """The event loop; ``users`` is the number of envs and calls that need it."""

    def __init__(self) -> None:
        super().__init__(name="envpool_py event loop", daemon=True)
        self.users = 0
        self.started: Future[None] = Future()
        self._calls: deque[Callable[[], object]] = deque()
        self._num_turns, self._woken_in_turn = 0, -1
        self.start()

    def run(self) -> None:
        import asyncio  # noqa: PLC0415 - takes 30 ms, and few programs need it

        async def main() -> None:
            self.stop = asyncio.Event()
            self.loop = asyncio.get_running_loop()
            self.started.set_result(None)
            await self.stop.wait()

        try:
            import greenlet  # noqa: PLC0415 - as above

            self.greenlet_class: Any = greenlet.greenlet
            self.asyncio = asyncio
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - it has not started; raised by ``running_loop``
            self.started.set_exception(error)

    def call(self, function: Callable[[], object]) -> None:
        """Call this in the loop, from any thread; the calls of one moment wake the loop once."""
        self._calls.append(function)
        if self._woken_in_turn != (turn := self._num_turns):
            empty = contextvars.Context()  # envs do not see the variables of this caller
            try:  # no ``with``: it takes as long as all this
                self.loop.call_soon_threadsafe(self._call_all, context=empty)
            except RuntimeError:  # the loop has ended
                return
            self._woken_in_turn = turn  # an interrupt before this costs one wake-up more

    def _call_all(self) -> None:
        self._num_turns += 1
        while self._calls:
            self._calls.popleft()()


_lock = threading.Lock()
_loops: list[_Loop] = []  # one or none
# For each thread that waits: what runs the coroutine, and where the outcome arrives.
_waiting_threads: dict[int, tuple[Runner, queue.SimpleQueue[Any]]] = {}
#: ``is_cancelled`` of a thread says whether the request that it carries out is cancelled.
thread_local = threading.local()


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - a fork may copy a lock that is taken
    _lock = threading.Lock()
    _loops.clear()
    _waiting_threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def running_loop() -> Iterator[_Loop]:
    """Keep the event loop running."""
    with _lock:
        used = _loops[0] if _loops else _Loop()
        used.started.result()
        used.users += 1
        _loops[:] = [used]
    try:
        yield used
    finally:
        with _lock:
            used.users -= 1
            if not used.users and used in _loops:  # else a fork has copied it
                _loops.clear()
                used.call(used.stop.set)
                if threading.current_thread() is not used:
                    used.join(1)


@dataclass(eq=False, repr=False)
class Runner:
    """Runs ``function`` in a greenlet of the event loop.

    Where the function waits, it switches to a task of the loop, which awaits that for it: so all
    coroutines of a runner run in one task. ``is_cancelled``: whether the request is cancelled that
    the function carries out. ``coroutine``: what it waits for, None if for a message.
    """

    loop: _Loop
    _function: Callable[[], object]
    is_cancelled: Callable[[], bool]
    name: str | None = None
    coroutine: Any = None
    _owes_cancel: bool = False
    _arrival: Any = None  # set when a message arrives, if the function waits for one

    def start(self) -> None:
        def start() -> None:
            self._task = self.loop.loop.create_task(self._drive(), name=self.name)

        self.loop.call(start)

    async def _drive(self) -> None:
        fiber = self.loop.greenlet_class(self._function)
        fiber.runner, fiber.gr_context = self, fiber.parent.gr_context
        self._wait_for = fiber.parent.switch
        awaited = fiber.switch()
        while not fiber.dead:
            try:
                result = await awaited
            except BaseException as error:  # the function handles it
                last: Any = error.__traceback__
                if isinstance(error, GeneratorExit) and last.tb_next is None:
                    raise  # not the coroutine's: the task is deleted, in a fork
                awaited = fiber.throw(type(error), error, error.__traceback__)
            else:
                awaited = fiber.switch(result)

    def notify(self) -> None:
        """Tell the function that there is a message."""
        self.loop.call(self._arrive)

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def cancel(self, *, any_request: bool = False) -> None:
        """Cancel the coroutine if its request is cancelled; the function waits for its end."""

        def cancel() -> None:
            if self.coroutine is not None and (any_request or self.is_cancelled()):
                self._task.cancel()

        self.loop.call(cancel)

    def blocked_by(self) -> str:
        """Return the name of the task that the loop runs now, or ""."""
        task = self.loop.asyncio.current_task(self.loop.loop)
        return "" if task is None else task.get_name()

    # ---------------------------------------------------------------------------- in the function

    def wait_for(self, messages: Sized) -> None:
        while not messages:
            self._arrival = self.loop.loop.create_future()
            try:
                self._wait_for(self._arrival)
            except self.loop.asyncio.CancelledError:  # of a time-out or group left open
                self._owes_cancel = True
                self._uncancel()

    def run(self, coroutine: Any) -> Any:
        if self.is_cancelled():
            coroutine.close()
            raise CancelledError
        if self._owes_cancel:
            self._owes_cancel = not self._task.cancel()
        self.coroutine = coroutine
        try:
            return self._wait_for(coroutine)
        except self.loop.asyncio.CancelledError as raised:  # else callers seem to be cancelled
            raise CancelledError(*raised.args).with_traceback(raised.__traceback__) from None
        finally:
            self.coroutine = None
            self._uncancel()

    def _uncancel(self) -> None:
        while getattr(self._task, "uncancel", int)():  # Python 3.10 has no ``uncancel``
            pass

    def call_in_new_thread(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns that may block."""
        ended: list[Any] = []

        def call() -> None:
            ended.append(_outcome(function))
            self.notify()

        threading.Thread(target=call, daemon=True, name="envpool_py env_fn").start()
        self.wait_for(ended)
        return _result(ended[0])


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        with EndingCopies():
            return function(), None
    except BaseException as error:  # noqa: BLE001 - raised in another thread
        return None, error


def _result(outcome: tuple[Any, BaseException | None]) -> Any:
    value, error = outcome
    if error is not None:
        raise error
    return value


def current() -> Runner | None:
    """Return the runner of the code that runs now."""
    return getattr(_loops[0].greenlet_class.getcurrent(), "runner", None) if _loops else None


def run(result: Any) -> Any:
    """Run a coroutine in the event loop and return its result; return anything else unchanged."""
    if not isinstance(result, types.CoroutineType):
        return result
    if (own := current()) is not None:
        return own.run(result)
    thread, ended = threading.get_ident(), queue.SimpleQueue[Any]()
    is_cancelled = getattr(thread_local, "is_cancelled", lambda: False)
    with running_loop() as loop:
        if threading.current_thread() is loop:  # it would wait for itself
            result.close()
            raise RuntimeError("a coroutine of an env steps a pool of such envs; use a thread")
        runner = Runner(loop, lambda: ended.put(_outcome(lambda: runner.run(result))), is_cancelled)
        _waiting_threads[thread] = runner, ended
        try:
            runner.start()
            return _result(ended.get())
        finally:
            cancel_coroutine_of(thread)  # after an interrupt; else it has ended
            del _waiting_threads[thread]


def runner_of(thread: int) -> Runner | None:
    """Return the runner for which this thread waits."""
    return _waiting_threads.get(thread, (None,))[0]


def cancel_coroutine_of(thread: int) -> None:
    """Cancel the coroutine for which this thread waits; the thread does not wait for its end."""
    if (waiting := _waiting_threads.get(thread)) is not None:
        runner, ended = waiting
        runner.is_cancelled = lambda: True
        runner.cancel()
        ended.put((None, CancelledError()))


def frames_of(coroutine: Any) -> list[tuple[FrameType, int]]:
    """Return frames and lines of a coroutine, the innermost first."""
    found: list[tuple[FrameType, int]] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.insert(0, (frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return found


def _are_coroutines(env: gym.Env[Any, Any]) -> list[bool]:
    return [inspect.iscoroutinefunction(getattr(env, name, None)) for name in ("reset", "step")]


def belongs_in_loop(env: Any) -> bool:
    """Whether ``reset`` and ``step`` of the base env are coroutine functions."""
    base = layers_of(env)[-1]
    return isinstance(base, gym.Env) and all(_are_coroutines(base))


class Awaited(gym.Wrapper[Any, Any, Any, Any]):
    """An env with coroutines as an env without: each call returns when its coroutine has ended."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._use = contextlib.ExitStack()
        self._use.enter_context(running_loop())

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
    """Return the env that an ``env_fn``, a coroutine or not, has made, its base env ``Awaited``."""
    if inspect.iscoroutine(made):
        with running_loop():
            return adapted(run(made))
    if isinstance(made, gym.Wrapper):
        if (inner := adapted(made.env)) is not made.env:
            made.env = inner
    elif isinstance(made, gym.Env) and any(_are_coroutines(made)):
        return Awaited(made)
    return made
