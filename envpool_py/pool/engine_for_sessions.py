"""``EngineForSessions``: what the sessions of a pool ask of its engine, without a wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError

from envpool_py.engine.env_states import STEPPING
from envpool_py.engine.failed import backoff
from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.env_ids import Selection
from envpool_py.errors import EnvError, EnvTimeoutError
from envpool_py.pool import arguments, call_guard, recv_async
from envpool_py.threads.thread_host import ThreadHost
from envpool_py.worker.host import Life, RemoteHost

if TYPE_CHECKING:
    from envpool_py.engine.engine import Errors
    from envpool_py.sessions.sessions import Sessions

# In place of ``watchdog.STACK_QUIET``: the event loop waits while a stuck process writes its stack.
_STACK_QUIET = 5e-3


@call_guard.one_at_a_time
def sessions(self: Any) -> Sessions:
    """Return ``Sessions``, for ``async with``: each coroutine steps one env.

    Meanwhile the pool refuses all other calls but ``close``.
    """
    from envpool_py.sessions import Sessions  # noqa: PLC0415 - asyncio takes 30 ms

    if self.autoreset_mode is not None:
        raise ValueError("sessions: they reset the envs; make the pool with autoreset_mode=None")
    return Sessions(EngineForSessions(self))


class EngineForSessions:
    """Requests to single envs, and their results, for ``Sessions``.

    ``is_over``: whether the episode of an env has ended, for all its agents. ``begin``: with a
    future that is never done, so that ``recv_async`` is refused. ``prepare``: whether an env can be
    reset now; if not, its next row says so. ``backoff``: for how long it rests after so many resets
    that failed. ``check``: raise if it cannot be stepped. ``stop``: cancel a request; its error if
    it has not done this ``fact`` in time, after ``request_stacks`` for all such envs together.
    ``kill``: only what goes on although it was cancelled. ``poll``: the seconds until the next
    poll, the rows that have arrived, or the errors in place of them, and the errors of envs that
    are being recreated.

    In the place of the frame of a call, it lets the pool refuse other calls.
    """

    refusal = "its sessions are open, and they alone step its envs"
    frame: Any = None  # of ``poll``

    def __init__(self, pool: Any) -> None:
        self._pool, self._engine, self.num_envs = pool, pool.engine, pool.env_num
        self._recovery, self._flight = pool.engine.recovery, pool.engine.flight
        self._selections = [Selection(np.array([i])) for i in range(pool.env_num)]
        self.is_over: Callable[[int], bool] = pool._inner.is_over
        self.steps_here = bool(pool.engine.hosts.local)
        action = pool.engine.block.spec.action
        self._takes_arrays = spaces.is_leaf(action) and action.dtype is not None

    def listening(self, loop: Any, look: Callable[[], object]) -> AbstractContextManager[float]:
        return recv_async.listening(self._engine.hosts, loop, look)

    def begin(self, waiter: Any) -> None:
        self._pool._assert_open()  # noqa: SLF001
        if self._flight.states.num_in_flight:
            text = f"sessions: envs {self._pool.waiting_id} are in flight; call drain() or cancel()"
            raise AlreadyPendingCallError(text, "sessions")
        if self._pool._under_way.setdefault("now", self) is not self:  # noqa: SLF001
            text = "sessions: others of this pool are open, or another call is under way"
            raise AlreadyPendingCallError(text, "sessions")
        self._flight.publish_early, self._flight.waiter = True, waiter
        self._recovery.begin_sessions()

    def end(self, in_flight: Collection[int]) -> None:
        try:
            if not self._pool.is_closed:
                for i in in_flight:
                    self.stop(i)
                self._flight.cancel(self._engine.all.ids)
                self._flight.publish_early = self._pool.is_async
                self._recovery.end_sessions()
        finally:
            self._flight.waiter = None
            self._pool._under_way.clear()  # noqa: SLF001

    def prepare(self, i: int) -> bool:
        states = self._flight.states
        if states.state[i] >= STEPPING:
            return False
        recovery = self._recovery
        if is_lost := i in states.dead or i in recovery.recreating or i in recovery.reports:
            recovery.renew(i)
        return not is_lost

    def backoff(self, failures: int) -> float:
        works = self._flight.positions.any_worked()
        return backoff(self._engine.options.recovery, failures - 1) if works else 0.0

    def check(self, i: int) -> None:
        self._pool._assert_open()  # noqa: SLF001
        if (error := self._recovery.error_of(i)) is not None:
            raise error.with_traceback(None)

    def send_step(self, i: int, action: Any) -> None:
        # An array is written into the block in a third of the time.
        is_array = self._takes_arrays and isinstance(action, (int, np.ndarray, np.generic))
        actions = np.asarray(action)[None] if is_array else [action]
        self._engine.send_steps(self._selections[i], actions)

    def send_reset(self, i: int, given: Mapping[str, Any]) -> None:
        lists = {name: None if value is None else [value] for name, value in given.items()}
        requests = arguments.reset_requests([i], kwargs={}, **lists)
        self._engine.send_resets(self._selections[i], requests)

    def request_stacks(self, ids: Collection[int]) -> None:
        hosts = {self._engine.hosts.of(i) for i in ids}
        remote = (host for host in hosts if isinstance(host, RemoteHost))
        running = [host for host in remote if host.life is Life.RUNNING]
        if running:
            running[0].request_stacks(running, _STACK_QUIET)

    def stop(self, i: int, fact: str = "", *, kill: bool = False) -> EnvError | None:
        host, spare = self._engine.hosts.of(i), True
        error = EnvTimeoutError(f"env {i}: {fact}", (i,)) if fact else None
        if kill and not (isinstance(host, ThreadHost) and host.runs_cancelled()):
            return None
        if isinstance(host, RemoteHost) and host.life is Life.RUNNING:
            running, thread = host.begun_env, int(host.heartbeat["thread"])
            if fact and running not in (None, i):
                fact += f": the same {host.name} steps env {running}"
            spare = isinstance(host, ThreadHost) and not kill and host.drops_cancelled()
            if spare:
                if fact and running is not None:  # ``flight.cancel`` cancels coroutines alone
                    line, details = host.stack_of(thread)
                    text = f"env {i}: {fact}{line}; its coroutine was cancelled"
                    error = EnvTimeoutError(text, (i,), details=details)
            elif fact:
                (error,) = host.kill_slow([i], thread, fact)
            else:
                host.kill(f"a request of env {i} was cancelled")
        self._flight.cancel(np.array([i]))
        self._recovery.count_and_renew(i, error, is_lost=not spare)
        return error

    def poll(self) -> tuple[float, dict[int, Any], Errors]:
        engine, flight = self._engine, self._flight
        batch: StepResult | None = None
        found: dict[int, Any] = {}
        self.frame = sys._getframe()  # noqa: SLF001
        try:
            has_arrived, seconds = flight.advance_nowait()
            if has_arrived and self.steps_here:
                seconds = 0.0
            if len(ids := flight.wait(0, None, None)):  # those that have arrived
                batch = engine.deliver(Selection(ids), resets=False, apart=found)
            if self._recovery.reports:  # begin with what has just failed, or go on after a reply
                seconds = self._recovery.recreate_due(seconds) or 0.0
        finally:
            self.frame = None
        if batch is not None:
            obs, reward, terminated, truncated, infos = batch
            rewards = reward if reward.ndim > 1 else reward.tolist()
            rest = zip(rewards, terminated.tolist(), truncated.tolist(), infos, strict=True)
            for k, i in enumerate(engine.batch_ids.tolist()):
                found[i] = spaces.take(obs, k), *next(rest)
        return seconds, found, self._recovery.errors()
