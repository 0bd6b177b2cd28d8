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
  env that is being stepped in this process. On the path of every step the order of the lines gives
  that; everything else runs within ``interrupts.deferred``;
* a late result of a cancelled request is dropped, however late it comes: values and errors are
  kept by token, and a cancelled or failed request never shares its token with the next one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import interrupts
from envpool_py.engine.arrivals import Arrivals
from envpool_py.engine.batches import Batches
from envpool_py.engine.env_states import READY, RESETTING, RESTARTED, States
from envpool_py.engine.episode_positions import Positions
from envpool_py.env.block import BESIDE, Beside, Block
from envpool_py.env.request import ASK, GENERATION, ID_MASK, TOKEN_BYTES, Request
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, name_ids
from envpool_py.record.record_writer import RecordWriter
from envpool_py.worker.host_group import HostGroup

if TYPE_CHECKING:
    import asyncio

#: Seconds after which an env without a result is named in the log.
HANGS_AFTER = 30.0
_NO_ENVS = np.empty(0, dtype=np.intp)
#: Seconds for which the caller steps its own envs before it collects results of the worker
#: processes again, in partial batches.
TIME_SLICE = 150e-6

_LOGGER = logging.getLogger("envpool_py")


class NotYet(Exception):  # noqa: N818 - no error
    """Raised in place of a wait: look again after ``seconds``, or when something has arrived."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


@dataclass
class Asked:
    """A request without a row, sent at ``since``; when it is answered, its host has the reply."""

    request: Request
    since: float
    is_answered: bool = False


class Flight:
    """The requests of a pool that are in flight.

    Attributes:
        publish_early: batches may be partial, so results are published one by one.
        asked: by token, the requests without a row.
        closed: whether the pool was closed, possibly by another thread or a signal handler.
        ids_of_call: the envs that an interrupt of the call under way cancels. If a second interrupt
            has prevented that, the next call does it. None: there is nothing to do.
        polls_since: when ``recv_async`` began to wait, while it calls ``recv``: waits then raise
            ``NotYet``; else None.
        waiter: the task of the event loop that waits; of open sessions a future; else None.
        recorder: records every request and every result; None without ``record=``.
        recording_guard: the block in which requests without a row are sent and end. With a recorder
            it defers interrupts, and so does ``send``: the record has what the envs were sent.
        recovery: handles failed envs; a ``Recovery``, which is made after the block.
    """

    recovery: Any

    def __init__(self, hosts: HostGroup, *, publish_early: bool) -> None:
        self.hosts = hosts
        self.publish_early = publish_early
        self.states = States(hosts.num_envs)
        self.arrivals = Arrivals(self.states)
        self.asked: dict[int, Asked] = {}
        self.recorder: RecordWriter | None = None
        self.recording_guard: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        self.closed = False
        self.ids_of_call: IdArray | None = None
        self.polls_since: float | None = None
        self.waiter: asyncio.Future[Any] | None = None
        self._hanging: set[int] = set()
        self._next_hang_check = time.monotonic() + HANGS_AFTER

    def attach(self, block: Block, batches: Batches, positions: Positions) -> None:
        self.block, self.batches, self.positions = block, batches, positions

    def send(self, envs: Selection, state: int, requests: Sequence[Request] | None) -> None:
        """Send a step or a reset to each of these envs; requests with arguments are pickled.

        ``requests`` is None for steps whose actions are in the block. Envs that failed while idle
        get another request, which recovery sends, now or when they are recreated. The envs are then
        ``ids_of_call``, until the caller has their results or has no more to do.
        """
        live, lost, recovery = envs, None, self.recovery
        if recovery.reports or recovery.recreating:
            lost = recovery.replacements(envs.ids.tolist())
        if lost:
            left = [k for k, i in enumerate(envs.ids.tolist()) if i not in lost]
            live = Selection(envs.ids[left])
            requests = None if requests is None else [requests[k] for k in left]
        if self.recorder is not None:
            self.recorder.requests(live.ids, requests)
        is_reset = state == RESETTING
        if is_reset and not any(r.kwargs or r.error or r.no_autoreset for r in requests or ()):
            requests = None  # plain resets are sent as their tokens
        tokens = self.states.tokens
        if requests is not None:
            messages = self.hosts.prepare_requests(live.ids, tokens, requests)
        else:
            messages = self.hosts.prepare_plain_requests(
                live.index, tokens, reset=is_reset, publish_early=self.publish_early
            )
        self.ids_of_call = envs.ids
        try:
            self.states.mark_sent(envs, state)
            for send in messages:
                send()
            if lost:
                self.recovery.send(lost)
        except BaseException:
            self.cancel(envs.ids)
            self.ids_of_call = None
            raise

    def wait(self, goal: int, deadline: float | None, only: IdArray | None) -> IdArray:
        """Wait until ``deadline`` for ``goal`` results, including those of the envs ``only``.

        Return the envs whose results have arrived, in the order of arrival.
        """
        arrivals, token_chunks = self.arrivals, self.arrivals.token_chunks
        wanted: set[int] | None = None
        if only is not None and self.states.num_in_flight != len(only):
            wanted = set(only.tolist())
        while True:
            if self.asked:
                self.take_replies()
            missing = goal - sum(map(len, token_chunks)) // TOKEN_BYTES
            left = None if deadline is None else deadline - time.monotonic()
            if missing <= 0 or (left is not None and left <= 0):
                if self.closed:  # then the message that ends a sleep is among the results
                    self.refuse_if_closed()
                if self.hosts.supervisor is None and wanted is None and only is not None:
                    return only  # without processes, nothing else writes results
                ids = arrivals.ids_if_valid()
                if ids is None:
                    if not arrivals.drop_stale() and not self.take_replies():
                        self._kill_writers()
                    continue
                if wanted is None:
                    return ids
                missing = len(wanted.difference(ids.tolist()))
                if not missing:
                    return ids
            if self.polls_since is not None:
                found, seconds = self.advance_nowait(1.0 if left is None else left)
                raise NotYet(0.0 if found else seconds)
            self.advance(missing, left, wanted)

    def advance(self, missing: int, left: float | None, wanted: set[int] | None) -> None:
        """Step the envs of this process, or wait at most ``left`` seconds for an event.

        ``missing``: the number of results still to wait for, including those of ``wanted``.
        """
        if self.closed:
            self.refuse_if_closed()
        token_chunks = self.arrivals.token_chunks
        if self.recovery.reports:
            count = len(token_chunks)
            left = self.recovery.recreate_due(left)
            if len(token_chunks) != count:
                return
        if self.hosts.local:
            (host,) = self.hosts.local  # there is never more than one
            seconds = left
            if self.hosts.supervisor is not None:
                missing, seconds = self.hosts.num_envs, TIME_SLICE if self.publish_early else None
            ids_of_call = self.ids_of_call
            self.ids_of_call = _NO_ENVS if ids_of_call is None else ids_of_call
            try:
                has_run = host.run(token_chunks, missing, seconds, wanted)
            except BaseException:
                self.settle()
                raise
            self.ids_of_call = ids_of_call
            if has_run:
                if self.hosts.supervisor is None or not self.publish_early:
                    return
                left = 0.0
        supervisor = self.hosts.supervisor
        if supervisor is None:
            self.hosts.open_lock.acquire(timeout=-1 if left is None else max(left, 0.0))
            return
        if not supervisor.poller.end_noticed:
            if supervisor.timed:
                left = supervisor.time_left(left)
            spin_for = self.hosts.spin_for * (left != 0)
            supervisor.poller.fetch(self.arrivals.token_chunks, spin_for, left)
        if supervisor.poller.end_noticed or (supervisor.timed and not supervisor.time_left(None)):
            self.handle_ended_processes()
        if time.monotonic() > self._next_hang_check:
            self._log_hangs()

    def advance_nowait(self, longest: float = 1.0) -> tuple[bool, float]:
        """Do what ``advance`` does without waiting.

        Return whether results have arrived, and the seconds until the next poll: ``longest``, or 1.
        """
        before = b"".join(self.arrivals.token_chunks)
        self.advance(1, 0.0, None)
        left: float | None = min(longest, 1.0)
        if self.recovery.reports:
            left = self.recovery.recreate_due(left)
        if self.hosts.supervisor is not None and self.hosts.supervisor.timed:
            left = self.hosts.supervisor.time_left(left)
        return b"".join(self.arrivals.token_chunks) != before, 1.0 if left is None else left

    def _log_hangs(self) -> None:
        """Log the envs in worker processes that have no answer for long, each once.

        Envs that wait for another one in their process are named apart. Also end processes whose
        env is recreated for too long.
        """
        if (supervisor := self.hosts.supervisor) is None:
            return
        if not supervisor.time_left(None):
            self.handle_ended_processes()
        late = self.states.sent_before(time.monotonic_ns() - int(HANGS_AFTER * 1e9))
        late -= set(self.arrivals.ids().tolist())
        begun_by = time.monotonic() - HANGS_AFTER
        late |= {
            token & ID_MASK
            for token, one in self.asked.items()
            if not one.is_answered and one.since < begun_by
        }
        late -= {i for host in self.hosts.local for i in host.ids}
        if late - self._hanging:
            begun = late & supervisor.begun(late)
            text = f"{name_ids(sorted(begun or late))}: no result for {HANGS_AFTER:g} seconds"
            if begun and late - begun:
                text += f"; {name_ids(sorted(late - begun))} in the same process: waiting"
            if not self.block.spec.timed:
                text += "; with step_timeout= this would be an error"
            with interrupts.deferred():  # else an interrupt might leave the logger's lock held
                _LOGGER.warning(text)
        self._hanging = late
        self._next_hang_check = time.monotonic() + HANGS_AFTER / 10

    def take_replies(self) -> bool:
        """Note the replies that have arrived, if any; those that nobody waits for are dropped."""
        tokens = self.arrivals.tokens()
        replies = tokens[(tokens & ASK != 0) & (tokens >= 0)].tolist()
        for token in replies:
            if token in self.asked:
                self.asked[token].is_answered = True
        if replies:
            self.arrivals.token_chunks[:] = [tokens[~np.isin(tokens, replies)].tobytes()]
        return bool(replies)

    def take_reply(self, token: int) -> Beside | EnvError:
        """Return the reply to a request without a row that is answered, and forget both."""
        host = self.hosts.of(token & ID_MASK)
        reply = host.values_or_error(token, self.asked[token].request.kind)
        host.forget_item(token)
        del self.asked[token]  # last: after an interrupt ``forget_asked`` drops the item
        return reply

    def forget_asked(self, token: int) -> None:
        """Forget a request without a row, and its reply."""
        one = self.asked.pop(token, None)
        if one is not None and one.is_answered:  # else the item may be that of a later request
            self.hosts.of(token & ID_MASK).forget_item(token)

    def settle(self) -> None:
        """After an interrupt, publish what envs here have finished; cancel the interrupted ones."""
        with interrupts.deferred():
            lost = [i for host in self.hosts.local for i in host.settle(self.arrivals.token_chunks)]
            self.arrivals.drop_stale()  # also drops results that were published twice
            for i in lost:
                self.drop_result(i)  # there is a token, but no row
            if lost:
                self.cancel(np.array(lost, dtype=np.intp))

    def end_interrupted(self, ids: IdArray, *, sent: bool = True) -> None:
        """End an interrupted call for these envs; ``sent``: their rows may have been taken."""
        with interrupts.deferred():
            self.settle()
            self.cancel(ids)
            ready = ids[np.isin(self.states.state[ids], (READY, RESTARTED))]
            if sent and len(ready):  # their rows were about to be returned
                self.states.mark_cancelled(ready)
                self.recovery.mark_cancelled(ready.tolist(), {})
                if self.recorder is not None:
                    self.recorder.cancelled(ready.tolist(), [True] * len(ready))
            self.ids_of_call = None

    def values_and_errors(
        self, ids: IdArray, marked: Sequence[tuple[int, int]]
    ) -> tuple[dict[int, Beside], dict[int, EnvError]]:
        """Return, for the envs at the ``marked`` places, the values beside rows, and the errors.

        They are kept until ``forget_items``.
        """
        beside: dict[int, Beside] = {}
        errors: dict[int, EnvError] = {}
        found: Beside | EnvError | None
        for k, mark in marked:
            if mark & BESIDE:
                i = ids.item(k)
                token = self.states.tokens.item(i)
                kind = "reset" if self.states.state.item(i) == RESETTING else "step"
                found = self.recovery.row_errors.get(i)
                if found is None:
                    found = self.hosts.of(i).values_or_error(token, kind)
                if isinstance(found, EnvError):
                    errors[i] = found
                else:
                    beside[i] = found
        return beside, errors

    def forget_items(self, ids: Iterable[int]) -> None:
        for i in ids:
            self.hosts.of(i).forget_item(self.states.tokens.item(i))

    def drop_result(self, i: int) -> None:
        """Drop the result of env ``i``, if any; its next request has another token."""
        self.forget_items([i])
        self.states.tokens[i] += GENERATION
        self.arrivals.drop_stale()

    def cancel(self, ids: IdArray) -> None:
        """Cancel the requests of these envs; they then accept no step before a reset.

        An error that has arrived in place of a result is still handled by recovery.
        """
        if self.closed:
            return
        with interrupts.deferred():
            cancelled = ids[self.states.in_flight()[ids]]
            self.states.recount()
            if not len(cancelled):
                return
            listed = cancelled.tolist()
            arrived = self.arrivals.ids()
            arrived = arrived[np.isin(arrived, cancelled)]
            errors: dict[int, EnvError] = {}
            if self.recovery.enabled:
                marked = [(k, self.block.mark.item(i)) for k, i in enumerate(arrived.tolist())]
                _, errors = self.values_and_errors(arrived, marked)
            self.forget_items(listed)
            self.states.mark_cancelled(cancelled)
            carried_out = self.hosts.cancel(set(listed)).union(arrived.tolist())
            self.arrivals.drop_stale()
            for i in listed:
                self.positions.mark_cancelled(i, carried_out=i in carried_out)
            if self.recorder is not None:
                self.recorder.cancelled(listed, [i in carried_out for i in listed])
            self.recovery.mark_cancelled(listed, errors)

    def handle_ended_processes(self) -> None:
        """Handle processes that have ended, and envs that exceed ``step_timeout``.

        It looks at what is true now, so it may be called at any time and any number of times.
        """
        self.refuse_if_closed()
        if (supervisor := self.hosts.supervisor) is None:
            return
        with interrupts.deferred():
            for late in supervisor.enforce_deadlines():
                self.recovery.recreate_or_raise_later({late.env_id: late})
            for host in supervisor.hosts:
                if host.reap():
                    supervisor.poller.collect(self.arrivals.token_chunks)
                    deaths = {i: self.recovery.death_of(i, is_counted=False) for i in host.ids}
                    self.recovery.recreate_or_raise_later(deaths)
            supervisor.poller.end_noticed = False

    def _kill_writers(self) -> None:
        """Kill every process with an env in flight, after data that is no result came in the pipe.

        Any of these processes may have written the data, and any of their results may be lost.
        """
        supervisor = self.hosts.supervisor
        assert supervisor is not None  # noqa: S101 - only processes write tokens
        with interrupts.deferred():
            self.arrivals.token_chunks.clear()
            in_flight = self.states.in_flight()
            for local in self.hosts.local:  # their results were beside that data
                done = set(local.ids).difference(token & ID_MASK for token in local.unbegun())
                ids = np.array([i for i in done if in_flight[i]], np.intp)
                self.arrivals.token_chunks.append(self.states.tokens[ids].tobytes())
            asked = {token & ID_MASK for token in self.asked}
            for host in supervisor.hosts:
                if in_flight[host.ids].any() or not asked.isdisjoint(host.ids):
                    host.end("something wrote into the pipe of the results")
            supervisor.poller.collect([])
            self.handle_ended_processes()

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed while a call waited; make a new pool")

    def mark_closed(self) -> None:
        self.closed = True
        self.hosts.wake()
