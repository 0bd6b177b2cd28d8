"""Recreate envs: lead each through its phases, be it in flight or idle, failed or by hand.

``failed`` has a ``Failed`` for each env that is to be recreated, or whose error waits for the row
that reports it. ``_next_phase`` looks at what is true of an env and its host now, and begins the
next phase, see ``Phase``: ``recreate_due`` calls it for envs in flight whenever the engine waits
for rows, and ``await_recreated`` for others, until they are READY. Then the request, if any, is
sent. So it may be called at any time and any number of times, and an interrupt loses nothing.

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
from envpool_py.engine.failed import Failed, Phase, WhyRecreated, delay, log_line, raised_message
from envpool_py.engine.flight import Asked, Flight
from envpool_py.env.failures import env_error
from envpool_py.env.heartbeat import CLOSING
from envpool_py.env.request import ASK, Request
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
        failed: the envs that are to be recreated, or whose errors are not reported yet.
        failures: how often each env has failed since it last completed an episode.
    """

    def __init__(self, flight: Flight, options: AllOptions) -> None:
        self._flight, self._hosts, self._states = flight, flight.hosts, flight.states
        self._options, self._env_options = options.recovery, options.env
        self.fresh_process = options.processes.fresh_process
        self._closes_within = options.processes.step_timeout or MAKES_WITHIN
        self.failed: dict[int, Failed] = {}
        self.failures = [0] * flight.hosts.num_envs
        self._num_logged = 0
        # What is to be called for envs that were recreated: a warning, ``on_restart``.
        self._notices: list[Callable[[], object]] = []

    def note_failure(self, i: int, error: EnvError, due: float) -> None:
        """Note that env ``i`` has failed, perhaps in the request that reports another error."""
        known, errors = self.failed.get(i), [error]
        request = None if known is None else known.request
        if known is not None:
            if known.token in self._flight.asked:  # else its reply may be taken for a later one
                self._flight.forget_asked(known.token)
                self._flight.drop_result(i)
            if request is not None and known.why is WhyRecreated.FAILED:
                errors = [*known.errors, error]
        self.failed[i] = Failed(errors, due, request)

    def raise_in_row(self, i: int, error: EnvError) -> None:
        """Let the row of env ``i``, which is in flight, raise this error."""
        self.forget(i)
        self.failed[i] = Failed([error], why=WhyRecreated.RAISED, phase=Phase.READY)
        self._flight.publish_error(i)

    def row_error(self, i: int) -> EnvError | None:
        """Return the error that the row of env ``i`` raises, if that is decided."""
        failed = self.failed.get(i)
        return failed.errors[-1] if failed and failed.why is WhyRecreated.RAISED else None

    def forget(self, i: int) -> None:
        """Recreate env ``i`` no longer; a reply that is still to come is dropped."""
        failed = self.failed.pop(i, None)
        if failed is not None and failed.token in self._flight.asked:
            self._flight.forget_asked(failed.token)
            self._flight.drop_result(i)

    def count_failure(self, i: int, error: EnvError) -> float | None:
        """Count a failure of env ``i``; return when it is due, None if the error must be raised."""
        if isinstance(error, WorkerDiedError) and self._culprit_of(i) not in (None, i):
            return time.monotonic()  # it pays for no crash of its neighbour
        # A pool may step envs that were never reset.
        failures, works = self.failures[i], self._works(i) or error.request == "step"
        wait = delay(self._options, failures, works=works)
        if wait is not None:
            self.failures[i] += 1
            return time.monotonic() + wait
        if works:
            error.message = raised_message(self._options, failures, error.message)
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
        return self._flight.positions.any_worked() or any(self.row_error(j) is None for j in begun)

    def recreate_due(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        ends = time.monotonic() + _LONGEST_TURN
        for i, failed in list(self.failed.items()):
            if failed.request is not None and failed.phase is not Phase.READY:
                if time.monotonic() > ends:
                    left = 0.0
                    break
                with interrupts.deferred():
                    try:
                        wait = self._next_phase(i, failed)
                    except EnvError as error:
                        self.raise_in_row(i, error)
                        wait = 0.0
                left = wait if left is None else min(left, wait)
        self._notify()
        return left

    def await_recreated(self, ids: Sequence[int]) -> None:
        """Recreate those of these envs that failed while idle, and wait until they are ready.

        EnvError if one has used its restarts, or by hand: did not come back.
        """
        raised: dict[int, EnvError] = {}
        while True:
            waits = []
            self._flight.take_replies()
            for i in ids:
                if i in self.failed and self.failed[i].phase is not Phase.READY:
                    with interrupts.deferred():
                        try:
                            waits.append(self._next_phase(i, self.failed[i]))
                        except EnvError as error:
                            raised[i] = error
            self._notify()
            if not waits:
                break
            try:
                self._flight.advance(len(ids), min(1.0, *waits), set(ids))
            except BaseException:
                self._flight.settle()
                raise
        if raised:
            raise combine(list(raised.values()))

    def _next_phase(self, i: int, failed: Failed) -> float:
        """Begin the next phase of env ``i`` if it is time; return the seconds until it may be.

        EnvError if it could not be recreated, and the env has used its restarts.
        """
        host = self._hosts.of(i)
        if failed.phase is Phase.CONFIGURES and failed.token != int(self._states.tokens[i]) | ASK:
            failed.phase = Phase.WAITS  # its request was cancelled
            self._flight.forget_asked(failed.token)
        if host.life is Life.STARTING:
            return math.inf
        if (wait := failed.due - time.monotonic()) > 0:
            return wait
        if host.life is Life.RUNNING:
            return self._next_phase_running(i, failed, host)
        assert isinstance(host, RemoteHost)  # noqa: S101 - the others do not end
        return self._next_phase_ended(i, failed, host)

    def _next_phase_running(self, i: int, failed: Failed, host: Host) -> float:
        if isinstance(host, RemoteHost):
            if host.exit is not None:
                return math.inf  # it was killed, or ends, and that is not noticed yet
            if failed.phase is Phase.WAITS and self.fresh_process:
                host.close_env(self._closes_within)
                failed.phase = Phase.CLOSES
                return math.inf
        if failed.phase is not Phase.CONFIGURES:
            self._configure(i, failed)
            return math.inf
        one = self._flight.asked[failed.token]
        if not one.is_answered:
            return math.inf
        if isinstance(reply := self._flight.take_reply(failed.token), EnvError):
            if self._flight.recorder is not None:  # the env's next reset recreates it
                self._flight.recorder.recreated([i], [one.request])
            return self._try_again(i, failed, reply)
        if "warnings" in reply:
            self._notices.append(partial(warn_of_rows, {i: reply}, set()))
        self._note_recreated(i, failed, one.request)
        return 0.0

    def _next_phase_ended(self, i: int, failed: Failed, host: RemoteHost) -> float:
        supervisor = self._hosts.supervisor
        assert supervisor is not None  # noqa: S101 - of the host
        mates = [self.failed[j] for j in host.ids if j in self.failed]
        if failed.phase is Phase.CLOSES:
            for error in host.errors_of_close():
                text = f"{error.message}; the env is recreated in a new process"
                self._notices.append(partial(warn, text, RuntimeWarning))
        elif failed.phase is Phase.CONFIGURES:
            reply = self._flight.take_reply(failed.token)
            failure = reply if isinstance(reply, EnvError) else host.error_of(i)
            if host.heartbeat["phase"] != CLOSING:
                return self._try_again(i, failed, failure)
            # Else the process was killed because a session of a mate was cancelled.
            is_stopped = any(each.why is WhyRecreated.STOPPED for each in mates)
            if host.begun_env == i and not is_stopped:
                cause = failure.message.partition("\n")[0].partition(": ")[2]
                text = f"env {i}: close: {cause}; the env is recreated"
                self._notices.append(partial(warn, text, RuntimeWarning))
        if failed.phase is Phase.STARTS:
            for each in mates:
                each.phase = Phase.WAITS if each.phase is Phase.STARTS else each.phase
            return self._try_again(i, failed, host.error_of(i))
        try:
            supervisor.restart(host)
        except (OSError, EnvError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            return self._try_again(i, failed, failure)
        for each in mates:
            each.phase, each.is_restart_counted = Phase.STARTS, False
        return math.inf

    def _try_again(self, i: int, failed: Failed, failure: EnvError) -> float:
        """Count a failure to recreate env ``i``; raise it if the env is not to be tried again."""
        host = self._hosts.of(i)
        if not failed.why.is_requested:
            if failure.env_id != i:
                text = f"env {i}: its process was not restarted: {failure.message}"
                failure = EnvError(text, (i,), "restart", failure.details)
            if (due := self.count_failure(i, failure)) is not None:
                self.note_failure(i, failure, due)
                return max(due - time.monotonic(), 1e-6)
        mates = [j for j in host.ids if j in self.failed and self.failed[j].why.is_requested]
        for j in {i, *mates} if failed.why.is_requested and host.life is not Life.RUNNING else {i}:
            if self.row_error(j) is None:
                self.forget(j)
            else:
                self.failed[j].phase = Phase.READY
            if host.life is not Life.RUNNING:
                self._states.mark_dead(j)
        raise failure

    def _configure(self, i: int, failed: Failed) -> None:
        """Send env ``i`` options and position, with which it recreates itself unless it is new."""
        is_new, is_planned = failed.phase is Phase.STARTS, failed.why is WhyRecreated.PLANNED
        restarts = int(self._hosts.restarts[i]) + (not is_planned and not failed.is_restart_counted)
        own = {"is_new": is_planned} if self.fresh_process else {}
        request = self._configure_request(i, recreate=not is_new, restarts=restarts, **own)
        failed.token = token = int(self._states.tokens[i]) | ASK
        self._hosts.of(i).prepare_requests([(token, request)])()
        self._flight.asked[token] = Asked(request, time.monotonic())
        failed.phase = Phase.CONFIGURES

    def _note_recreated(self, i: int, failed: Failed, request: Request) -> None:
        """Note that env ``i`` is recreated by this request of CONFIGURES, and send its own."""
        flight = self._flight
        made = {j: self.failed[j] for j in self._hosts.of(i).ids if j in self.failed}
        for j, each in made.items():  # others of its process are made, too, and may stay idle
            if not each.is_restart_counted and (j == i or each.phase is Phase.STARTS):
                self._hosts.restarts[j] += each.why is not WhyRecreated.PLANNED
                each.is_restart_counted = True
        flight.batches.info_reader.forget([i])
        flight.positions.mark_recreated(i)
        if flight.recorder is not None:
            flight.recorder.recreated([i], [request])
        failed.phase, failed.token = Phase.READY, -1  # that of the env's next call is the same
        if failed.request is not None:
            self.send_replacement(i, failed)
        elif failed.why is WhyRecreated.REQUESTED:
            self.forget(i)
        if failed.why.is_requested:
            self.failures[i] = 0
        if i in self._states.dead or failed.why.is_requested:
            self._states.mark_recreated(i, has_request=failed.request is not None)
        if failed.why is WhyRecreated.FAILED:
            if self._options.on_restart is not None:
                self._notices.append(partial(self._options.on_restart, i, failed.errors[-1]))
            self._num_logged += 1
            restarts, text = int(self._hosts.restarts[i]), failed.errors[-1].message
            if line := log_line(i, restarts, self._num_logged, text):
                with interrupts.suppressed():  # of a handler of the log
                    _LOGGER.warning(line)

    def send_replacement(self, i: int, failed: Failed) -> None:
        """Send env ``i``, which is recreated, its request, with the text of its errors."""
        text = ""
        if failed.why is WhyRecreated.FAILED:
            first, *later = failed.errors
            text = f"{first.text}{_BETWEEN_ERRORS}{later[-1].message}" if later else first.text
        assert failed.request is not None  # noqa: S101 - the env is in flight
        self._flight.send_again(i, failed.request._replace(error=text))

    def _notify(self) -> None:
        """Warn, and call ``on_restart``, for envs just recreated: outside of all: it may raise."""
        while self._notices:
            self._notices.pop(0)()

    def configure(self, ids: Sequence[int], **changes: object) -> list[Request]:
        """Send these envs the options of the pool and their positions, and wait for the replies."""
        requests = [self._configure_request(i, **changes) for i in ids]
        ask(self._flight, np.array(ids, dtype=np.intp), requests, observed=False)
        return requests

    def _configure_request(self, i: int, **changes: object) -> Request:
        """Return the request that tells env ``i`` the options of the pool and where it goes on."""
        positions = self._flight.positions
        episode, over = positions.of(i)
        facts = {"root": positions.root_seed_of(i), "episode": episode, "over": over}
        facts |= {"env_id": i, "restarts": int(self._hosts.restarts[i])}
        facts |= {"elsewhere": True} if self.fresh_process else {}
        return Request("configure", (self._env_options,), facts | changes)
