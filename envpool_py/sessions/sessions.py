"""``Sessions``: distribute the envs of a pool over coroutines.

``_poll`` sets the futures that the coroutines await to the results that have arrived, and stops
requests that take too long. The event loop calls it when results arrive, and at deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from typing_extensions import Self

from envpool_py import interrupts
from envpool_py.env_ids import Ids, resolve
from envpool_py.errors import EnvError
from envpool_py.options import NUMBER, check_number, check_timeout
from envpool_py.sessions.outcomes import Outcome, Outcomes, T, V
from envpool_py.worker import supervisor

#: (observation, reward, terminated, truncated, info)
Row: TypeAlias = "tuple[Any, float, bool, bool, dict[str, Any]]"
Conversation: TypeAlias = Callable[[T], Awaitable[V]]
Tasks: TypeAlias = Iterable[T] | AsyncIterable[T]


class Session:
    """One episode of one env, for one coroutine; see ``Sessions.open``.

    Attributes:
        env_id: the env.
        obs: the last observation.
        info: the last info.
        done: whether the episode is over.
        episode_return: the sum of the rewards.
    """

    env_id: int
    obs: Any
    info: dict[str, Any]
    done = False
    episode_return: float = 0.0
    _refusal = "open it by `async with`, or await it"
    _waiter: asyncio.Future[None] | None = None  # done: it has its env, until that is given back

    def __init__(self, sessions: Sessions, take: Any, timeout: float | None, **reset: Any) -> None:
        self._sessions, self._take_env = sessions, take
        self._reset_timeout, self._reset_arguments = timeout, reset

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = self._refusal or "it is one episode: open another session for the next one"
            raise AttributeError(f"session: it has no attribute {name!r}; {hint}")

    @property
    def _holds_env(self) -> bool:
        got = self._waiter
        return got is not None and got.done() and not (got.cancelled() or got.exception())

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        take, self._take_env = self._take_env, None
        if take is None:
            raise RuntimeError("session: it was opened before; open another session")
        try:
            await take(self)
            self._sessions._send(self.env_id, "reset", self._reset_timeout, self._reset_arguments)
            row = await self._sessions._result(self.env_id)
            self._sessions._failures[self.env_id] = 0
            self.obs, self.info, self._refusal = row[0], row[4], ""
            return self  # noqa: TRY300 - else an interrupt might come after this block
        except BaseException as error:
            self._give_back(has_failed=isinstance(error, EnvError))
            raise

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the next session have the env; further calls do nothing."""
        if self._holds_env:
            self._refusal = "it was closed, or its `async with` block has ended; open another one"
            self._give_back()

    def _give_back(self, *, has_failed: bool = False) -> None:
        held, self._waiter = self._holds_env, None
        if held:
            self._sessions._put_back(self.env_id, has_failed=has_failed)

    def __del__(self) -> None:
        # Maybe in another thread: it cannot be closed.
        if self._holds_env and self._sessions._ended_by is None:
            text = f"session: env {self.env_id} was taken until now; close(), or use `async with`"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

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
            raise ResetNeeded(f"session: {self._refusal}")
        self._sessions._send(self.env_id, "step", timeout, action)
        self._refusal = f"env {self.env_id} is in a step; await that first"
        try:
            row = await self._sessions._result(self.env_id)
        except BaseException:
            self._refusal = "its last step has raised, or was cancelled; open another session"
            raise
        self.obs, reward, terminated, truncated, self.info = row
        self.episode_return = self.episode_return + reward
        self.done = (terminated or truncated) and self._sessions._is_over(self.env_id)
        if self._holds_env:  # else it was closed in the turn in which its row arrived
            self._refusal = "its episode is over; open another session" if self.done else ""
        return row


