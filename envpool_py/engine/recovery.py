"""Envs that fail, and envs that are recreated: by ``on_error="restart"`` or by ``pool.restart``.

The story of a failure, in the order of this file:

1. The process of an env ends, or an env raises in place of its row: ``handle`` decides whether to
   raise the error or to keep a ``Failed`` until it is reported. Other envs of the process fail too.
2. In place of a lost step recovery sends the request ``lose``, whose row the executor of the new
   env writes: truncated, with the last observation. A reset that failed is sent again. An env that
   was lost while idle is sent such a request when the caller sends it the next one.
3. ``run_jobs``, called whenever the engine waits for rows, restarts the process of an env when its
   back-off is over, and then sends its request, before which the executor gets options and
   position.
4. The row is returned as any other row, and ``returned`` drops the record.

So every env that failed is reported once, with ``info["env_error"]``, unless ``pool.restart``
recreates it before. An env that waits for its back-off is in flight or idle like any other, and
delays no other env.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envpool_py.engine.engine import Engine
from envpool_py.engine.env_method_calls import Call, ask
from envpool_py.engine.states import DEAD, LOST, RESETTING, STEPPING
from envpool_py.env import spaces
from envpool_py.env.request import Request
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, env_error, name_ids
from envpool_py.options import NEXT_STEP
from envpool_py.worker import supervisor
from envpool_py.worker.process_host import ProcessHost

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 5.0

_LOGGER = logging.getLogger("envpool_py")
# Between the text of the first failure and that of a later one, in the error of one row.
_THEN = "\n\nthen: "
# Any process that is not in a step answers it at once.
_PING = Request("apply", (id,))


@dataclass
class Failed:
    """An env that failed.

    Attributes:
        error: the error of the env.
        due: the time at which it may be recreated, of ``time.monotonic``.
        request: the request in flight, which reports the error; None: the env is idle.
        broken: the env is not recreated yet, so the request was not sent.
    """

    error: EnvError
    due: float
    request: Request | None
    broken: bool = True


class Recovery:
    """Handles the errors of envs.

    Attributes:
        enabled: whether ``on_error="restart"``; else errors are raised.
        failed: the envs whose errors are not reported yet.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._flight, self._hosts, self._states = engine.flight, engine.hosts, engine.states
        self._supervisor: Any = engine.hosts.supervisor  # None without processes
        self._options = engine.options.recovery
        self._autoreset = engine.options.env.autoreset_mode
        self.enabled = self._options.on_error == "restart"
        # The failures of each env since it last completed an episode.
        self._failures = [0] * engine.hosts.num_envs
        self._logged = 0
        # The resets in flight that the caller asked for, which are sent again if they fail.
        self._resets: dict[int, Request] = {}
        # The envs that a restarted process has made, and that are not configured yet.
        self._new: set[int] = set()
        self.failed: dict[int, Failed] = {}
        if self.enabled:
            engine.batches.keep_last()

    def handle(self, i: int, error: EnvError, *, in_flight: bool) -> bool:
        """Handle the error of env ``i``; False if it must be raised."""
        known = self.failed.get(i)
        if not self.enabled:
            return False
        if known is not None and known.broken:  # its process has ended, too
            if known.request is not None or not in_flight:
                return True
            due = known.due
        else:
            if known is not None and error.request == "env_fn":
                self._hosts.restarts[i] -= 1
            counted = self._count_failure(i, error)
            if counted is None:
                return False
            due = counted
        request = self._request_after(i, error) if in_flight else None
        if in_flight and self._flight.recorder is not None:
            self._flight.recorder.failed({i: error}, raised=False)
        # One assignment, because an interrupt must not leave a request in flight without an answer.
        self.failed[i] = Failed(error, due, request)
        return True

    def _count_failure(self, i: int, error: EnvError) -> float | None:
        """Return when env ``i`` may be recreated: at once after its first failure in a row.

        None if it has used all its restarts.
        """
        earlier, limit = self._failures[i], self._options.max_restarts
        # An env that never completed a reset has a bug in its code or its arguments.
        works = self._flight.positions.of(i)[0] >= 0
        if works and (limit is None or earlier < limit):
            self._failures[i] = earlier + 1
            delay = self._options.restart_backoff * 2.0 ** min(earlier - 1, 60) if earlier else 0.0
            return time.monotonic() + min(delay, LONGEST_BACKOFF)
        self.failed.pop(i, None)
        if works and limit:
            restarts = "1 restart" if limit == 1 else f"{limit} restarts"
            fact = f" failed again after {restarts} (max_restarts={limit}): "
            if fact not in error.message:  # it may be the second time that it is handled
                error.message = error.message.replace(": ", fact, 1)
        return None

    def _request_after(self, i: int, error: EnvError) -> Request:
        """Return the request in place of the one in which env ``i`` failed."""
        known, text = self.failed.get(i), error.text
        if known is not None and known.request is not None:  # that failed, too
            first = known.request.error.partition(_THEN)[0]
            return known.request._replace(error=f"{first}{_THEN}{error.message}")
        if i in self._resets:
            return self._resets[i]._replace(error=text)
        # In next_step mode after the end of an episode, no step is lost.
        if self._autoreset == NEXT_STEP and self._flight.positions.of(i)[1]:
            return Request("reset", error=text)
        return Request("lose", (self._engine.batches.last_obs(i),), error=text)

    def take_steps(self, envs: Selection, actions: Any) -> tuple[Selection, Any]:
        """Send other requests to envs that were lost while idle; return the rest of the steps."""
        listed = envs.ids.tolist()
        lost = {i: self._request_after(i, self.failed[i].error) for i in listed if i in self.failed}
        if not lost:
            return envs, actions
        rows = spaces.list_actions(self._engine.block.spec.action, actions, listed)
        return self._send_lost(envs, STEPPING, lost, rows)

    def take_resets(
        self, envs: Selection, requests: Sequence[Request]
    ) -> tuple[Selection, Sequence[Request]]:
        """Send the resets of envs that have failed, with their errors; return the others."""
        if not self.enabled:
            return envs, requests
        reset_of = dict(zip(envs.ids.tolist(), requests, strict=True))
        failed = {i: each.error.text for i, each in self.failed.items() if i in reset_of}
        lost = {i: reset_of[i]._replace(error=text) for i, text in failed.items()}
        self._resets.update(reset_of | lost)
        return self._send_lost(envs, RESETTING, lost, requests) if lost else (envs, requests)

    def _send_lost(
        self, envs: Selection, state: int, lost: dict[int, Request], values: Sequence[Any]
    ) -> tuple[Selection, list[Any]]:
        """Send the requests ``lost``, now or when their envs are recreated; return the others."""
        self._states.mark_sent(Selection(np.array(list(lost))), state)
        for i, request in lost.items():
            self.failed[i].request = request
            if not self.failed[i].broken:
                self._flight.send_again(i, request)
        left = [k for k, i in enumerate(envs.ids.tolist()) if i not in lost]
        return Selection(envs.ids[left]), [values[k] for k in left]

    def cancelled(self, ids: Sequence[int]) -> None:
        """Drop the requests of these envs; an error is reported with the next one."""
        for i in ids:
            self._resets.pop(i, None)
            if i in self.failed:
                self.failed[i].request = None

    def run_jobs(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        for i, failed in list(self.failed.items()):
            if failed.request is None or not failed.broken or self._hosts.of(i).is_restarting:
                continue
            wait = max(failed.due - time.monotonic(), 0.0)
            if not wait:
                try:
                    self._recreate_failed(i)
                except EnvError as error:
                    self._flight.fail(i, error)
            left = wait if left is None else min(left, wait)
        return left

    def _recreate_failed(self, i: int) -> None:
        """Recreate env ``i``; if its process has ended, begin or finish a restart of the process.

        EnvError if that failed, and the env has used all its restarts.
        """
        failed, host = self.failed[i], self._hosts.of(i)
        try:
            if not host.is_dead or self._restart_process(host):
                self._recreate([i], wait=failed.request is None)
        except (EnvError, OSError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            if failure.env_id != i:
                text = f"env {i}: its process was not restarted: {failure.message}"
                failure = EnvError(text, (i,), "restart", failure.details)
            due = self._count_failure(i, failure)
            if due is None:
                if host.is_dead:
                    self._states.mark_dead(i, failure)
                raise failure  # noqa: B904 - it has its cause
            request = None if failed.request is None else self._request_after(i, failure)
            self.failed[i] = Failed(failure, due, request)

    def _restart_process(self, host: ProcessHost) -> bool:
        """Restart an ended process, unless that has begun; whether its envs are made.

        They are not configured yet. EnvError if an env_fn raised, or the process ended while it
        started; OSError if it does not start.
        """
        if not host.restart_begun:
            self._supervisor.restart(host)
        if host.is_restarting:
            return False
        host.restart_begun = False
        if host.exit is None and host.started and host.start_error is None:
            self._engine.batches.reader.forget(host.ids)
            self._new.update(host.ids)
            return True
        host.end()
        host.ended = True  # even if it does not end
        host.reap()
        host.ended = False  # the error of the restart is reported
        for i in () if self.enabled else host.ids:
            self._states.mark_dead(i, host.death_of(i))
        raise host.start_error or host.death_of(host.ids[0])

    def _recreate(self, ids: Sequence[int], *, by_hand: bool = False, wait: bool = True) -> None:
        """Recreate these envs, unless their new process has made them, and configure them.

        By hand they must be reset; else the steps of idle ones are sent as ``lose``. Without
        ``wait``, their requests in flight are sent, before which they are recreated.
        """
        restarts, positions = self._hosts.restarts, self._flight.positions
        restarts[ids] += 1
        requests = [self._configuring(i, recreate=i not in self._new) for i in ids]
        try:
            if wait:
                ask(self._engine, np.array(ids, dtype=np.intp), requests, observed=False)
        except BaseException:
            restarts[ids] -= 1
            raise
        self._new.difference_update(ids)
        if self._flight.recorder is not None:
            self._flight.recorder.recreated(ids, requests)
        for i, request in zip(ids, requests, strict=True):
            positions.mark_recreated(i)
            if by_hand or self._states.state[i] == DEAD:
                self._states.mark_recreated(i)
            if by_hand:
                self._failures[i] = 0
            failed = self.failed.get(i)
            if failed is None:
                continue
            failed.broken = False
            if wait:  # else when the row is there: its env_fn may fail
                self._log(i, failed.error)
            if self._options.on_restart is not None:
                self._options.on_restart(i, failed.error)
            if failed.request is not None:
                failed.request = failed.request._replace(before=None if wait else request)
                self._flight.send_again(i, failed.request)
            elif by_hand:
                del self.failed[i]

    def configure(self, ids: Sequence[int], **changes: Any) -> None:
        """Send these envs the options of the pool and their positions, and wait for the replies."""
        requests = [self._configuring(i, **changes) for i in ids]
        ask(self._engine, np.array(ids, dtype=np.intp), requests, observed=False)

    def _configuring(self, i: int, **changes: Any) -> Request:
        """Return the request that tells env ``i`` the options of the pool and where it goes on."""
        positions = self._flight.positions
        episode, over = positions.of(i)
        facts = {"root": positions.root_of(i), "episode": episode, "over": over}
        facts |= {"env_id": i, "restarts": int(self._hosts.restarts[i])}
        return Request("configure", (self._engine.options.env,), facts | changes)

    def _log(self, i: int, error: EnvError) -> None:
        """Log the first three restarts of the pool, then every 10th, from 100 on every 100th."""
        self._logged = total = self._logged + 1
        if total <= 3 or (total >= 10 and total % 10 ** (len(str(total)) - 1) == 0):
            cause = error.message.partition("\n")[0].partition(": ")[2]
            text = "env %d restarted (restart %d of this env, %d of the pool): %s"
            _LOGGER.warning(text, i, self._hosts.restarts[i], total, cause)

    def returned(self, ids: IdArray, completed: Collection[int]) -> None:
        """Update the records after rows were returned; some of them have ended an episode."""
        for i in completed:
            if i not in self.failed:
                self._failures[i] = 0
        for i in ids.tolist() if self._resets or self.failed else ():
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None and failed.request is not None:
                if failed.request.before is not None:
                    self._log(i, failed.error)
                if failed.request.kind == "lose" and self._autoreset is None:
                    self._states.state[i] = LOST
                del self.failed[i]

    def mend(self, ids: IdArray) -> None:
        """Recreate those of these envs that have failed; EnvError: one used its restarts."""
        for i in ids.tolist() if self.failed else ():
            while i in self.failed and self.failed[i].broken:
                self._hosts.closing.wait(max(self.failed[i].due - time.monotonic(), 0.0))
                self._flight.refuse_if_closed()
                self._recreate_failed(i)
                if self._hosts.of(i).is_restarting:
                    self._notice_ends(wait=True)

    def revive(self, ids: IdArray) -> None:
        """Restart the processes of these envs that ended; ``run_jobs`` restarts no DEAD env."""
        self._notice_ends()
        dead = ids[self._states.state[ids] == DEAD]
        if len(dead):
            self.restart(dead)

    def restart(self, ids: IdArray) -> None:
        """Recreate these envs, and all other envs of their processes that have ended.

        EnvError if an env_fn raised, or a process ended while it started.
        """
        hosts, states = self._hosts, self._states
        self._notice_ends()
        living = hosts.living(ids)
        # After an interrupt an env may be DEAD although its process was restarted.
        states.check_free(living[states.state[living] != DEAD])
        self._end_hung(living)
        living = hosts.living(ids)
        states.mark_cancelled(living)  # in case of an interrupt
        dead = {hosts.of(i) for i in ids.tolist() if hosts.of(i).is_dead}
        while dead:
            for host in dead.copy():
                if self._restart_process(host):
                    self._recreate(host.ids, by_hand=True)
                    dead.remove(host)
            if dead:
                self._notice_ends(wait=True)
        if len(living):
            self._recreate(living.tolist(), by_hand=True)

    def swap(self, ids: IdArray, env_fns: Sequence[Callable[[], Any]]) -> None:
        """Put other envs, with the same spaces, in the places of these.

        If it raises EnvError, because an env_fn did or spaces differ, all envs go on as they were.
        """
        hosts = self._hosts
        self._notice_ends()
        fn_of = dict(zip(ids.tolist(), env_fns, strict=True))
        ended = [i for i in fn_of if hosts.of(i).is_dead]
        if ended:
            self._start_others({i: fn_of[i] for i in ended})
            ids = np.setdiff1d(ids, ended)
            env_fns = [fn_of[i] for i in ids.tolist()]
        self._states.check_free(ids)
        self._end_hung(ids)
        try:
            ask(self._engine, ids, [Request("env_fn", (env_fn,)) for env_fn in env_fns])
        except EnvError:
            living = hosts.living(ids)
            requests = [Request("env_fn", (None,))] * len(living)
            ask(self._engine, living, requests, observed=False)
            raise
        self._recreate(ids.tolist(), by_hand=True)
        for i, env_fn in zip(ids.tolist(), env_fns, strict=True):
            if self._supervisor is not None and hosts.of(i) in self._supervisor.hosts:
                self._supervisor.set_env_fn(hosts.of(i), i, env_fn)

    def _start_others(self, fn_of: dict[int, Callable[[], Any]]) -> None:
        """Restart the processes of these envs, which have ended, with other envs; see ``swap``."""
        hosts, recorder = self._hosts, self._flight.recorder
        before = {host: host.env_fns.copy() for host in map(hosts.of, fn_of)}
        try:
            for i, env_fn in fn_of.items():
                self._supervisor.set_env_fn(hosts.of(i), i, env_fn)
            requests = [Request("env_fn", (env_fn,)) for env_fn in fn_of.values()]
            if recorder is not None and (note := recorder.asks(list(fn_of), requests)):
                note(())
            self.restart(np.array(list(fn_of)))
            for i in fn_of:
                self._check_spaces(i)
        except BaseException:
            for host, old_fns in before.items():
                host.env_fns = old_fns
            raise

    def _check_spaces(self, i: int) -> None:
        """Raise an EnvError, and kill the process, if new env ``i`` has other spaces."""
        made, old = self._hosts.of(i).spaces[i], self._engine.env_spaces[i]
        if made != old:
            self._hosts.of(i).end(f"was killed: the new env {i} has other spaces")
            text = f"its spaces are {made[:2]}, but the env in its place has {old[:2]}"
            raise env_error(ValueError(text), i, "env_fn")

    def _notice_ends(self, *, wait: bool = False) -> None:
        """Handle processes that have ended; ``wait`` for the next event of a process."""
        if self._supervisor is not None:
            self._flight.refuse_if_closed()
            left = self._supervisor.timeout(None) if wait else 0
            self._supervisor.poller.fetch(self._engine.arrivals.chunks, 0, left)
            self._flight.handle_ended_processes()
            self._engine.arrivals.drop_stale()

    def _end_hung(self, ids: IdArray) -> None:
        """Kill the processes of these envs that do not answer: they carry out a cancelled step.

        A process that steps an env in flight is only late: it is waited for.
        """
        hosts = self._hosts
        while self._supervisor is not None and len(ids):
            call = Call(self._engine, ids, [_PING] * len(ids), observed=False)
            try:
                call.send()
                call.wait(supervisor.GRACE)
            except TimeoutError:
                in_flight = self._states.in_flight()
                hung = [i for i in sorted(call.missing) if not in_flight[hosts.of(i).ids].any()]
                for host in {hosts.of(i) for i in hung}:
                    text = name_ids([i for i in hung if i in host.ids])
                    host.end(f"{text} did not answer after a request was cancelled")
                    if not host.ended:
                        fact = f"{text}: its process does not end"
                        raise EnvError(fact, hung, "restart") from None
                self._flight.handle_ended_processes()
            except EnvError:
                pass  # a process has ended: it is restarted
            else:
                return
            finally:
                call.cancel()
            ids = hosts.living(ids)
