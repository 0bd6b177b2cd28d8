"""What becomes of the errors of envs: each is raised, or its env is recreated and reports it.

This is decided here; for an env that cannot be recreated, in ``Recreation._try_again``; for the
time-out of a session, in ``EngineForSessions.stop``:

1. An env raises in place of its row, or its process ends: ``recreate_or_raise``, or
   ``recreate_or_raise_later``; ``Recreation.count_failure`` has the rule.
2. The request in which it failed is replaced: a lost step by ``lost_step``, whose row the executor
   of the new env writes (truncated, with the last observation); a reset by itself. An env that
   failed while idle gets such a request when the caller sends it the next one.
3. ``recreation`` recreates the env, and sends the request.
4. The row is returned as any other row, and ``mark_returned`` drops the ``Report``.

So every env that failed is reported once, with ``info["env_error"]``, unless ``pool.restart``
recreates it before. An env that waits for its back-off is in flight or idle like any other, and
delays no other env.

An error is in one place at a time: in the host where it arrives, as an item or as the exit of the
process, until ``recreate_or_raise`` has seen it; then in ``reports`` or ``row_errors``, until the
row that reports it, or raises it, is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from envpool_py import interrupts
from envpool_py.engine.env_states import RAISED, RESETTING, RESTARTED, STEPPING
from envpool_py.engine.failed import Recreating, Report, WhyRecreated
from envpool_py.engine.flight import Flight
from envpool_py.engine.recreation import Recreation
from envpool_py.env.executor import RecycleDue
from envpool_py.env.request import ID_MASK, Request
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError
from envpool_py.options import NEXT_STEP, AllOptions
from envpool_py.worker.host import Life, RemoteHost


class Recovery:
    """Decides what becomes of the errors of envs.

    Attributes:
        recreation: recreates envs. ``recreating``, ``reports``, ``row_errors``, ``recreate_due``,
            ``death_of``: its own.
        enabled: whether ``on_error="restart"``; else errors are raised.
        retries_resets: whether a reset that failed is sent again; else the failure is its result.
        tracks_rows: whether resets that are sent, and rows that are returned, are noted.
        reported: the envs whose failure a row of the last batch has reported.
    """

    def __init__(self, flight: Flight, options: AllOptions) -> None:
        self._flight, self._hosts, self._states = flight, flight.hosts, flight.states
        self._env_options = options.env
        self.recreation = recreation = Recreation(flight, options)
        self.recreating, self.reports = recreation.recreating, recreation.reports
        self.row_errors = recreation.row_errors
        self.recreate_due, self.death_of = recreation.recreate_due, recreation.death_of
        self.enabled = options.recovery.on_error == "restart"
        self.tracks_rows = self.enabled or recreation.fresh_process
        self.retries_resets = True
        self.reported: set[int] = set()
        # Envs that failed again before the row that reports the failure before was returned.
        self._unread_failures: set[int] = set()
        # The resets in flight that the caller asked for, which are sent again if they fail.
        self._resets_in_flight: dict[int, Request] = {}
        if self.enabled:
            flight.batches.keep_last_obs()

    # ------------------------------------------------------------------- an error, and its request

    def recreate_or_raise(
        self, errors: Mapping[int, EnvError], batch: IdArray
    ) -> dict[int, EnvError]:
        """Decide what becomes of these errors: the env is recreated, or the error is raised.

        ``batch``: the envs whose rows are about to be returned, with these errors in place of rows.
        Those that are to be raised now are returned; if any, the other rows are then unread.
        """
        flight, states = self._flight, self._states
        raised: dict[int, EnvError] = {}
        with interrupts.deferred():
            for i, error in errors.items():
                is_decided = self.row_errors.pop(i, None) is not None
                if is_decided or not self._begin_recreation(i, error, in_flight=True):
                    raised[i] = error
            if not raised:
                return {}
            raised |= self._end_first_resets()
            if flight.recorder is not None:
                flight.recorder.failed(raised, raised=True)
            for i in raised:
                flight.drop_result(i)
            states.mark_returned(Selection(np.array(list(raised), dtype=np.intp)), RAISED)
            states.unread.update(i for i in batch.tolist() if i not in {**errors, **raised})
        return raised

    def recreate_or_raise_later(self, errors: Mapping[int, EnvError]) -> None:
        """Decide the same of the errors of envs whose process has ended, or is being killed.

        An error is raised by the row in flight, or by the next request; it is also the reply to a
        request without a row. This may be called any number of times.
        """
        flight, states = self._flight, self._states
        with interrupts.deferred():
            for token, one in flight.asked.items():
                if token & ID_MASK in errors and not one.is_answered:
                    self._hosts.remote(token & ID_MASK).put_error(token, errors[token & ID_MASK])
                    one.is_answered = True
            for i, error in errors.items():
                if not (is_raised := i in self.row_errors):
                    in_flight = states.state[i] >= STEPPING and i not in flight.arrivals.ids()
                    if in_flight:  # else it is idle, or its row has arrived
                        flight.positions.mark_unanswered(i)
                        resets = states.state[i] == RESETTING
                        error.request = error.request or ("reset" if resets else "step")
                    is_raised = not self._begin_recreation(i, error, in_flight=in_flight)
                    if is_raised and in_flight:
                        self.recreation.raise_in_row(i, error)
                if is_raised and self._hosts.of(i).life is Life.ENDED:
                    states.mark_dead(i)

    def _begin_recreation(self, i: int, error: EnvError, *, in_flight: bool) -> bool:
        """Have env ``i`` recreated because of this error; False if the error must be raised.

        ``in_flight``: the env failed in its request in flight, which another one replaces.
        """
        if isinstance(error.__cause__, RecycleDue):
            if in_flight:  # else it was cancelled; the env's next reset finds it due again
                self._flight.drop_result(i)
                self.reports[i] = Report([], self._resets_in_flight.get(i) or Request("reset"))
                self.recreating[i] = Recreating(why=WhyRecreated.PLANNED)
            return True
        known, recreated = self.reports.get(i), self.recreating.get(i)
        if recreated and (not in_flight or (known and known.request)):
            return True  # its process has ended, too, or the error is the reply of CONFIGURES
        if known and known.request and not in_flight:  # it has a row, which is not returned yet
            self._unread_failures |= {i} if known.errors else set()
            known.request = None
        due = None
        if self.enabled:
            due = recreated.due if recreated else self.recreation.count_failure(i, error)
        if due is None:
            self.recreation.forget(i)
            return False
        self.recreation.note_failure(i, error, due)
        if in_flight:
            report = self.reports[i]
            report.request = report.request or self._replacement_of(i)
            if self._flight.recorder is not None:
                self._flight.recorder.failed({i: error}, raised=False)
            self._flight.drop_result(i)
        return True

    def _end_first_resets(self) -> dict[int, EnvError]:
        """Try none of the first resets again if no env works; return the errors of those in flight.

        For when an error is raised: the others have failed likewise, and wait to be tried again.
        Not if each has its own error, and none is tried again.
        """
        if not self.retries_resets or self._flight.positions.any_worked():
            return {}
        found = {i: each.errors[-1] for i, each in self.reports.items() if each.request is not None}
        self._hosts.cancel(set(found))
        for i in found:
            self.recreation.forget(i)
        return found

    def _replacement_of(self, i: int) -> Request:
        """Return the request in place of the one in which env ``i`` failed."""
        if self.retries_resets and i in self._resets_in_flight:
            return self._resets_in_flight[i]
        # In next_step mode after the end of an episode, no step is lost.
        is_reset = self._env_options.autoreset_mode == NEXT_STEP and self._flight.positions.of(i)[1]
        if is_reset and i not in self._resets_in_flight:
            return Request("reset")
        obs = self._flight.batches.last_obs(i)
        return Request("lost_step", (obs,), no_autoreset=not self.retries_resets)

    def note_resets(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Note the resets that are about to be sent."""
        self._unread_failures.difference_update(ids)  # their rows were dropped
        if self.tracks_rows:
            self._resets_in_flight.update(zip(ids, requests, strict=True))

    def replacements(self, ids: Sequence[int]) -> dict[int, Request]:
        """Return the requests to send to those of these envs that failed, or are recreated."""
        return {
            i: self._replacement_of(i) for i in ids if i in self.reports or i in self.recreating
        }

    def send(self, requests: Mapping[int, Request]) -> None:
        """Send these requests to envs that failed, now or when they are recreated."""
        with interrupts.deferred():
            for i, request in requests.items():
                report = self.reports.setdefault(i, Report([]))
                report.request = request
                if i not in self.recreating:
                    self.recreation.send_replacement(i, report)

    def mark_cancelled(self, ids: Sequence[int], errors: Mapping[int, EnvError]) -> None:
        """Drop the requests of these envs; some had failed, see ``errors``.

        Such an error, or one that was not reported, is reported with the env's next row.
        """
        for i in ids:
            self._resets_in_flight.pop(i, None)
            self.row_errors.pop(i, None)
            if i in self.reports:
                self.reports[i].request = None
            if i in errors:
                self._begin_recreation(i, errors[i], in_flight=False)

    def mark_returned(self, ids: IdArray, completed: Collection[int]) -> None:
        """Update the records after rows were returned; some of them have ended an episode."""
        for i in completed:
            if i not in self.reports:
                self.recreation.failures[i] = 0
        self.reported = self._unread_failures & {*ids.tolist()} if self._unread_failures else set()
        self._unread_failures -= self.reported
        for i in ids.tolist() if self._resets_in_flight or self.reports else ():
            self._resets_in_flight.pop(i, None)
            report = self.reports.get(i)
            if report is not None and report.request is not None:
                if report.request.kind == "lost_step" and self._env_options.autoreset_mode is None:
                    self._states.state[i] = RESTARTED
                if report.errors:
                    self.reported.add(i)
                del self.reports[i]

    # ------------------------------------------------------------------------------- for sessions

    def begin_sessions(self) -> None:
        self.retries_resets, self.tracks_rows = False, True
        self._flight.batches.keep_last_obs()

    def end_sessions(self) -> None:
        """Leave it to the next reset of each failed env to recreate it."""
        self.retries_resets, self.tracks_rows = True, self.enabled or self.recreation.fresh_process
        planned = {i for i, one in self.recreating.items() if one.why is WhyRecreated.PLANNED}
        for i in {*self.reports} - planned:  # their errors were raised
            del self.reports[i]
        for i in {*self.recreating} - planned:  # to recycle an env is no restart
            self.recreating[i].why = WhyRecreated.REQUESTED

    def error_of(self, i: int) -> EnvError | None:
        """Return why env ``i`` does not live; None: as far as the pool has noticed, it does.

        It is dead for good (``States.dead``), or is being recreated. Whether its process runs, and
        why it ends, say the host's ``life`` and ``exit``.
        """
        if i in self._states.dead or i in self.recreating:
            return self.errors().get(i) or self.death_of(i)
        return None

    def errors(self) -> dict[int, EnvError]:
        """Return the errors that next rows report."""
        return {i: each.errors[-1] for i, each in self.reports.items() if each.errors}

    def count_and_renew(self, i: int, error: EnvError | None, *, is_lost: bool) -> None:
        """Count this error of env ``i``, if any, whose request was cancelled, and renew the env.

        ``is_lost``: the env must be recreated in any case: its process is being killed.
        """
        if error is not None:
            with interrupts.deferred():
                self._begin_recreation(i, error, in_flight=False)
        if isinstance(self._hosts.of(i), RemoteHost):
            self.renew(i, is_lost=is_lost)

    def renew(self, i: int, *, is_lost: bool = False) -> None:
        """Recreate env ``i``, which is idle, if it does not live, or ``is_lost``.

        Its next row, of no step, says that the env can be reset.
        """
        request = Request("lost_step", (self._flight.batches.last_obs(i),))
        with interrupts.deferred():
            is_lost = is_lost or i in self._states.dead
            self._states.dead.discard(i)
            if is_lost and i not in self.recreating:
                self.recreating[i] = Recreating(why=WhyRecreated.STOPPED)
            self._flight.send(Selection(np.array([i])), STEPPING, [request])
            self._flight.ids_of_call = None
