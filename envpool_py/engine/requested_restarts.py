"""Recreate envs on request: ``pool.restart``, and ``pool.reset`` of envs whose process ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from envpool_py import interrupts
from envpool_py.engine.env_method_calls import Call, ask
from envpool_py.engine.failed import Phase, Recreating, WhyRecreated
from envpool_py.engine.flight import Flight
from envpool_py.engine.recreation import Recreation
from envpool_py.env.request import Request
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError, name_ids
from envpool_py.interrupts import ordinary
from envpool_py.worker.host import Life, RemoteHost
from envpool_py.worker.supervisor import GRACE

# Any process that is not in a step answers it at once.
_PING = Request("ping")


class RequestedRestarts:
    """Recreates envs when the program asks for it."""

    def __init__(self, flight: Flight, recreation: Recreation) -> None:
        self._flight, self._hosts, self._states = flight, flight.hosts, flight.states
        self._recreation = recreation

    def revive(self, ids: IdArray) -> None:
        """Recreate those of these envs whose process has ended, and those that sessions left."""
        self._flight.advance(0, 0.0, set())  # handles processes that have ended
        recreating, row_errors = self._recreation.recreating, self._recreation.row_errors
        left = [i for i, one in recreating.items() if one.why is WhyRecreated.REQUESTED]
        while True:  # other processes may end meanwhile
            unread, ended = self._states.unread, self._states.dead
            lost = [i for i in unread if i in ended or i in row_errors]
            self._flight.cancel(ids[np.isin(ids, lost)])
            dead = ids[np.isin(ids, [*self._states.dead_among(ids), *left])]
            if not len(dead):
                return
            self.restart(dead)
            ids = np.setdiff1d(ids, dead)

    def restart(self, ids: IdArray) -> None:
        """Recreate these envs, and all other envs of their processes that have ended.

        EnvError if an env_fn raised, or a process ended while it started.
        """
        usable, recreating = self._ping_or_kill(ids), self._recreation.recreating
        with interrupts.deferred():
            self._states.mark_cancelled(usable)  # they need a reset, even after an interrupt
            ended = {self._hosts.of(i) for i in np.setdiff1d(ids, usable).tolist()}
            requested = []
            for i in [*usable.tolist(), *(i for host in ended for i in host.ids)]:
                report = self._recreation.reports.get(i)
                if report is None or report.request is None:
                    self._recreation.forget(i)
                    starts = self._hosts.of(i).life is Life.STARTING
                    phase = Phase.STARTS if starts else Phase.WAITS
                    recreating[i] = Recreating(why=WhyRecreated.REQUESTED, phase=phase)
                    requested.append(i)
        self._recreation.await_recreated(requested)

    def _with_running_process(self, ids: IdArray) -> IdArray:
        """Return those of these envs whose process runs."""
        return ids[[self._hosts.of(i).life is Life.RUNNING for i in ids.tolist()]]

    def replace(self, ids: IdArray, env_fns: Sequence[Callable[[], object]]) -> None:
        """Put other envs, with the same spaces, in the places of these, now and at later restarts.

        EnvError if an env_fn raises or makes an env with other spaces: that env then needs an
        env_fn that fits.
        """
        supervisor, recorder = self._hosts.supervisor, self._flight.recorder
        usable = self._ping_or_kill(ids)
        fns = dict(zip(ids.tolist(), env_fns, strict=True))
        request_of = {i: Request("env_fn", (fn,)) for i, fn in fns.items()}
        if len(usable):
            ask(self._flight, usable, [request_of[i] for i in usable.tolist()])
        rest = np.setdiff1d(ids, usable).tolist()
        if recorder is not None:
            recorder.ask_writer(rest, [request_of[i] for i in rest])()
        for i, env_fn in fns.items():
            if supervisor is not None:
                supervisor.set_env_fn(i, env_fn)
        self.restart(ids)

    def _ping_or_kill(self, ids: IdArray) -> IdArray:
        """Return those of these envs, none in flight, whose process runs and answers.

        A process that carries out a cancelled step does not answer, and is killed. One that steps
        an env in flight is only late: it is waited for.
        """
        hosts = self._hosts
        self._flight.advance(0, 0.0, set())  # handles processes that have ended
        usable = self._with_running_process(ids)
        reports, recreating = self._recreation.reports, self._recreation.recreating
        waiting = [i for i in ids.tolist() if i in reports and reports[i].request]
        dead = self._states.dead_among(usable)  # a mate has restarted their process
        self._states.check_free(np.setdiff1d(np.union1d(usable, waiting).astype(np.intp), dead))
        for i in usable.tolist():
            if i in recreating and recreating[i].phase is Phase.CONFIGURES:  # it was interrupted
                self._flight.drop_result(i)  # else the reply would be that to the ping
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
                    if isinstance(host, RemoteHost):
                        host.end(f"{text} did not answer after a request was cancelled")
                        if not host.has_ended():
                            fact = f"{text}: its process does not end"
                            raise EnvError(fact, hung, "restart") from None
                self._flight.handle_ended_processes()
            except ordinary(EnvError):
                pass  # a process has ended: it is restarted
            finally:
                call.cancel()
            usable = self._with_running_process(usable)
        return usable
