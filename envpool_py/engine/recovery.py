"""Envs that fail, and envs that are recreated: by ``on_error="restart"`` or by ``pool.restart``.

The life of an env that failed is decided here and nowhere else. ``failed`` has a ``Failed`` for
each env that is to be recreated, or was recreated and whose error is not reported yet:

1. The process of an env ends, or an env raises in place of its row: ``handle`` asks ``policy``
   whether to raise the error or to recreate the env, and when.
2. The request in which it failed is replaced: a lost step by ``lost_step``, whose row the executor
   of the new env writes (truncated, with the last observation); a reset by itself. An env that
   failed while idle gets such a request when the caller sends it the next one.
3. ``run_jobs``, called whenever the engine waits for rows, restarts the process of an env when its
   back-off is over, and then sends its request, before which the executor recreates the env and
   gets options and position. ``recreate_idle`` does the same for envs without a request.
4. The row is returned as any other row, and ``returned`` drops the ``Failed``.

So every env that failed is reported once, with ``info["env_error"]``, unless ``pool.restart``
recreates it before. An env that waits for its back-off is in flight or idle like any other, and
delays no other env.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envpool_py import interrupts
from envpool_py.engine import policy
from envpool_py.engine.env_method_calls import Call, ask
from envpool_py.engine.flight import Flight
from envpool_py.engine.states import DEAD, RESETTING, RESTARTED, STEPPING
from envpool_py.env.executor import RecycleDue
from envpool_py.env.failures import env_error
from envpool_py.env.heartbeat import CLOSING
from envpool_py.env.request import Request
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError, name_ids, warn
from envpool_py.interrupts import ordinary
from envpool_py.options import NEXT_STEP, AllOptions
from envpool_py.worker.host import Life
from envpool_py.worker.process_host import SLOW_START, ProcessHost
from envpool_py.worker.supervisor import GRACE

_LOGGER = logging.getLogger("envpool_py")
# Between the text of the first failure and that of a later one, in the error of one row.
_THEN = "\n\nthen: "
# Any process that is not in a step answers it at once.
_PING = Request("ping")


@dataclass
class Failed:
    """An env that failed.

    Attributes:
        error: the error of the env.
        due: the time at which it may be recreated, of ``time.monotonic``.
        request: the request in flight, which reports the error; None: the env is idle.
        recreated: whether the env was recreated, or ``request`` was sent, which recreates it.
        by_hand: ``pool.restart`` recreates it: nothing is reported, and no failure tried again.
        told: whether ``on_restart`` was called.
        is_planned: it has not failed, but is to be recycled in a new process.
        closing: whether its process was asked to close it and to end.
    """

    error: EnvError
    due: float
    request: Request | None = None
    recreated: bool = False
    by_hand: bool = False
    told: bool = False
    is_planned: bool = False
    closing: bool = False

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the request in flight recreates the env."""
        return self.request is not None and self.request.before is not None


def warn_of_close(i: int, error: EnvError) -> None:
    """Warn that the ``close`` of env ``i`` has hung, or has ended its process."""
    cause = error.message.partition("\n")[0].partition(": ")[2]
    warn(f"env {i}: close: {cause}; the env is recreated", RuntimeWarning)


