"""``Sessions``: distribute the envs of a pool over coroutines.

One task, the receiver, waits for results as ``pool.recv_async`` does, and sets the futures that
the coroutines await. It also stops requests that take too long: a timer would lose an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol, TypeAlias

from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from typing_extensions import Self

from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.errors import EnvError
from envpool_py.options import check_timeout
from envpool_py.sessions.outcomes import Outcome, Outcomes
from envpool_py.worker import supervisor

#: (observation, reward, terminated, truncated, info)
Row: TypeAlias = "tuple[Any, Any, bool, bool, dict[str, Any]]"
Errors: TypeAlias = dict[int, EnvError]


class Calls(Protocol):
    """Requests to single envs of a pool.

    ``prepare``: whether an env can be reset now; if not, its next row says so. ``check``: raise if
    it cannot be stepped. ``stop``: cancel a request; its error if it has not done this ``fact`` in
    time. ``kill``: only what goes on although it was cancelled. ``poll``: the seconds until the
    next poll, the rows and errors that have arrived, the errors of envs that are being recreated.
    """

    num_envs: int
    steps_here: bool

    def listening(self, loop: Any, event: Any) -> AbstractContextManager[float]: ...
    def begin(self) -> None: ...
    def end(self, ids: Collection[int]) -> None: ...
    def prepare(self, i: int) -> bool: ...
    def check(self, i: int) -> None: ...
    def send_step(self, i: int, action: Any) -> None: ...
    def send_reset(self, i: int, **given: Any) -> None: ...
    def stop(self, i: int, fact: str = "", *, kill: bool = False) -> EnvError | None: ...
    def poll(
        self, task: Any
    ) -> tuple[float, list[tuple[list[int], StepResult]], Errors, Errors]: ...


class Session:
    """One episode of one env, for one coroutine; see ``Sessions.open``.

    Attributes:
        env_id: the env.
        obs: the last observation.
        info: the last info.
        done: whether the episode is over.
        episode_return: the sum of the rewards.
    """

    def __init__(self, sessions: Sessions, timeout: float | None, **reset: Any) -> None:
        self._sessions, self._timeout, self._reset = sessions, timeout, reset
        self._refusal = "use it in `async with`"
        self._entered, self.done, self.episode_return = False, False, 0.0

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("session: it was used in `async with` before; open another session")
        self._entered = True
        self.env_id = await self._sessions.take()
        try:
            self._sessions.send(self.env_id, "reset", self._timeout, self._reset)
            row = await self._sessions.result(self.env_id)
        except BaseException:
            self._sessions.put_back(self.env_id)
            raise
        self.obs, self.info, self._refusal = row[0], row[4], ""
        return self

    async def __aexit__(self, *_: object) -> None:
        self._refusal = "its `async with` block has ended"
        self._sessions.put_back(self.env_id)

    async def step(self, action: Any, *, timeout: float | None = None) -> Row:
        """Step the env and return its row: observation, reward, two flags, info with ``env_id``.

        ``timeout``: seconds after which the step is stopped, and raises ``EnvTimeoutError``.

        Raises:
            EnvError: the env raised, or took too long, or its process has ended. The session is
                then over, and so it is if this call is cancelled.
            ResetNeeded: the session is over.
            TypeError, ValueError: the action or the timeout is wrong; nothing was sent.
        """
        if self._refusal:
            raise ResetNeeded(f"session: {self._refusal}; open another session")
        self._sessions.send(self.env_id, "step", timeout, action)
        self._refusal = "its last step has not ended, has raised, or was cancelled"
        row = await self._sessions.result(self.env_id)
        self.obs, reward, terminated, truncated, self.info = row
        self.episode_return = self.episode_return + reward
        self.done = terminated or truncated
        self._refusal = "its episode is over" if self.done else ""
        return row


class Sessions:
    """The sessions of a pool, in ``async with pool.sessions() as sessions``.

    At the end of the block requests are cancelled, and coroutines that still wait get a
    ``ClosedEnvironmentError``.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls, self._free = calls, deque(range(calls.num_envs))
        self._waiters: deque[asyncio.Future[int]] = deque()
        self._pending: dict[int, asyncio.Future[Row]] = {}
        # Envs that cannot be reset yet: a request was cancelled, or they are being recreated.
        self._settling: set[int] = set()
        # When to stop a request, and what it has not done then; "": it was cancelled before.
        self._deadlines: dict[int, tuple[float, str]] = {}
        self._wakes_at = 0.0  # when the receiver looks again, if nothing happens
        self._error: Exception | None = RuntimeError("use `async with pool.sessions()`")
        self._entered = False

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("sessions: used in `async with` before; call pool.sessions() again")
        self._calls.begin()
        self._entered = True
        self._loop, self._event, self._error = asyncio.get_running_loop(), asyncio.Event(), None
        self._receiver = self._loop.create_task(self._receive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end(ClosedEnvironmentError("the `async with` block of the sessions has ended"))
        self._receiver.cancel()
        await asyncio.wait([self._receiver])

    def open(
        self, *, seed: int | None = None, options: Any = None, timeout: float | None = None
    ) -> Session:
        """Return a session, for ``async with``: it waits for a free env and resets it.

        Seed and options are for that reset, which may take ``timeout`` seconds. The first free env
        is for the session that has waited longest.
        """
        return Session(self, timeout, seed=seed, options=options)

    async def map(
        self,
        conversation: Callable[[Any], Awaitable[Any]],
        tasks: Iterable[Any],
        *,
        on_failure: str = "raise",
    ) -> Outcomes:
        """Await ``conversation(task)`` for all tasks and return their outcomes, in order.

        Twice as many conversations as envs run at a time.

        Args:
            conversation: an ``async def`` function that opens a session.
            tasks: one argument for each conversation; may be a generator.
            on_failure: ``"record"``: an exception is the outcome of its task. ``"raise"``: it is
                raised, with the outcomes so far as ``finished``; other conversations are cancelled.
        """
        if on_failure not in ("raise", "record"):
            raise ValueError(f"on_failure must be 'raise' or 'record', got {on_failure!r}")
        found: dict[int, Outcome] = {}
        running: dict[asyncio.Future[Any], tuple[int, Any]] = {}
        ended: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        left = enumerate(tasks)
        try:
            while True:
                for k, task in islice(left, 2 * self._calls.num_envs - len(running)):
                    each: asyncio.Future[Any] = asyncio.ensure_future(conversation(task))
                    each.add_done_callback(ended.put_nowait)
                    running[each] = k, task
                if not running:
                    return Outcomes(found[k] for k in sorted(found))
                done = await ended.get()
                k, task = running.pop(done)
                error = asyncio.CancelledError() if done.cancelled() else done.exception()
                if error is not None and on_failure == "raise":
                    with contextlib.suppress(AttributeError):  # of a class with slots
                        error.finished = Outcomes(found[k] for k in sorted(found))  # type: ignore[attr-defined]
                    raise error
                found[k] = Outcome(task, None if error else done.result(), error)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    # ------------------------------------------------------------------------------ for a session

    async def take(self) -> int:
        """Wait for a free env."""
        self._check(None)
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._waiters.append(waiter)
        self._distribute()
        try:
            return await waiter
        except asyncio.CancelledError:  # maybe in the turn in which it got an env
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self.put_back(waiter.result())
            raise

    def put_back(self, i: int) -> None:
        """Let another session have env ``i`` as soon as it can be reset."""
        if (pending := self._pending.get(i)) is not None:
            pending.cancel()
            self._cancelled(i, pending)
        if self._error is None and self._calls.prepare(i):
            self._free.append(i)
            self._distribute()
        elif self._error is None:
            self._settling.add(i)
            self._event.set()

    def send(self, i: int, kind: str, timeout: float | None, given: Any) -> None:
        """Send env ``i`` a step or a reset, whose ``result`` is to be awaited."""
        self._check(timeout)
        self._calls.check(i)
        if kind == "step":
            self._calls.send_step(i, given)
        else:
            self._calls.send_reset(i, **given)
        self._pending[i] = self._loop.create_future()
        due = math.inf
        if timeout is not None:
            fact = f"did not end its {kind} within timeout={timeout} seconds"
            due = self._loop.time() + timeout
            self._deadlines[i] = due, fact
        if due < self._wakes_at or self._calls.steps_here:
            self._event.set()

    async def result(self, i: int) -> Row:
        """Wait for the row of env ``i``; cancel the request if this call is cancelled."""
        pending = self._pending[i]
        try:
            return await pending
        except asyncio.CancelledError:
            self._cancelled(i, pending)
            raise
        except EnvError as error:
            raise error.with_traceback(None)  # noqa: B904 - a user needs no frames of this package

    def _cancelled(self, i: int, pending: asyncio.Future[Row]) -> None:
        if self._pending.get(i) is pending:
            del self._pending[i]
            self._calls.stop(i)
            self._deadlines[i] = self._loop.time() + supervisor.GRACE, ""
            self._event.set()
        elif pending.done() and not pending.cancelled():
            pending.exception()  # it came in the same turn, and nobody else asks for it

    def _check(self, timeout: float | None) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("sessions: they were opened in another event loop")
        if timeout is not None and check_timeout("timeout", timeout) and self._calls.steps_here:
            text = "timeout: the program itself steps envs of this pool, and cannot stop them"
            raise ValueError(f"{text}; use ThreadVectorEnv or ShmemVectorEnv")

    # ------------------------------------------------------------------------------- the receiver

    async def _receive(self) -> None:
        try:
            with self._calls.listening(self._loop, self._event) as longest:
                while True:
                    self._event.clear()
                    if (seconds := min(self._handle_results(), longest)) <= 0:
                        await asyncio.sleep(0)
                        continue
                    self._wakes_at = self._loop.time() + seconds
                    timer = self._loop.call_at(self._wakes_at, self._event.set)
                    await self._event.wait()
                    timer.cancel()
        except Exception as error:  # noqa: BLE001 - it is raised where a result is awaited
            self._end(error)
        finally:
            self._end(ClosedEnvironmentError("the event loop of the sessions has ended"))

    def _end(self, error: Exception) -> None:
        """Raise this error in all coroutines that wait, and in later calls."""
        if self._error is None:
            self._error = error
            waiting: list[asyncio.Future[Any]] = [*self._pending.values(), *self._waiters]
            ids, self._pending = [*self._pending], {}
            try:
                self._calls.end(ids)
            finally:
                for each in waiting:
                    if not each.done():
                        each.set_exception(error)

    def _handle_results(self) -> float:
        """Deliver results, stop what takes too long; return the seconds until the next call."""
        seconds, batches, errors, lost = self._calls.poll(self._receiver)
        found: dict[int, Any] = {**errors}
        for ids, (obs, *columns, infos) in batches:
            parts = [column if column.ndim > 1 else column.tolist() for column in columns]
            rest = zip(*parts, infos, strict=True)
            found |= {i: (spaces.take(obs, k), *next(rest)) for k, i in enumerate(ids)}
        for i, result in found.items():
            self._deadlines.pop(i, None)
            if not self._answer(i, result) and i in self._settling:
                self._settling.remove(i)
                self._free.append(i)
                waiters = [each for each in self._waiters if not each.done()]
                if isinstance(result, EnvError) and waiters:  # there may be no other env
                    waiters[0].set_exception(result)
        for i in lost.keys() & self._pending.keys():
            self._answer(i, lost[i])
        now = self._loop.time()
        for i, (due, fact) in list(self._deadlines.items()):
            if due <= now and (error := self._stop(i, fact)) is not None:
                self._answer(i, error)
        self._distribute()
        due = min(self._deadlines.values(), default=(math.inf, ""))[0]
        return 0.0 if self._event.is_set() else min(seconds, due - now)

    def _answer(self, i: int, result: Any) -> bool:
        """Set the result of the request of env ``i``, a row or an error; False: there is none."""
        pending = self._pending.pop(i, None)
        if pending is not None and not pending.done():  # else it was cancelled
            if isinstance(result, EnvError):
                pending.set_exception(result)
            else:
                pending.set_result(result)
        return pending is not None

    def _stop(self, i: int, fact: str) -> EnvError | None:
        """Stop a request that has not done this in time, or was cancelled and goes on."""
        del self._deadlines[i]
        error = self._calls.stop(i, fact, kill=not fact)
        if fact:
            self._deadlines[i] = self._loop.time() + supervisor.GRACE, ""
        self._event.set()
        return error

    def _distribute(self) -> None:
        """Give free envs to those who wait, the first to the first; recreate what was lost."""
        while self._waiters and self._free:
            if self._waiters[0].done():
                self._waiters.popleft()
            elif self._calls.prepare(i := self._free.popleft()):
                self._waiters.popleft().set_result(i)
            else:
                self._settling.add(i)
                self._event.set()
