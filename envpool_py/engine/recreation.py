"""Recreate envs: lead each through its phases, be it in flight or idle, failed or by hand.

``_next_phase`` looks at what is true of an env and its host now, and begins the next phase, see
``Phase``: ``recreate_due`` calls it for envs in flight whenever the engine waits for rows, and
``await_recreated`` for others, until they are recreated. Then the request, if any, is sent. So it
may be called at any time and any number of times, and an interrupt loses nothing.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from envpool_py import interrupts
from envpool_py.engine.env_method_calls import ask
from envpool_py.engine.env_states import RESETTING
from envpool_py.engine.failed import (
    Phase,
    Recreating,
    Report,
    WhyRecreated,
    backoff,
    log_line,
    raised_message,
)
from envpool_py.engine.flight import Asked, Flight
from envpool_py.env.block import BESIDE
from envpool_py.env.failures import env_error
from envpool_py.env.heartbeat import CLOSING
from envpool_py.env.request import ASK, Request, pack_token
from envpool_py.env.validation import warn_of_rows
from envpool_py.errors import EnvError, WorkerDiedError, combine, warn
from envpool_py.options import AllOptions
from envpool_py.worker.host import Host, Life, RemoteHost
from envpool_py.worker.supervisor import MAKES_WITHIN

_LOGGER = logging.getLogger("envpool_py")
# Between the text of the first failure and that of a later one, in the error of one row.
_BETWEEN_ERRORS = "\n\nthen: "
# Seconds after which ``recreate_due`` leaves the other envs to its next call: an event loop that
# polls is not held while many processes are forked.
_LONGEST_TURN = 5e-3


class Recreation:
    """Recreates the envs of a pool.

    Attributes:
        fresh_process: whether each env is recreated in a new process.
        recreating: the envs that are to be recreated, and do not live until then.
        reports: what the next rows of these envs report.
        row_errors: the errors that rows in flight raise.
        failures: how often each env has failed since it last completed an episode.
    """

    def __init__(self, flight: Flight, options: AllOptions) -> None:
        self._flight, self._hosts, self._states = flight, flight.hosts, flight.states
        self._options, self._env_options = options.recovery, options.env
        self.fresh_process = options.process.fresh_process
        self._closes_within = options.process.step_timeout or MAKES_WITHIN
        self.recreating: dict[int, Recreating] = {}
        self.reports: dict[int, Report] = {}
        self.row_errors: dict[int, EnvError] = {}
        self.failures = [0] * flight.hosts.num_envs
        self._num_logged = 0
        # What is to be called for envs that were recreated: a warning, ``on_restart``.
        self._notices: list[Callable[[], object]] = []

    def note_failure(self, i: int, error: EnvError, due: float) -> None:
        """Note that env ``i`` has failed, perhaps in the request that reports another error."""
        known = self.reports.get(i)
        self.forget(i)
        report = Report([error])
        if known is not None and known.request is not None:
            report = Report([*known.errors, error], known.request)
        self.reports[i], self.recreating[i] = report, Recreating(due)

    def raise_in_row(self, i: int, error: EnvError) -> None:
        """Let the row of env ``i``, which is in flight, raise this error."""
        self.forget(i)
        self.row_errors[i] = error
        self._flight.drop_result(i)
        self._flight.block.mark[i] = BESIDE
        self._flight.arrivals.token_chunks.append(pack_token(int(self._states.tokens[i])))

    def forget(self, i: int) -> None:
        """Neither recreate nor report env ``i``; a reply that is still to come is dropped."""
        self.reports.pop(i, None)
        one = self.recreating.pop(i, None)
        if one is not None and one.token in self._flight.asked:
            self._flight.forget_asked(one.token)
            if i not in self.row_errors:  # else its row would be dropped, too
                self._flight.drop_result(i)  # else the reply may be taken for a later one

    def count_failure(self, i: int, error: EnvError) -> float | None:
        """Count a failure of env ``i``; return when it is due, None if the error must be raised.

        The message of an error that must be raised then says how often the env had failed.
        """
        if isinstance(error, WorkerDiedError) and self._culprit_of(i) not in (None, i):
            return time.monotonic()  # it pays for no crash of its neighbour
        # A pool may step envs that were never reset.
        options, failures = self._options, self.failures[i]
        works, limit = self._works(i) or error.request == "step", options.max_restarts
        if options.on_error == "restart" and works and (limit is None or failures < limit):
            self.failures[i] += 1
            return time.monotonic() + backoff(options, failures)
        if works:
            error.message = raised_message(options, failures, error.message)
        return None

    def death_of(self, i: int, *, is_counted: bool = True) -> EnvError:
        """Return a new error that says how the process of env ``i`` ended.

        ``is_counted``: that was counted before, so the error says if the restarts are used up.
        """
        error = self._hosts.remote(i).death_of(i)
        if (begun := self._culprit_of(i)) not in (None, i):
            error.message += f"; it ran env {begun}"
        if is_counted and self._works(i):
            text, failures = error.message, self.failures[i]
            error.message = raised_message(self._options, failures, text)
        return error

    def _culprit_of(self, i: int) -> int | None:
        """Return the env whose request the ended process of env ``i`` had begun, if that is known.

        None for an env with its own process, and for a process that has not begun one.
        """
        host = self._hosts.of(i)
        if len(host.ids) == 1 or host.life is not Life.ENDED:
            return None
        return self._hosts.remote(i).begun_env

    def _works(self, i: int) -> bool:
        """Whether an error of env ``i`` may be one of the moment: code and arguments may be right.

        So it is once any env has completed a reset, and while others are in their first one.
        """
        others = (j for j, failures in enumerate(self.failures) if j != i and not failures)
        begun = (j for j in others if self._states.state[j] == RESETTING)
        return self._flight.positions.any_worked() or any(j not in self.row_errors for j in begun)

    def recreate_due(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        ends = time.monotonic() + _LONGEST_TURN
        for i, one in list(self.recreating.items()):
            if i in self.reports and self.reports[i].request is not None:
                if time.monotonic() > ends:
                    left = 0.0
                    break
                with interrupts.deferred():
                    try:
                        wait = self._next_phase(i, one)
                    except EnvError as error:
                        self.raise_in_row(i, error)
                        wait = 0.0
                left = wait if left is None else min(left, wait)
        self._notify()
        return left

    def await_recreated(self, ids: Sequence[int]) -> None:
        """Recreate those of these envs that failed while idle, and wait until that is done.

        EnvError if one has used its restarts, or by hand: did not come back.
        """
        raised: dict[int, EnvError] = {}
        while True:
            waits = []
            self._flight.take_replies()
            for i in ids:
                if (one := self.recreating.get(i)) is not None:
                    with interrupts.deferred():
                        try:
                            waits.append(self._next_phase(i, one))
                        except EnvError as error:
                            raised[i] = error
            self._notify()
            if not waits:
                break
            self._flight.advance(len(ids), min(1.0, *waits), set(ids))
        if raised:
            raise combine(list(raised.values()))

    def _next_phase(self, i: int, one: Recreating) -> float:
        """Begin the next phase of env ``i`` if it is time; return the seconds until it may be.

        EnvError if it could not be recreated, and the env has used its restarts.
        """
        host = self._hosts.of(i)
        if one.phase is Phase.CONFIGURES and one.token != int(self._states.tokens[i]) | ASK:
            one.phase = Phase.WAITS  # its request was cancelled
            self._flight.forget_asked(one.token)
        if host.life is Life.STARTING:
            return math.inf
        if (wait := one.due - time.monotonic()) > 0:
            return wait
        if host.life is Life.RUNNING:
            return self._next_phase_running(i, one, host)
        assert isinstance(host, RemoteHost)  # noqa: S101 - the others do not end
        return self._next_phase_ended(i, one, host)

    def _next_phase_running(self, i: int, one: Recreating, host: Host) -> float:
        if isinstance(host, RemoteHost):
            if host.exit is not None:
                return math.inf  # it was killed, or ends, and that is not noticed yet
            if one.phase is Phase.WAITS and self.fresh_process:
                host.close_env(self._closes_within)
                one.phase = Phase.CLOSES
                return math.inf
        if one.phase is not Phase.CONFIGURES:
            self._send_configure(i, one)
            return math.inf
        asked = self._flight.asked[one.token]
        if not asked.is_answered:
            return math.inf
        if isinstance(reply := self._flight.take_reply(one.token), EnvError):
            if self._flight.recorder is not None:  # the env's next reset recreates it
                self._flight.recorder.recreated([i], [asked.request])
            return self._try_again(i, one, reply)
        if "warnings" in reply:
            self._notices.append(partial(warn_of_rows, {i: reply}, set()))
        self._finish_recreation(i, one, asked.request)
        return 0.0

    def _next_phase_ended(self, i: int, one: Recreating, host: RemoteHost) -> float:
        supervisor = self._hosts.supervisor
        assert supervisor is not None  # noqa: S101 - of the host
        mates = [self.recreating[j] for j in host.ids if j in self.recreating]
        if one.phase is Phase.CLOSES:
            for error in host.errors_of_close():
                text = f"{error.message}; the env is recreated in a new process"
                self._notices.append(partial(warn, text, RuntimeWarning))
        elif one.phase is Phase.CONFIGURES:
            reply = self._flight.take_reply(one.token)
            failure = reply if isinstance(reply, EnvError) else host.error_of(i)
            if host.heartbeat["phase"] != CLOSING:
                return self._try_again(i, one, failure)
            # Else the process was killed because a session of a mate was cancelled.
            is_stopped = any(each.why is WhyRecreated.STOPPED for each in mates)
            if host.begun_env == i and not is_stopped:
                cause = failure.message.partition("\n")[0].partition(": ")[2]
                text = f"env {i}: close: {cause}; the env is recreated"
                self._notices.append(partial(warn, text, RuntimeWarning))
        if one.phase is Phase.STARTS:
            for each in mates:
                each.phase = Phase.WAITS if each.phase is Phase.STARTS else each.phase
            return self._try_again(i, one, host.error_of(i))
        try:
            supervisor.restart(host)
        except (OSError, EnvError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            return self._try_again(i, one, failure)
        for each in mates:
            each.phase, each.is_restart_counted = Phase.STARTS, False
        return math.inf

    def _try_again(self, i: int, one: Recreating, failure: EnvError) -> float:
        """Count a failure to recreate env ``i``; raise it if the env is not to be tried again."""
        host = self._hosts.of(i)
        is_requested = one.why is WhyRecreated.REQUESTED
        if not is_requested:
            if failure.env_id != i:
                text = f"env {i}: its process was not restarted: {failure.message}"
                failure = EnvError(text, (i,), "restart", failure.details)
            if (due := self.count_failure(i, failure)) is not None:
                self.note_failure(i, failure, due)
                return max(due - time.monotonic(), 1e-6)
        for j in host.ids if is_requested and host.life is not Life.RUNNING else [i]:
            each = self.recreating.get(j)
            if each is not None and each.why is one.why:
                self.forget(j)
                if host.life is not Life.RUNNING:
                    self._states.mark_dead(j)
        raise failure

    def _send_configure(self, i: int, one: Recreating) -> None:
        """Send env ``i`` options and position, with which it recreates itself unless it is new."""
        is_made, is_planned = one.phase is Phase.STARTS, one.why is WhyRecreated.PLANNED
        restarts = int(self._hosts.restarts[i]) + (not is_planned and not one.is_restart_counted)
        own = {"is_new": is_planned} if self.fresh_process else {}
        request = self._configure_request(i, recreate=not is_made, restarts=restarts, **own)
        one.token = token = int(self._states.tokens[i]) | ASK
        self._hosts.of(i).prepare_requests([(token, request)])()
        self._flight.asked[token] = Asked(request, time.monotonic())
        one.phase = Phase.CONFIGURES

    def _finish_recreation(self, i: int, one: Recreating, request: Request) -> None:
        """Note that env ``i`` is recreated by this request of CONFIGURES, and send its own."""
        flight = self._flight
        for j in self._hosts.of(i).ids:  # others of its process are made, too, and may stay idle
            each = self.recreating.get(j)
            if each and not each.is_restart_counted and (j == i or each.phase is Phase.STARTS):
                self._hosts.restarts[j] += each.why is not WhyRecreated.PLANNED
                each.is_restart_counted = True
        flight.batches.info_reader.forget([i])
        flight.positions.mark_recreated(i)
        if flight.recorder is not None:
            flight.recorder.recreated([i], [request])
        del self.recreating[i]
        report = self.reports.get(i) or Report([])
        self.send_replacement(i, report)
        is_requested = one.why is WhyRecreated.REQUESTED
        if is_requested:
            self.failures[i] = 0
        if i in self._states.dead or is_requested:
            self._states.mark_recreated(i, has_request=report.request is not None)
        if one.why is WhyRecreated.FAILED:
            error = report.errors[-1]
            if self._options.on_restart is not None:
                self._notices.append(partial(self._options.on_restart, i, error))
            self._num_logged += 1
            restarts = int(self._hosts.restarts[i])
            if line := log_line(i, restarts, self._num_logged, error.message):
                with interrupts.suppressed():  # of a handler of the log
                    _LOGGER.warning(line)

    def send_replacement(self, i: int, report: Report) -> None:
        """Send env ``i``, which is recreated, its request, if any, with the text of its errors."""
        if report.request is not None:
            text = report.errors[0].text if report.errors else ""
            if len(report.errors) > 1:
                text += _BETWEEN_ERRORS + report.errors[-1].message
            request = report.request._replace(error=text)
            if self._flight.recorder is not None:
                self._flight.recorder.requests(np.array([i]), [request])
            self._hosts.of(i).prepare_requests([(int(self._states.tokens[i]), request)])()

    def _notify(self) -> None:
        """Warn, and call ``on_restart``, for envs just recreated: outside of all: it may raise."""
        while self._notices:
            self._notices.pop(0)()

    def send_options(self, ids: Sequence[int], **changes: object) -> None:
        """Send these envs the options of the pool and their positions, and wait for the replies."""
        requests = [self._configure_request(i, **changes) for i in ids]
        ask(self._flight, np.array(ids, dtype=np.intp), requests, observed=False)

    def _configure_request(self, i: int, **changes: object) -> Request:
        """Return the request that tells env ``i`` the options of the pool and where it goes on."""
        positions = self._flight.positions
        episode, over = positions.of(i)
        facts = {"root": positions.root_seed_of(i), "episode": episode, "over": over}
        facts |= {"env_id": i, "restarts": int(self._hosts.restarts[i])}
        facts |= {"elsewhere": True} if self.fresh_process else {}
        return Request("configure", (self._env_options,), facts | changes)