class Recovery:
    """Handles the errors of envs.

    Attributes:
        enabled: whether ``on_error="restart"``; else errors are raised.
        in_sessions: whether a reset that failed is not sent again: its session gets the error.
        tracks: whether to call ``note_resets`` and ``returned``.
        failed: the envs that are to be recreated, or whose errors are not reported yet.
    """

    def __init__(self, flight: Flight, options: AllOptions) -> None:
        self._flight, self._hosts, self._states = flight, flight.hosts, flight.states
        self._options, self._env_options = options.recovery, options.env
        processes = options.processes
        self._fresh, self._limit = processes.fresh_process, processes.step_timeout or SLOW_START
        self.enabled = self._options.on_error == "restart"
        self.tracks = self.enabled or self._fresh
        # The failures of each env since it last completed an episode.
        self._failures = [0] * flight.hosts.num_envs
        self._logged = 0
        self.in_sessions = False
        # The resets in flight that the caller asked for, which are sent again if they fail.
        self._resets: dict[int, Request] = {}
        # The envs of restarted processes that do not know options and position yet.
        self._unconfigured: set[int] = set()
        self.failed: dict[int, Failed] = {}
        if self.enabled:
            flight.batches.keep_last()

    # ------------------------------------------------------------------- an error, and its request

    def handle(self, i: int, error: EnvError, *, in_flight: bool) -> bool:
        """Handle the error of env ``i``; False if it must be raised.

        ``in_flight``: the env failed in its request in flight, which another one replaces.
        """
        known, cause = self.failed.get(i), error.__cause__
        if isinstance(cause, RecycleDue):
            if not in_flight:  # it was cancelled; the env's next reset finds it due again
                return True
            planned = Request("end_episode", cause.args) if cause.args else self._resets.get(i)
            self._flight.drop_result(i)
            again = planned or Request("reset")
            self.failed[i] = Failed(error, 0.0, again, is_planned=True, told=True)
            return True
        if known is not None and known.is_unconfirmed and self._ended_in_close(i):
            self._replace_process(i, known, error)
            return True
        waits = known is not None and not known.recreated
        if known is not None and waits and (known.request is not None or not in_flight):
            return True  # its process has ended, too
        if not self.enabled:
            self.failed.pop(i, None)  # it was recreated for sessions
            return False
        due: float | None
        if known is not None and waits:
            due = known.due
        else:
            if known is not None and known.is_unconfirmed and error.request == "env_fn":
                self._hosts.restarts[i] -= 1
            due = self._count(i, error, works=self._works(i))
        if due is None:
            return False
        request = None
        if in_flight:
            request = self._request_after(i, error)
            if self._flight.recorder is not None:
                self._flight.recorder.failed({i: error}, raised=False)
            self._flight.drop_result(i)
        self.failed[i] = Failed(error, due, request)
        return True

    def _ended_in_close(self, i: int) -> bool:
        """Whether the process of env ``i`` has ended, or was killed, in the env's ``close``."""
        host, block = self._hosts.of(i), self._flight.block
        env, *_, phase = block.heartbeats[host.ids[0]].tolist()
        ended = isinstance(host, ProcessHost) and host.exit is not None
        return ended and abs(env) == i + 1 and phase == CLOSING

    def _replace_process(self, i: int, failed: Failed, error: EnvError) -> None:
        """Recreate env ``i`` in a new process, because its ``close`` has ended the old one."""
        if failed.is_unconfirmed and failed.request is not None:
            self._hosts.restarts[i] -= 1
            failed.request = failed.request._replace(before=None)
            self._flight.drop_result(i)
        failed.recreated = False
        warn_of_close(i, error)

    def _works(self, i: int) -> bool:
        """Whether an error of env ``i`` may be one of the moment: code and arguments may be right.

        So it is once any env has completed a reset, and while others are in their first one.
        """
        states, flight = self._states, self._flight
        others = (j for j, failures in enumerate(self._failures) if j != i and not failures)
        begun = (int(states.tokens[j]) for j in others if states.state[j] == RESETTING)
        return any(flight.block.positions) or any(token not in flight.errors for token in begun)

    def end_first_resets(self) -> dict[int, EnvError]:
        """Try none of the first resets again if no env works; return the errors of those in flight.

        For when an error is raised: the others have failed likewise, and wait to be tried again.
        """
        if any(self._flight.block.positions):
            return {}
        found = {i: each.error for i, each in self.failed.items() if each.request is not None}
        self._hosts.cancel(set(found))
        for i in found:
            del self.failed[i]
        return found

    def _count(self, i: int, error: EnvError, *, works: bool = True) -> float | None:
        """Count a failure of env ``i``; return when it is due, None if the error must be raised."""
        failures = self._failures[i]
        wait = policy.delay(self._options, failures, works=works)
        if wait is not None:
            self._failures[i] += 1
            return time.monotonic() + wait
        self.failed.pop(i, None)
        if works:
            error.message = policy.raised_message(self._options, failures, error.message)
        return None

    def _request_after(self, i: int, error: EnvError) -> Request:
        """Return the request in place of the one in which env ``i`` failed."""
        known = self.failed.get(i)
        has_failed = known is None or not (known.is_planned or known.by_hand)
        text = error.text if has_failed else ""
        if known is not None and known.request is not None:  # that failed, too
            first = known.request.error.partition(_THEN)[0]
            text = f"{first}{_THEN}{error.message}" if first else error.text
            return known.request._replace(error=text, before=None)
        if i in self._resets and not self.in_sessions:
            return self._resets[i]._replace(error=text)
        # In next_step mode after the end of an episode, no step is lost.
        if self._env_options.autoreset_mode == NEXT_STEP and self._flight.positions.of(i)[1]:
            return Request("reset", error=text)
        return Request("lost_step", (self._flight.batches.last_obs(i),), error=text)

    def note_resets(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Note the resets that are about to be sent."""
        if self.tracks:
            self._resets.update(zip(ids, requests, strict=True))

    def replacements(self, ids: Sequence[int]) -> dict[int, Request]:
        """Return the requests to send to those of these envs that failed while idle."""
        return {i: self._request_after(i, self.failed[i].error) for i in ids if i in self.failed}

    def send(self, state: int, requests: Mapping[int, Request]) -> None:
        """Send these requests to envs that failed, now or when they are recreated."""
        ids = np.array(list(requests), dtype=np.intp)
        with interrupts.deferred():
            try:
                self._states.mark_sent(Selection(ids), state)
                for i, request in requests.items():
                    self.failed[i].request = request
                    if self.failed[i].recreated:
                        self._flight.send_again(i, request)
            except BaseException:
                self._flight.cancel(ids)
                raise

    def cancelled(self, ids: Sequence[int], errors: Mapping[int, EnvError]) -> None:
        """Drop the requests of these envs; some had failed, see ``errors``.

        Such an error, or one that was not reported, is reported with the env's next row.
        """
        for i in ids:
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None:
                if failed.is_unconfirmed:
                    failed.recreated = False
                    self._hosts.restarts[i] -= 1
                failed.request = None
            if i in errors:
                self.handle(i, errors[i], in_flight=False)

    # ------------------------------------------------------------------------- recreating the envs

    def run_jobs(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        for i, failed in list(self.failed.items()):
            if failed.request is None:
                continue
            if not failed.recreated:
                with interrupts.deferred():
                    try:
                        wait = self._prepare(i, failed)
                        if not wait:
                            self._recreate_in_flight(i, failed, failed.request)
                    except EnvError as error:
                        self._flight.fail(i, error)
                        wait = 0.0
                left = wait if left is None else min(left, wait)
            self._tell(i)
        return left

    def recreate_idle(self, ids: Sequence[int]) -> None:
        """Recreate those of these envs that failed while idle, and wait until they are ready.

        EnvError if one has used its restarts, or by hand: did not come back.
        """
        while pending := [i for i in ids if i in self.failed and not self.failed[i].recreated]:
            waits = []
            for i in pending:
                with interrupts.deferred():
                    waits.append(self._prepare(i, self.failed[i]))
                if not waits[-1]:
                    try:
                        self._recreate([i])
                    except EnvError as error:
                        if interrupts.is_interrupt(error):
                            raise
                        if self._ended_in_close(i):
                            self._replace_process(i, self.failed[i], error)
                        else:
                            self._try_again(i, self.failed[i], error)
                    self._tell(i)
            if all(waits):
                self._await_events(min(waits))

    def _prepare(self, i: int, failed: Failed) -> float:
        """Restart the process of failed env ``i`` if it has ended.

        Return the seconds until the env can be recreated, infinity if its process makes it; 0: now.
        EnvError if its process did not come back, and the env has used its restarts.
        """
        host = self._hosts.of(i)
        if host.life is Life.STARTING:
            return math.inf
        if (wait := failed.due - time.monotonic()) > 0:
            return wait
        supervisor = self._hosts.supervisor
        if supervisor is None or not isinstance(host, ProcessHost):
            return 0.0
        if host.life is Life.RUNNING:
            if host.exit is not None:  # it was killed, and its end is not noticed yet
                return math.inf
            if not self._fresh or i in self._unconfigured:
                return 0.0
            host.close_env(self._limit)
            failed.closing = True
            return math.inf
        # ENDED: either its restart has failed, or it is to be restarted now.
        if failed.closing:
            failed.closing = False
            for error in host.errors_of_close():
                warn(f"{error.message}; the env is recreated in a new process", RuntimeWarning)
        if i in self._unconfigured:
            failure = host.error_of(i)
        else:
            try:
                self._unconfigured.update(host.ids)
                supervisor.restart(host)
            except (OSError, EnvError) as error:
                failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            else:
                return math.inf
        self._unconfigured.difference_update(host.ids)
        self._try_again(i, failed, failure)
        return max(self.failed[i].due - time.monotonic(), 1e-6)

    def _try_again(self, i: int, failed: Failed, failure: EnvError) -> None:
        """Count a failure to recreate env ``i``; raise it if the env is not to be tried again."""
        host = self._hosts.of(i)
        if not failed.by_hand:
            if failure.env_id != i:
                text = f"env {i}: its process was not restarted: {failure.message}"
                failure = EnvError(text, (i,), "restart", failure.details)
            if (due := self._count(i, failure)) is not None:
                request = None if failed.request is None else self._request_after(i, failure)
                self.failed[i] = Failed(failure, due, request)
                return
        mates = [j for j in host.ids if j in self.failed and self.failed[j].by_hand]
        for j in {i, *mates} if failed.by_hand else {i}:
            self.failed.pop(j, None)
            if isinstance(host, ProcessHost) and host.life is not Life.RUNNING:
                self._states.mark_dead(j, host.death_of(j) if failed.by_hand else failure)
        raise failure

    def _recreate_in_flight(self, i: int, failed: Failed, request: Request) -> None:
        """Send env ``i`` its request, before which it is recreated."""
        before = self._configuring(i, recreate=i not in self._unconfigured)
        self._note_recreated(i, before)
        failed.request = request._replace(before=before)
        self._flight.send_again(i, failed.request)
        failed.recreated = True

    def _recreate(self, ids: Sequence[int], *, by_hand: bool = False) -> None:
        """Recreate these idle envs, unless their new process has made them, and configure them."""
        requests = self.configure(ids, recreate=self._unconfigured.isdisjoint(ids))
        with interrupts.deferred():
            for i, request in zip(ids, requests, strict=True):
                self._note_recreated(i, request)
                failed = self.failed.get(i)
                if by_hand or failed is None or failed.by_hand:
                    self.failed.pop(i, None)
                    self._failures[i] = 0
                    self._states.mark_recreated(i)
                else:
                    failed.recreated = True
                    self._log(i, failed)

    def _note_recreated(self, i: int, request: Request) -> None:
        """Note that env ``i`` is recreated by this request, which configures it."""
        planned = i in self.failed and self.failed[i].is_planned
        self._hosts.restarts[i] += not planned
        self._unconfigured.discard(i)
        self._flight.batches.reader.forget([i])
        self._flight.positions.mark_recreated(i)
        if self._flight.recorder is not None:
            self._flight.recorder.recreated([i], [request])
        if self._states.state[i] == DEAD:
            self._states.mark_recreated(i)

    def _log(self, i: int, failed: Failed) -> None:
        """Log that env ``i`` was recreated, unless that has been logged often."""
        self._logged += 1
        restarts = int(self._hosts.restarts[i])
        if line := policy.log_line(i, restarts, self._logged, failed.error.message):
            with interrupts.suppressed():  # of a handler of the log
                _LOGGER.warning(line)

    def _tell(self, i: int) -> None:
        """Call ``on_restart`` if env ``i`` was just recreated: outside of all, as it may raise."""
        failed = self.failed.get(i)
        if failed is not None and failed.recreated and not failed.told:
            failed.told = True
            if self._options.on_restart is not None:
                self._options.on_restart(i, failed.error)

    def configure(self, ids: Sequence[int], **changes: object) -> list[Request]:
        """Send these envs the options of the pool and their positions, and wait for the replies."""
        requests = [self._configuring(i, **changes) for i in ids]
        ask(self._flight, np.array(ids, dtype=np.intp), requests, observed=False)
        return requests

    def _configuring(self, i: int, **changes: object) -> Request:
        """Return the request that tells env ``i`` the options of the pool and where it goes on."""
        positions = self._flight.positions
        episode, over = positions.of(i)
        planned = i in self.failed and self.failed[i].is_planned
        restarts = int(self._hosts.restarts[i]) + ("recreate" in changes and not planned)
        changes |= {"elsewhere": self._fresh, "is_new": planned} if self._fresh else {}
        facts = {"root": positions.root_of(i), "episode": episode, "over": over}
        facts |= {"env_id": i, "restarts": restarts}
        return Request("configure", (self._env_options,), facts | changes)

    def forget_failures(self, i: int) -> None:
        """Give env ``i`` its full budget again."""
        self._failures[i] = 0

    def returned(self, ids: IdArray, completed: Collection[int]) -> None:
        """Update the records after rows were returned; some of them have ended an episode."""
        for i in completed:
            if i not in self.failed:
                self._failures[i] = 0
        for i in ids.tolist() if self._resets or self.failed else ():
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None and failed.request is not None:
                if failed.is_unconfirmed and not failed.is_planned:
                    self._log(i, failed)  # not before: its env_fn may have failed
                if failed.request.kind == "lost_step" and self._env_options.autoreset_mode is None:
                    self._states.state[i] = RESTARTED
                del self.failed[i]

    def renew(self, i: int, error: EnvError | None = None) -> None:
        """Recreate env ``i``, which is idle, if it has failed, or because of this error.

        Its next row, of no step, says that the env can be reset.
        """
        request = Request("lost_step", (self._flight.batches.last_obs(i),))
        with interrupts.deferred():
            error = error or self._states.deaths.pop(i, None)
            if error is not None and i not in self.failed:
                self.failed[i] = Failed(error, 0.0, told=True)
            if i in self.failed:
                self.send(STEPPING, {i: request})
            else:
                self._flight.send(Selection(np.array([i])), STEPPING, [request])

    # ------------------------------------------------------------------------------------- by hand

    def revive(self, ids: IdArray) -> None:
        """Restart the processes of these envs that ended; ``run_jobs`` restarts no DEAD env."""
        self._await_events(0.0)
        dead = ids[self._states.state[ids] == DEAD]
        if self.failed and not self.enabled:  # in sessions, which have ended
            dead = ids[[i in self.failed or i in dead for i in ids.tolist()]]
        if len(dead):
            self.restart(dead)

    def restart(self, ids: IdArray) -> None:
        """Recreate these envs, and all other envs of their processes that have ended.

        EnvError if an env_fn raised, or a process ended while it started.
        """
        usable = self._answering(ids)
        with interrupts.deferred():
            self._states.mark_cancelled(usable)  # they need a reset, even after an interrupt
            if self._fresh:  # all in new processes
                usable = usable[:0]
            ended = {self._hosts.of(i) for i in np.setdiff1d(ids, usable).tolist()}
            todo = [i for host in ended for i in host.ids]
            for i in todo:
                failed = self.failed.get(i)
                if failed is None or failed.request is None:
                    error = self._states.deaths.get(i) or EnvError(f"env {i}: restarted", [i])
                    self.failed[i] = Failed(error, 0.0, by_hand=True)
        self.recreate_idle([i for i in todo if self.failed[i].by_hand])
        if len(usable):
            try:
                self._recreate(usable.tolist(), by_hand=True)
            except (EnvTimeoutError, WorkerDiedError) as error:
                hung = [i for i in usable.tolist() if self._ended_in_close(i)]
                if interrupts.is_interrupt(error) or not hung:
                    raise
                for i in hung:
                    warn_of_close(i, error)
                self.restart(usable)  # these in new processes

    def _usable(self, ids: IdArray) -> IdArray:
        """Return those of these envs whose process runs and is configured."""
        hosts, new = self._hosts, self._unconfigured
        return ids[[hosts.of(i).life is Life.RUNNING and i not in new for i in ids.tolist()]]

    def replace(self, ids: IdArray, env_fns: Sequence[Callable[[], object]]) -> None:
        """Put other envs, with the same spaces, in the places of these, now and at later restarts.

        EnvError if an env_fn raises or makes an env with other spaces: that env then needs an
        env_fn that fits.
        """
        supervisor, recorder = self._hosts.supervisor, self._flight.recorder
        usable = self._answering(ids)
        fns = dict(zip(ids.tolist(), env_fns, strict=True))
        request_of = {i: Request("env_fn", (fn,)) for i, fn in fns.items()}
        if len(usable):
            ask(self._flight, usable, [request_of[i] for i in usable.tolist()])
        rest = np.setdiff1d(ids, usable).tolist()
        if recorder is not None and (note := recorder.asks(rest, [request_of[i] for i in rest])):
            note(())
        for i, env_fn in fns.items():
            if supervisor is not None:
                supervisor.set_env_fn(i, env_fn)
        self.restart(ids)

    def _await_events(self, seconds: float) -> None:
        """Wait at most so long for an event of a process; handle processes that have ended."""
        flight, supervisor = self._flight, self._hosts.supervisor
        flight.refuse_if_closed()
        if supervisor is None:
            self._hosts.closing.wait(seconds)
            flight.refuse_if_closed()
        else:
            supervisor.poller.fetch(flight.arrivals.chunks, 0, supervisor.timeout(seconds))
            if supervisor.poller.noticed or not supervisor.timeout(None):
                flight.handle_ended_processes()

    def _answering(self, ids: IdArray) -> IdArray:
        """Return those of these envs, none in flight, whose process runs and answers.

        A process that carries out a cancelled step does not answer, and is killed. One that steps
        an env in flight is only late: it is waited for.
        """
        hosts = self._hosts
        self._await_events(0.0)
        usable = self._usable(ids)
        waiting = [i for i in ids.tolist() if i in self.failed and self.failed[i].request]
        self._states.check_free(np.union1d(usable, waiting).astype(np.intp))
        while hosts.supervisor is not None and len(usable):
            call = Call(self._flight, usable, [_PING] * len(usable), observed=False)
            try:
                call.send()
                call.wait(GRACE)
                break
            except ordinary(TimeoutError):
                in_flight = self._states.in_flight()
                hung = [i for i in sorted(call.missing) if not in_flight[hosts.of(i).ids].any()]
                for host in {hosts.of(i) for i in hung}:
                    text = name_ids([i for i in hung if i in host.ids])
                    if isinstance(host, ProcessHost):
                        host.end(f"{text} did not answer after a request was cancelled")
                        if not host.has_ended():
                            fact = f"{text}: its process does not end"
                            raise EnvError(fact, hung, "restart") from None
                self._flight.handle_ended_processes()
            except ordinary(EnvError):
                pass  # a process has ended: it is restarted
            finally:
                call.cancel()
            usable = self._usable(usable)
        return usable
