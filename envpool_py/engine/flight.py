"""Requests in flight: send them, wait for their results, cancel them, handle processes that end.

::

    send ──── a message to each host ────▶ hosts step their envs
                                                │ rows into the block, values beside it into items
    wait ◀─── chunks of tokens ◀────────────────┘ then the tokens of finished requests
      └ advance: run local hosts, or sleep until results, the end of a process, a deadline
                    └ handle_ended_processes: an error becomes the result of each env in flight

Guarantees:

* an env is in flight from ``send`` until its result is returned, raised or cancelled;
* an interrupt (Ctrl-C, a signal handler that raises) at any line loses no result but that of the
  env that is being stepped in this process;
* a late result of a cancelled request is dropped, however late it comes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py.engine.arrivals import Arrivals
from envpool_py.engine.episode_positions import Positions
from envpool_py.engine.states import RESETTING, States
from envpool_py.env.block import BESIDE, Beside, Block
from envpool_py.env.request import Request
from envpool_py.env.tokens import GENERATION, TOKEN_BYTES, pack_token
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, name_ids
from envpool_py.record.recorder import Recorder
from envpool_py.worker.host_group import HostGroup

#: Seconds after which an env without a result is named in the log.
HANGS_AFTER = 30.0
#: Seconds for which the caller steps its own envs before it collects results of the worker
#: processes again, in partial batches.
SLICE = 150e-6

_LOGGER = logging.getLogger("envpool_py")


class NotYet(Exception):  # noqa: N818 - no error
    """Raised in place of a wait: look again after ``seconds``, or when something has arrived."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Flight:
    """The requests of a pool that are in flight.

    Attributes:
        publish_early: batches may be partial, so results are published one by one.
        beside: for each env the values beside its row, or its error, until they are returned.
        replies: the envs with a request without a row, and their replies; None: not yet known.
        closed: whether the pool was closed, possibly by another thread or a signal handler.
        polls_since: when the wait of an event loop began; waits then raise ``NotYet``. Else None.
        is_awaited: whether an event loop waits.
        recorder: writes down every request and every result; None without ``record=``.
        recovery: handles failed envs, see ``engine.recovery``.
    """

    def __init__(self, hosts: HostGroup, *, publish_early: bool) -> None:
        self.hosts = hosts
        self.publish_early = publish_early
        self.states = States(hosts.num_envs)
        self.arrivals = Arrivals(self.states)
        self.beside: dict[int, Beside | EnvError] = {}
        self.replies: dict[int, Any] = {}
        self.recorder: Recorder | None = None
        self.recovery: Any = None
        self.closed = False
        self.polls_since: float | None = None
        self.is_awaited = False
        self._hanging: set[int] = set()
        self._next_look = time.monotonic() + HANGS_AFTER

    def attach(self, block: Block) -> None:
        self.block = block
        self.positions = Positions(block)

    def send(self, envs: Selection, state: int, requests: Sequence[Request] | None) -> None:
        """Send a step or a reset to each of these envs; requests with arguments are pickled."""
        tokens = self.states.tokens
        if requests is not None:
            messages = self.hosts.prepare_requests(envs.ids, tokens, requests)
        else:
            messages = self.hosts.prepare_tokens(
                envs.index, tokens, reset=state == RESETTING, publish_early=self.publish_early
            )
        try:
            self.states.mark_sent(envs, state)
            for send in messages:
                send()
        except BaseException:
            self.cancel(envs.ids)
            raise

    def send_again(self, i: int, request: Request) -> None:
        """Send a request to env ``i``, which is in flight; used by recovery."""
        if self.recorder is not None:
            self.recorder.requests(np.array([i]), [request])
        self.hosts.of(i).prepare_requests([(int(self.states.tokens[i]), request)])()

    def wait(self, goal: int, deadline: float | None, only: IdArray | None) -> IdArray:
        """Wait until ``deadline`` for ``goal`` results, including those of the envs ``only``.

        Return the envs whose results have arrived, in the order of arrival.
        """
        arrivals, chunks = self.arrivals, self.arrivals.chunks
        wanted: set[int] | None = None
        if only is not None and self.states.num_in_flight != len(only):
            wanted = set(only.tolist())
        try:
            while True:
                missing = goal - sum(map(len, chunks)) // TOKEN_BYTES
                left = None if deadline is None else deadline - time.monotonic()
                if missing <= 0 or (left is not None and left <= 0):
                    if self.hosts.supervisor is None and wanted is None and only is not None:
                        return only  # without processes, nothing else writes results
                    ids = arrivals.valid_ids()
                    if ids is None:
                        if not arrivals.drop_stale():
                            self._kill_writers()
                        continue
                    if wanted is None:
                        return ids
                    missing = len(wanted.difference(ids.tolist()))
                    if not missing:
                        return ids
                (self.advance if self.polls_since is None else self._poll)(missing, left, wanted)
        except BaseException:
            self.publish_finished()
            raise

    def advance(self, missing: int, left: float | None, wanted: set[int] | None) -> None:
        """Step the envs of this process, or wait at most ``left`` seconds for an event.

        ``missing``: the number of results still to wait for, including those of ``wanted``.
        """
        if self.closed:
            self.refuse_if_closed()
        chunks, supervisor = self.arrivals.chunks, self.hosts.supervisor
        # While a call waits for replies, recovery may be the caller: it must not run again.
        if self.recovery.failed and not self.replies:
            count = len(chunks)
            left = self.recovery.run_jobs(left)
            if len(chunks) != count:
                return
        if self.hosts.local and self._step_here(missing, left, wanted):
            return
        if supervisor is None:
            self.hosts.closing.wait(left)
        else:
            if supervisor.timed:
                left = supervisor.timeout(left)
            left = HANGS_AFTER if left is None else min(left, HANGS_AFTER)
            if supervisor.poller.fetch(chunks, self.hosts.spin_for, left) or supervisor.timed:
                self.handle_ended_processes()
            if time.monotonic() > self._next_look:
                self._log_hanging()

    def _step_here(self, missing: int, left: float | None, wanted: set[int] | None) -> bool:
        """Step envs of this process; return whether any was stepped."""
        chunks, supervisor, seconds = self.arrivals.chunks, self.hosts.supervisor, left
        if supervisor is not None:
            missing, seconds = self.hosts.num_envs, SLICE if self.publish_early else None
        (host,) = self.hosts.local  # there is never more than one
        if not host.run(chunks, missing, seconds, wanted):
            return False
        if supervisor is not None and self.publish_early:
            supervisor.poller.collect(chunks)
        if supervisor is not None and supervisor.timed:
            self.handle_ended_processes()
        return True

    def _poll(self, missing: int, left: float | None, wanted: set[int] | None) -> None:
        """Do what ``advance`` does without waiting, then raise NotYet."""
        before = b"".join(self.arrivals.chunks)
        self.advance(missing, 0.0, wanted)
        left = self.recovery.run_jobs(left)
        if self.hosts.supervisor is not None:
            left = self.hosts.supervisor.timeout(left)
        found = b"".join(self.arrivals.chunks) != before
        raise NotYet(0.0 if found else 1.0 if left is None else min(left, 1.0))

    def _log_hanging(self) -> None:
        """Name, once, the envs in worker processes whose requests have no result for long."""
        late = self.states.sent_before(time.monotonic_ns() - int(HANGS_AFTER * 1e9))
        late -= {*self.arrivals.ids().tolist()} | {i for host in self.hosts.local for i in host.ids}
        if late - self._hanging:
            text = "%s: no result for %d seconds; with step_timeout= this would be an error"
            _LOGGER.warning(text, name_ids(sorted(late)), HANGS_AFTER)
        self._hanging = late
        self._next_look = time.monotonic() + HANGS_AFTER / 10

    def publish_finished(self) -> None:
        """After an interrupt, publish what envs here have finished; cancel the interrupted ones."""
        lost = [i for host in self.hosts.local for i in host.settle(self.arrivals.chunks)]
        self.arrivals.drop_stale()  # also drops results that were published twice
        if lost:
            self.cancel(np.array(lost, dtype=np.intp))

    def forget_result(self, i: int) -> None:
        """Drop the result of env ``i``, which stays in flight."""
        self.arrivals.remove([i])
        self.beside.pop(i, None)

    def cancel(self, ids: IdArray) -> None:
        """Cancel the requests of these envs; they then accept no step before a reset."""
        if self.closed:
            return
        cancelled = ids[self.states.in_flight()[ids]]
        if not len(cancelled):
            self.states.recount()
            return
        self.arrivals.drop_stale()
        arrived = set(self.arrivals.ids().tolist())
        listed = cancelled.tolist()
        for i in listed:
            self.beside.pop(i, None)
        self.states.mark_cancelled(cancelled)
        carried_out = self.hosts.cancel(set(listed)) | arrived
        self.arrivals.drop_stale()
        for i in listed:
            self.positions.mark_cancelled(i, carried_out=i in carried_out)
        if self.recorder is not None:
            self.recorder.cancelled(listed, [i in carried_out for i in listed])
        self.recovery.cancelled(listed)

    def handle_ended_processes(self) -> None:
        """Handle processes that have ended, and envs that exceed ``step_timeout``."""
        self.refuse_if_closed()
        supervisor = self.hosts.supervisor
        if supervisor is None:
            return
        self.arrivals.drop_stale()
        for late in supervisor.enforce_deadlines():
            self._lose(late.env_id, late)
        for host in supervisor.hosts:
            if not host.reap():
                continue
            supervisor.poller.collect(self.arrivals.chunks)
            self.arrivals.drop_stale()
            for i in () if host.restart_begun else host.ids:  # if so, the restart handles it
                error = host.death_of(i)
                if not self._lose(i, error):
                    self.states.mark_dead(i, error)
            host.ended = False  # last: after an interrupt, all of this is repeated

    def _lose(self, i: int, error: EnvError) -> bool:
        """Env ``i`` is lost, with its request in flight, if any; whether recovery handles that."""
        asked, in_flight = i in self.replies, self.states.in_flight()[i]
        if asked and self.replies[i] is None:  # in flight too if recovery asks
            self.replies[i] = error
        unanswered = in_flight and not asked and i not in self.arrivals.ids()
        if unanswered:
            self.positions.mark_unanswered(i)
            if not error.request:
                error.request = "reset" if self.states.state[i] == RESETTING else "step"
        if self.recovery.handle(i, error, in_flight=unanswered):
            self.states.tokens[i] += GENERATION * unanswered
            return True
        if unanswered:
            self.fail(i, error)
        return False

    def fail(self, i: int, error: EnvError) -> None:
        self.states.tokens[i] += GENERATION
        self.block.mark[i] = BESIDE
        self.beside[i] = error
        self.arrivals.chunks.append(pack_token(int(self.states.tokens[i])))

    def _kill_writers(self) -> None:
        """Kill every process with an env in flight, after data that is no result came in the pipe.

        Any of these processes may have written the data, and any of their results may be lost.
        """
        supervisor = self.hosts.supervisor
        assert supervisor is not None  # noqa: S101 - only processes write tokens
        self.arrivals.chunks.clear()
        in_flight = self.states.in_flight()
        for host in supervisor.hosts:
            if in_flight[host.ids].any() or not self.replies.keys().isdisjoint(host.ids):
                host.end("something wrote into the pipe of the results")
        supervisor.poller.collect([])
        self.handle_ended_processes()

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed while a call waited; make a new pool")

    def stop(self) -> None:
        self.closed = True
        self.hosts.wake()
