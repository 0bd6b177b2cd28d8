"""Envs that fail, and envs that are recreated: by ``on_error="restart"`` or by ``pool.restart``.

The life of an env that failed is decided here and nowhere else. ``failed`` has a ``Failed`` for
each env that is to be recreated, or was recreated and whose error is not reported yet:

1. The process of an env ends, or an env raises in place of its row: ``handle`` asks ``policy``
   whether to raise the error or to recreate the env, and when.
2. The request in which it failed is replaced: a lost step by ``lost_step``, whose row the executor
   of the new env writes (truncated, with the last observation); a reset by itself. An env that
   failed while idle gets such a request when the caller sends it the next one.
3. ``_go_on`` leads every env through the same phases, see ``Phase``, be it in flight or idle, by
   hand or not: ``run_jobs`` calls it for envs in flight whenever the engine waits for rows, and
   ``recreate_idle`` for others, until they are READY. Then the request, if any, is sent.
4. The row is returned as any other row, and ``returned`` drops the ``Failed``.

So every env that failed is reported once, with ``info["env_error"]``, unless ``pool.restart``
recreates it before. An env that waits for its back-off is in flight or idle like any other, and
delays no other env.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from envpool_py import interrupts
from envpool_py.engine import policy
from envpool_py.engine.env_method_calls import Call, ask
from envpool_py.engine.flight import Asked, Flight
from envpool_py.engine.states import DEAD, RESETTING, RESTARTED, STEPPING
from envpool_py.env.executor import RecycleDue
from envpool_py.env.failures import env_error
from envpool_py.env.heartbeat import CLOSING
from envpool_py.env.request import ASK, Request
from envpool_py.env.validation import warn_of_rows
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, name_ids, warn
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


class Phase(enum.Enum):
    """Where an env is on its way back: each phase follows the one before, or WAITS again."""

    WAITS = "until its back-off is over"
    CLOSES = "its process was asked to close it and to end"  # only with ``fresh_process``
    STARTS = "its process was restarted, and makes it"  # only if the process has ended
    CONFIGURES = "it was sent options and position, and recreates itself unless it is new"
    READY = "it is recreated"


class Why(enum.Enum):
    """Why an env is recreated."""

    FAILED = "it has failed, which its next row reports"
    BY_HAND = "``pool.restart``: nothing is reported, and no failure tried again"
    PLANNED = "it is recycled in a new process"
    STOPPED = "a session has stopped it: as FAILED, but nobody is told"


@dataclass
class Failed:
    """An env that is to be recreated, or was recreated and whose error is not reported yet.

    Attributes:
        error: the error of the env.
        due: the time at which it may be recreated, of ``time.monotonic``; then when it was begun.
        request: the request in flight, which reports the error; None: the env is idle.
        token: that of the request of CONFIGURES; if it is not current, the env WAITS.
    """

    error: EnvError
    due: float = 0.0
    request: Request | None = None
    why: Why = Why.FAILED
    phase: Phase = Phase.WAITS
    token: int = -1


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
        # What is to be called for envs that were recreated: a warning, ``on_restart``.
        self._untold: list[Callable[[], object]] = []
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
            self.failed[i] = Failed(error, 0.0, planned or Request("reset"), Why.PLANNED)
            return True
        waits = known is not None and known.phase is not Phase.READY
        if known is not None and waits and (known.request is not None or not in_flight):
            return True  # its process has ended, too, or the error is the reply of CONFIGURES
        if not self.enabled:
            self._forget(i)  # it was recreated for sessions
            return False
        due = known.due if known is not None and waits else self._count(i, error)
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

    def _forget(self, i: int) -> None:
        """Recreate env ``i`` no longer; a reply that is still to come is dropped."""
        failed = self.failed.pop(i, None)
        if failed is not None and self._flight.asked.pop(failed.token, None) is not None:
            self._flight.drop_result(i)

    def _ended_in_close(self, i: int) -> int | None:
        """Return the env in whose ``close`` the process of env ``i`` has ended, or was killed."""
        host, block = self._hosts.of(i), self._flight.block
        env, *_, phase = block.heartbeats[host.ids[0]].tolist()
        ended = isinstance(host, ProcessHost) and host.exit is not None
        return abs(env) - 1 if ended and phase == CLOSING else None

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
            self._forget(i)
        return found

    def _count(self, i: int, error: EnvError) -> float | None:
        """Count a failure of env ``i``; return when it is due, None if the error must be raised."""
        failures, works = self._failures[i], self._works(i)
        wait = policy.delay(self._options, failures, works=works)
        if wait is not None:
            self._failures[i] += 1
            return time.monotonic() + wait
        self._forget(i)
        if works:
            error.message = policy.raised_message(self._options, failures, error.message)
        return None

    def _request_after(self, i: int, error: EnvError) -> Request:
        """Return the request in place of the one in which env ``i`` failed."""
        known = self.failed.get(i)
        text = error.text if known is None or known.why is Why.FAILED else ""
        if known is not None and known.request is not None:  # that failed, too
            first = known.request.error.partition(_THEN)[0]
            text = f"{first}{_THEN}{error.message}" if first else error.text
            return known.request._replace(error=text)
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

    def send(self, requests: Mapping[int, Request]) -> None:
        """Send these requests to envs that failed, now or when they are recreated."""
        with interrupts.deferred():
            for i, request in requests.items():
                self.failed[i].request = request
                if self.failed[i].phase is Phase.READY:
                    self._flight.send_again(i, request)

    def cancelled(self, ids: Sequence[int], errors: Mapping[int, EnvError]) -> None:
        """Drop the requests of these envs; some had failed, see ``errors``.

        Such an error, or one that was not reported, is reported with the env's next row.
        """
        for i in ids:
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None:
                failed.request = None
            if i in errors:
                self.handle(i, errors[i], in_flight=False)

    # ------------------------------------------------------------------------- recreating the envs

    def run_jobs(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        for i, failed in list(self.failed.items()):
            if failed.request is not None and failed.phase is not Phase.READY:
                with interrupts.deferred():
                    try:
                        wait = self._go_on(i, failed)
                    except EnvError as error:
                        self._flight.fail(i, error)
                        wait = 0.0
                left = wait if left is None else min(left, wait)
        self._tell()
        return left

    def recreate_idle(self, ids: Sequence[int]) -> None:
        """Recreate those of these envs that failed while idle, and wait until they are ready.

        EnvError if one has used its restarts, or by hand: did not come back.
        """
        while True:
            waits = []
            self._flight.take_replies()
            for i in ids:
                if i in self.failed and self.failed[i].phase is not Phase.READY:
                    with interrupts.deferred():
                        waits.append(self._go_on(i, self.failed[i]))
            self._tell()
            if not waits:
                return
            try:
                self._flight.advance(len(ids), min(1.0, *waits), set(ids))
            except BaseException:
                self._flight.settle()
                raise

    def _go_on(self, i: int, failed: Failed) -> float:
        """Begin the next phase of env ``i`` if it is time; return the seconds until it may be.

        EnvError if it could not be recreated, and the env has used its restarts.
        """
        host, supervisor = self._hosts.of(i), self._hosts.supervisor
        if host.life is Life.STARTING:
            return math.inf
        asked = self._flight.asked.get(failed.token)
        is_current = asked is not None and failed.token == int(self._states.tokens[i]) | ASK
        if failed.phase is Phase.CONFIGURES and not is_current:
            failed.phase = Phase.WAITS
        reply = None if asked is None else asked.reply
        if (wait := failed.due - time.monotonic()) > 0:
            return wait
        if host.life is Life.RUNNING:
            if isinstance(host, ProcessHost) and host.exit is not None:
                return math.inf  # it was killed, or ends, and that is not noticed yet
            if failed.phase is Phase.WAITS and self._fresh and isinstance(host, ProcessHost):
                host.close_env(self._limit)
                failed.phase = Phase.CLOSES
            elif failed.phase is not Phase.CONFIGURES:
                self._configure(i, failed)
            elif isinstance(reply, EnvError):
                return self._try_again(i, failed, reply)
            elif reply is not None:
                self._note_recreated(i, failed)
                return 0.0
            return math.inf
        assert supervisor is not None and isinstance(host, ProcessHost)  # noqa: S101, PT018 - of a process
        if failed.phase is Phase.CLOSES:
            for error in host.errors_of_close():
                warn(f"{error.message}; the env is recreated in a new process", RuntimeWarning)
        elif failed.phase is Phase.CONFIGURES:
            failure = reply if isinstance(reply, EnvError) else host.error_of(i)
            if (culprit := self._ended_in_close(i)) is None:
                return self._try_again(i, failed, failure)
            if culprit == i:
                warn_of_close(i, failure)
        elif failed.phase is Phase.STARTS:
            self._set_phases(host, Phase.WAITS)
            return self._try_again(i, failed, host.error_of(i))
        try:
            supervisor.restart(host)
        except (OSError, EnvError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            return self._try_again(i, failed, failure)
        self._set_phases(host, Phase.STARTS)
        return math.inf

    def _set_phases(self, host: ProcessHost, phase: Phase) -> None:
        for i in host.ids:
            if i in self.failed:
                self.failed[i].phase = phase

    def _try_again(self, i: int, failed: Failed, failure: EnvError) -> float:
        """Count a failure to recreate env ``i``; raise it if the env is not to be tried again."""
        host = self._hosts.of(i)
        if failed.why is not Why.BY_HAND:
            if failure.env_id != i:
                text = f"env {i}: its process was not restarted: {failure.message}"
                failure = EnvError(text, (i,), "restart", failure.details)
            if (due := self._count(i, failure)) is not None:
                request = None if failed.request is None else self._request_after(i, failure)
                self.failed[i] = Failed(failure, due, request)
                return max(due - time.monotonic(), 1e-6)
        mates = [j for j in host.ids if j in self.failed and self.failed[j].why is Why.BY_HAND]
        for j in {i, *mates} if failed.why is Why.BY_HAND else {i}:
            self._forget(j)
            if isinstance(host, ProcessHost) and host.life is not Life.RUNNING:
                by_hand = failed.why is Why.BY_HAND
                self._states.mark_dead(j, host.death_of(j) if by_hand else failure)
        raise failure

    def _configure(self, i: int, failed: Failed) -> None:
        """Send env ``i`` options and position, with which it recreates itself unless it is new."""
        is_new, is_planned = failed.phase is Phase.STARTS, failed.why is Why.PLANNED
        restarts = int(self._hosts.restarts[i]) + (not is_planned)
        own = {"is_new": is_planned} if self._fresh else {}
        request = self._configuring(i, recreate=not is_new, restarts=restarts, **own)
        self._flight.asked.pop(failed.token, None)
        failed.token = token = int(self._states.tokens[i]) | ASK
        self._hosts.of(i).prepare_requests([(token, request)])()
        self._flight.asked[token] = Asked(request, time.monotonic())
        failed.phase = Phase.CONFIGURES

    def _note_recreated(self, i: int, failed: Failed) -> None:
        """Note that env ``i`` is recreated, and send its request."""
        flight, is_by_hand = self._flight, failed.why is Why.BY_HAND
        asked = flight.asked.pop(failed.token)
        self._untold.append(partial(warn_of_rows, {i: asked.reply}, set()))
        self._hosts.restarts[i] += failed.why is not Why.PLANNED
        flight.batches.reader.forget([i])
        flight.positions.mark_recreated(i)
        if flight.recorder is not None:
            flight.recorder.recreated([i], [asked.request])
        failed.phase = Phase.READY
        if failed.request is not None:
            flight.send_again(i, failed.request)
        elif is_by_hand:
            self._forget(i)
            self._failures[i] = 0
        if self._states.state[i] == DEAD or is_by_hand:
            self._states.mark_recreated(i)
        if failed.why is Why.FAILED:
            if self._options.on_restart is not None:
                self._untold.append(partial(self._options.on_restart, i, failed.error))
            self._log(i, failed)

    def _log(self, i: int, failed: Failed) -> None:
        """Log that env ``i`` was recreated, unless that has been logged often."""
        self._logged += 1
        restarts = int(self._hosts.restarts[i])
        if line := policy.log_line(i, restarts, self._logged, failed.error.message):
            with interrupts.suppressed():  # of a handler of the log
                _LOGGER.warning(line)

    def _tell(self) -> None:
        """Warn, and call ``on_restart``, for envs just recreated: outside of all: it may raise."""
        while self._untold:
            self._untold.pop(0)()

    def configure(self, ids: Sequence[int], **changes: object) -> list[Request]:
        """Send these envs the options of the pool and their positions, and wait for the replies."""
        requests = [self._configuring(i, **changes) for i in ids]
        ask(self._flight, np.array(ids, dtype=np.intp), requests, observed=False)
        return requests

    def _configuring(self, i: int, **changes: object) -> Request:
        """Return the request that tells env ``i`` the options of the pool and where it goes on."""
        positions = self._flight.positions
        episode, over = positions.of(i)
        facts = {"root": positions.root_of(i), "episode": episode, "over": over}
        facts |= {"env_id": i, "restarts": int(self._hosts.restarts[i])}
        facts |= {"elsewhere": True} if self._fresh else {}
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
                self.failed[i] = Failed(error, why=Why.STOPPED)
            self._flight.send(Selection(np.array([i])), STEPPING, [request])

    # ------------------------------------------------------------------------------------- by hand

    def revive(self, ids: IdArray) -> None:
        """Restart the processes of these envs that ended; ``run_jobs`` restarts no DEAD env."""
        self._flight.advance(0, 0.0, set())  # handles processes that have ended
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
            ended = {self._hosts.of(i) for i in np.setdiff1d(ids, usable).tolist()}
            todo = [*usable.tolist(), *(i for host in ended for i in host.ids)]
            for i in todo:
                failed = self.failed.get(i)
                if failed is None or failed.request is None:
                    self._forget(i)
                    error = self._states.deaths.get(i) or EnvError(f"env {i}: restarted", [i])
                    starts = self._hosts.of(i).life is Life.STARTING
                    phase = Phase.STARTS if starts else Phase.WAITS
                    self.failed[i] = Failed(error, why=Why.BY_HAND, phase=phase)
        self.recreate_idle([i for i in todo if self.failed[i].why is Why.BY_HAND])

    def _usable(self, ids: IdArray) -> IdArray:
        """Return those of these envs whose process runs."""
        return ids[[self._hosts.of(i).life is Life.RUNNING for i in ids.tolist()]]

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

    def _answering(self, ids: IdArray) -> IdArray:
        """Return those of these envs, none in flight, whose process runs and answers.

        A process that carries out a cancelled step does not answer, and is killed. One that steps
        an env in flight is only late: it is waited for.
        """
        hosts = self._hosts
        self._flight.advance(0, 0.0, set())  # handles processes that have ended
        usable = self._usable(ids)
        waiting = [i for i in ids.tolist() if i in self.failed and self.failed[i].request]
        alive = usable[self._states.state[usable] != DEAD]  # else a mate has restarted its process
        self._states.check_free(np.union1d(alive, waiting).astype(np.intp))
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