class Sessions:
    """The sessions of a pool, in ``async with pool.sessions() as sessions``.

    At the end of the block requests are cancelled, and coroutines that still wait get a
    ``ClosedEnvironmentError``.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._is_over = engine, engine.is_over  # an ``EngineForSessions``
        # Until when each free env rests: else one that fails at once would take most of the tasks.
        self._free = dict.fromkeys(range(engine.num_envs), 0.0)
        # The same of envs that cannot be reset yet: a request was cancelled, or they are recreated.
        self._settling: dict[int, float] = {}
        # How many resets of each env have failed since one was completed.
        self._failures = [0] * engine.num_envs
        # Which session took each env last.
        self._takers: list[weakref.ref[Session] | None] = [None] * engine.num_envs
        # The sessions that wait for an env: for one of these, or any.
        self._waiters: dict[asyncio.Future[None], tuple[Session, tuple[int, ...] | None]] = {}
        self._awaited_rows: dict[int, asyncio.Future[Row]] = {}
        # When to stop a request, its kind and timeout; kind "": it was cancelled before.
        self._deadlines: dict[int, tuple[float, str, float]] = {}
        self._first_deadline = math.inf
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # of uvloop, a handle has no ``when``
        self._ended_by: Exception | None = RuntimeError("use `async with pool.sessions()`")

    async def __aenter__(self) -> Self:
        if hasattr(self, "_loop"):
            raise RuntimeError("sessions: used in `async with` before; call pool.sessions() again")
        loop = asyncio.get_running_loop()
        self._engine.begin(loop.create_future())
        self._loop, self._ended_by = loop, None
        self._receiver = loop.create_task(self._receive())
        self._receiver.add_done_callback(self._end_with_loop)  # also if it was not begun
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end_with(ClosedEnvironmentError("the `async with` block of the sessions has ended"))
        self._receiver.cancel()
        await asyncio.wait([self._receiver])

    def open(
        self,
        *,
        seed: int | None = None,
        options: Any = None,
        timeout: float | None = None,
        wait: float | None = None,
        env_ids: Ids = None,
    ) -> Session:
        """Return a session, for ``async with``: it waits for a free env and resets it.

        Without a block: ``session = await sessions.open()``, and later ``session.close()``.

        Args:
            seed: for the reset, as ``options``.
            options: for the reset.
            timeout: seconds that the reset may take.
            wait: seconds to wait for a free env; 0: do not wait. None: no limit. The session that
                has waited longest gets the next free env.
            env_ids: take one of these envs. None: any.

        Raises:
            TimeoutError: when awaited: no env was free within ``wait`` seconds.
            EnvError: when awaited: the reset failed.
        """
        if wait is not None:
            check_number("wait must be seconds or None", wait, NUMBER)
            if not wait >= 0:
                raise ValueError(f"wait must be 0 or more, got {wait}")
        ids = None if env_ids is None else tuple(resolve(env_ids, self._engine.num_envs).tolist())
        if ids == ():
            raise ValueError("env_ids is empty; a session takes one of them")
        return Session(
            self, partial(self._take_env, ids, wait), timeout, seed=seed, options=options
        )

    async def stream(
        self, conversation: Conversation[T, V], tasks: Tasks[T]
    ) -> AsyncGenerator[Outcome[T, V], None]:
        """Yield the outcome of ``conversation(task)`` for each task, as soon as it has ended.

        Twice as many conversations as envs run at a time. Conversations are cancelled when the
        generator is closed: write ``async with contextlib.aclosing(...)`` if you leave the loop
        before its end. What ``tasks`` raises is raised after the outcomes of the tasks before.

        Args:
            conversation: an ``async def`` function that opens a session.
            tasks: one argument for each conversation; may be a generator, also an async one.
        """
        async with contextlib.aclosing(self._outcomes(conversation, tasks)) as outcomes:
            async for _, outcome in outcomes:
                yield outcome

    async def map(
        self,
        conversation: Conversation[T, V],
        tasks: Tasks[T],
        *,
        on_failure: Literal["raise", "record"] = "raise",
    ) -> Outcomes[T, V]:
        """Return the outcomes of ``stream``, in the order of the tasks.

        Whatever it raises, a cancellation too, has the ``Outcomes`` so far as ``finished``.

        Args:
            conversation: as in ``stream``.
            tasks: as in ``stream``.
            on_failure: ``"record"``: an exception is the outcome of its task. ``"raise"``: it is
                raised, and other conversations are cancelled.
        """
        if on_failure not in ("raise", "record"):
            raise ValueError(f"on_failure must be 'raise' or 'record', got {on_failure!r}")
        found: dict[int, Outcome[T, V]] = {}
        try:
            async with contextlib.aclosing(self._outcomes(conversation, tasks)) as outcomes:
                async for k, outcome in outcomes:
                    if outcome.error is not None and on_failure == "raise":
                        with contextlib.suppress(Exception):  # Python 3.10 has no notes
                            outcome.error.add_note(f"its task was {outcome.task!r:.200}")
                        raise outcome.error  # noqa: TRY301 - it gets its outcomes below
                    found[k] = outcome
        except BaseException as error:
            with contextlib.suppress(Exception):  # of a class with slots, or its own rule
                error.finished = Outcomes(found[k] for k in sorted(found))  # type: ignore[attr-defined]
            raise
        return Outcomes(found[k] for k in sorted(found))

    async def _outcomes(
        self, conversation: Conversation[T, V], tasks: Tasks[T]
    ) -> AsyncGenerator[tuple[int, Outcome[T, V]], None]:
        """Yield the outcomes as they end, each with the number of its task."""
        self._check_call(None)
        running: dict[asyncio.Task[V], tuple[int, T]] = {}
        ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        room, numbers = asyncio.Semaphore(2 * self._engine.num_envs), count()

        async def converse(task: T) -> V:
            found = conversation(task)  # here, because a plain function raises at once
            if not isinstance(found, Awaitable):
                text = "conversation must be an `async def` function"
                raise TypeError(f"{text}; it returned {found!r:.80}")
            return await found

        async def begin(task: T) -> None:
            if self._ended_by is not None:  # else all tasks would be used up in vain
                text = "sessions: they have ended, so no other task is begun"
                raise ClosedEnvironmentError(text) from self._ended_by
            each = self._loop.create_task(converse(task))
            each.add_done_callback(ended.put_nowait)
            running[each] = next(numbers), task
            await room.acquire()  # before the next task is taken

        async def begin_all() -> None:
            await room.acquire()
            if isinstance(tasks, AsyncIterable):
                async for task in tasks:
                    await begin(task)
            else:
                for task in tasks:
                    await begin(task)

        beginner = self._loop.create_task(begin_all())
        beginner.add_done_callback(ended.put_nowait)
        try:
            while running or not beginner.done():
                if (done := await ended.get()) not in running:  # the beginner, or interrupted
                    continue
                k, task = running.pop(done)
                room.release()
                try:
                    error = done.exception()
                except asyncio.CancelledError as cancelled:
                    trace: Any = cancelled.__traceback__
                    error = cancelled.with_traceback(trace.tb_next)  # else it refers to this frame
                yield k, Outcome(task, done.result() if error is None else None, error)
        finally:
            for each in (beginner, *running):
                each.cancel()
            await asyncio.gather(beginner, *running, return_exceptions=True)
        beginner.result()

    # ------------------------------------------------------------------------------ for a session

    async def _take_env(
        self, ids: tuple[int, ...] | None, wait: float | None, session: Session
    ) -> None:
        """Wait until the session has a free env, one of ``ids`` if given."""
        self._check_call(None)
        session._waiter = waiter = self._loop.create_future()
        try:
            self._waiters[waiter] = session, ids
            self._distribute()
            if wait is not None:
                await asyncio.wait([waiter], timeout=wait)
                if not waiter.done():
                    num_envs = len(ids or self._failures)
                    text = f"none of {num_envs} envs was free within wait={wait} seconds"
                    raise TimeoutError(text)
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def _put_back(self, i: int, *, has_failed: bool = False) -> None:
        """Let another session have env ``i`` as soon as it can be reset, and has rested."""
        if (pending := self._awaited_rows.get(i)) is not None:
            self._cancel(i, pending)
            if not pending.done():  # else its task was cancelled in this turn
                pending.set_exception(ResetNeeded("session: it was closed during this step"))
        if self._ended_by is not None:
            return
        rests_until = self._count_failure(i) if has_failed else 0.0
        if self._engine.prepare(i):
            self._free[i] = rests_until
            self._distribute()
        else:
            self._settling[i] = rests_until
            self._poll_at(0.0)

    def _count_failure(self, i: int) -> float:
        """Count a reset of env ``i`` that has failed; return until when the env rests."""
        self._failures[i] += 1
        due: float = self._loop.time() + self._engine.backoff(self._failures[i])
        self._loop.call_at(due, self._distribute)
        return due

    def _send(self, i: int, kind: str, timeout: float | None, given: Any) -> None:
        """Send env ``i`` a step or a reset, whose ``result`` is to be awaited."""
        self._check_call(timeout)
        self._engine.check(i)
        self._awaited_rows[i] = pending = self._loop.create_future()
        try:
            (self._engine.send_step if kind == "step" else self._engine.send_reset)(i, given)
        except BaseException as error:
            if interrupts.is_interrupt(error):  # the env may have got it
                self._cancel(i, pending)
            self._awaited_rows.pop(i, None)
            raise
        if timeout is not None:
            self._set_deadline(i, timeout, kind)
        if self._engine.steps_here:
            self._poll_at(0.0)

    async def _result(self, i: int) -> Row:
        """Wait for the row of env ``i``; cancel the request if this call is cancelled."""
        pending = self._awaited_rows[i]
        try:
            return await pending
        except asyncio.CancelledError:
            self._cancel(i, pending)
            raise
        except EnvError as error:
            raise error.with_traceback(None)  # noqa: B904 - a user needs no frames of this package
        finally:
            del pending  # it has the error, whose traceback has this frame

    def _cancel(self, i: int, pending: asyncio.Future[Row]) -> None:
        if self._awaited_rows.get(i) is pending:
            with interrupts.deferred():
                del self._awaited_rows[i]
                self._engine.stop(i)
                self._set_deadline(i, supervisor.GRACE)
                self._poll_at(0.0)
        elif pending.done() and not pending.cancelled():
            pending.exception()  # it came in the same turn, and nobody else asks for it

    def _check_call(self, timeout: float | None) -> None:
        if self._ended_by is not None:
            raise self._ended_by.with_traceback(None)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("sessions: they were opened in another event loop")
        if timeout is not None and check_timeout("timeout", timeout) and self._engine.steps_here:
            text = "timeout: the program itself steps envs of this pool, and cannot stop them"
            raise ValueError(f"{text}; use ThreadVectorEnv or ShmemVectorEnv")

    # ------------------------------------------------------------------------------- the receiver

    async def _receive(self) -> None:
        try:
            with self._engine.listening(self._loop, self._poll) as self._longest_wait:
                while True:  # until it is cancelled; an error of a handler may have lost the timer
                    self._on_timer()
                    self._find_lost()
                    await asyncio.sleep(1.0)
        except Exception as error:  # noqa: BLE001 - it is raised where a result is awaited
            self._end_with(error)
        finally:
            self._end_with_loop()

    def _end_with_loop(self, _: object = None) -> None:
        self._end_with(ClosedEnvironmentError("the event loop of the sessions has ended"))

    def _poll(self) -> None:
        """Deliver what has arrived: in a callback, because a task would take one turn more."""
        try:
            if self._ended_by is None:
                self._poll_at(self._handle_results())
        except Exception as error:  # noqa: BLE001 - it is raised where a result is awaited
            self._end_with(error)

    def _poll_at(self, when: float) -> None:
        """Poll at this time at the latest; a timer that is earlier stays."""
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(when, self._on_timer), when

    def _on_timer(self) -> None:
        self._timer_at = math.inf
        self._poll()

    def _set_deadline(self, i: int, seconds: float, kind: str = "") -> None:
        due = self._loop.time() + seconds
        self._deadlines[i] = due, kind, seconds
        if due < self._first_deadline:  # else the timer is early enough
            self._first_deadline = due
            self._poll_at(due)

    def _end_with(self, error: Exception) -> None:
        """Raise this error in all coroutines that wait, and in later calls."""
        with interrupts.deferred():
            if self._ended_by is None:
                self._ended_by = error
                waiting: list[asyncio.Future[Any]] = [*self._awaited_rows.values(), *self._waiters]
                ids, self._awaited_rows = [*self._awaited_rows], {}
                try:
                    self._engine.end(ids)
                finally:
                    for each in waiting:
                        if not each.done():
                            each.set_exception(error)

    def _handle_results(self) -> float:
        """Deliver results, stop what takes too long; return the time of the next call."""
        seconds, found, lost = self._engine.poll()
        for i, result in found.items():
            self._deadlines.pop(i, None)
            if not self._set_result(i, result) and i in self._settling:
                rests_until = self._settling.pop(i)
                if isinstance(result, EnvError):  # it could not be recreated
                    rests_until = self._count_failure(i)
                    for waiter, (_, wanted) in self._waiters.items():  # there may be no other env
                        if not waiter.done() and (wanted is None or i in wanted):
                            waiter.set_exception(result)
                            break
                self._free[i] = rests_until
        for i, error in lost.items():
            if self._set_result(i, error):  # else the limit is that of a request that was cancelled
                self._deadlines.pop(i, None)
        now = self._loop.time()
        if now >= self._first_deadline:
            self._stop_late(now)
        self._distribute()
        return float(min(now + seconds, now + self._longest_wait, self._first_deadline))

    def _set_result(self, i: int, result: Any) -> bool:
        """Set the result of the request of env ``i``, a row or an error; False: there is none."""
        if (pending := self._awaited_rows.get(i)) is not None and not pending.done():
            (pending.set_exception if isinstance(result, EnvError) else pending.set_result)(result)
        return self._awaited_rows.pop(i, None) is not None

    def _stop_late(self, now: float) -> None:
        """Stop requests that have not ended in time, or were cancelled and go on."""
        late = {i: limit for i, limit in self._deadlines.items() if limit[0] <= now}
        self._engine.request_stacks([i for i, (_, kind, _) in late.items() if kind])
        for i, (_, kind, seconds) in late.items():
            fact = f"did not end its {kind} within timeout={seconds} seconds" if kind else ""
            del self._deadlines[i]
            error = self._engine.stop(i, fact, kill=not fact)
            if fact:
                self._set_deadline(i, supervisor.GRACE)
                self._set_result(i, error)
        self._first_deadline = min(self._deadlines.values(), default=(math.inf,))[0]
        self._poll_at(0.0)

    def _distribute(self) -> None:
        """Give free envs to those who wait, the first to the first; recreate what was lost."""
        in_vain: set[Any] = set()  # the ``ids`` of which none is free; others need not look
        for waiter, (session, ids) in list(self._waiters.items()) if self._free else ():
            if waiter.done() or ids in in_vain or session._waiter is not waiter:
                continue
            while (i := self._next_free(ids)) is not None:
                rests_until = self._free.pop(i)
                if self._engine.prepare(i):
                    self._takers[i], session.env_id = weakref.ref(session), i
                    waiter.set_result(None)
                    del self._waiters[waiter]
                    break
                self._settling[i] = rests_until
                self._poll_at(0.0)
            else:
                in_vain.add(ids)

    def _find_lost(self) -> None:
        """Put back the envs that nobody has.

        An error of a signal handler came in between, or a session is gone that was never closed.
        """
        for i, taker in enumerate(self._takers):
            session = None if taker is None else taker()
            is_held = session is not None and session._holds_env
            if not (is_held or i in self._free or i in self._settling):
                self._put_back(i)

    def _next_free(self, ids: tuple[int, ...] | None) -> int | None:
        """Return a free env that does not rest; if all of ``ids`` rest, the next of these."""
        free = self._free if ids is None else [i for i in ids if i in self._free]
        now = self._loop.time() + 1e-3  # the timers of uvloop count milliseconds
        found = next((i for i in free if self._free[i] <= now), None)
        if found is None and len(free) == len(ids or self._failures):
            found = min(free, key=self._free.__getitem__)
        return found
