"""The engine: batches in and out, by one code path for steps and resets on every kind of host.

::

    step, reset    check the states, store the actions, record, send
    fetch          wait for the results of some envs, or of the next ones that finish
    _deliver       gather the rows into a batch, complete the infos, set the states

Whole and partial batches, steps and resets differ only in the request that is sent and in the
number of results to wait for. ``flight`` holds what is under way.

Invariants:

* an env that raised is no longer in flight; the results that came with its error are kept, and
  returned by the next call that fetches, or dropped by a reset;
* an interrupted call (Ctrl-C, a signal handler that raises) cancels its requests, and those envs
  then accept no step before a reset;
* every request to an env whose process has ended raises the same error at once, unless
  ``engine.recovery`` handles it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_py.engine.batches import Batches
from envpool_py.engine.flight import Flight
from envpool_py.engine.states import RAISED, READY, RESETTING, STEPPING
from envpool_py.env import spaces
from envpool_py.env.block import BESIDE, FINAL, OVER, Beside, StepResult
from envpool_py.env.common_spec import common_spec
from envpool_py.env.request import Request
from envpool_py.env.validation import warn_of_rows
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, combine
from envpool_py.interrupts import is_interrupt
from envpool_py.options import AllOptions
from envpool_py.worker.host_group import HostGroup

_NO_MARK = bytes(1)


class Engine:
    """Carries out the requests of a pool to its envs.

    ``publish_early``: batches may be partial.

    Attributes:
        flight: the requests in flight. ``hosts``, ``states``, ``arrivals``: its own.
        all: all envs, in order.
        batch_ids: the envs of the last batch that was returned.
        exact: partial batches have no more than ``wait_num`` rows; other results are kept.
        counts: the number of batches that were returned, and of rows in them.
        warned: the kinds of warnings about rows that were issued; each once per pool.
    """

    def __init__(self, hosts: HostGroup, options: AllOptions, *, publish_early: bool) -> None:
        self.options = options
        pool, env = options.pool, options.env
        self.flight = flight = Flight(hosts, publish_early=publish_early)
        self.hosts, self.states, self.arrivals = hosts, flight.states, flight.arrivals
        self.batch_ids: IdArray = np.empty(0, dtype=np.intp)
        self.exact = False
        self.counts = [0, 0]
        self.warned: set[str] = set()
        self.all = Selection(np.arange(hosts.num_envs), is_whole=True)
        try:
            self.env_spaces = hosts.start(self.arrivals.chunks, flight.refuse_if_closed)
            spec = common_spec(self.env_spaces, env.autoreset_mode, columns=pool.columns)
            self.block = hosts.attach(spec._replace(measured=pool.measure))
            flight.attach(self.block)
            self.batches = Batches(self.block, columns=pool.columns, copy=pool.copy)
        except BaseException:
            self.close()
            raise

    def step(self, envs: Selection, actions: Any) -> StepResult:
        """Step these envs and wait for all of them; after an interrupt reset them first.

        Raises:
            ResetNeeded, AlreadyPendingCallError, EnvError: an env accepts no step, or has failed.
            TypeError, ValueError: the actions are wrong; nothing was sent.
        """
        self.states.check_step(envs)
        sent = False
        try:
            self._send_steps(envs, actions)
            sent = True
            # Made while the envs step.
            infos = self.batches.bare_infos(envs.ids.tolist())
            return self.fetch(envs, infos)
        except BaseException as error:
            self._cancel_interrupted(envs.ids, error, sent=sent)
            raise

    def reset(self, envs: Selection, requests: Sequence[Request]) -> StepResult:
        """Reset these envs, after ``claim_reset``, and wait for all of them; see ``step``."""
        sent = False
        try:
            self.send_resets(envs, requests)
            sent = True
            return self.fetch(envs, resets=False)
        except BaseException as error:
            self._cancel_interrupted(envs.ids, error, sent=sent)
            raise

    def send_steps(self, envs: Selection, actions: Any) -> None:
        self.states.check_step(envs)
        self._send_steps(envs, actions)

    def _send_steps(self, envs: Selection, actions: Any) -> None:
        if self.flight.recovery.failed:
            try:
                envs, actions = self.flight.recovery.take_steps(envs, actions)
            except BaseException:
                self.flight.cancel(envs.ids)
                raise
        stored = self.block.put_actions(envs, actions)
        ids = envs.ids
        requests = None
        if not stored:
            actions = spaces.list_actions(self.block.spec.action, actions, ids.tolist())
            requests = [Request("step", (action,)) for action in actions]
        if self.flight.recorder is not None:
            self.flight.recorder.requests(ids, requests)
        self.flight.send(envs, STEPPING, requests)

    def claim_reset(self, ids: IdArray) -> None:
        """Raise unless these envs accept a reset; drop their results that were left unread."""
        unread = self.states.unread.intersection(ids.tolist())
        if unread:
            self.states.check_free(np.setdiff1d(ids, list(unread)))
            self.flight.cancel(np.array(sorted(unread), dtype=np.intp))
        self.states.check_free(ids)

    def send_resets(self, envs: Selection, requests: Sequence[Request]) -> None:
        """Send a reset to each of these envs, which must accept one."""
        self.flight.positions.mark_sent(envs.ids.tolist(), requests)
        try:
            envs, requests = self.flight.recovery.take_resets(envs, requests)
        except BaseException:
            self.flight.cancel(envs.ids)
            raise
        if self.flight.recorder is not None:
            self.flight.recorder.requests(envs.ids, requests)
        plain = not any(request.kwargs or request.error for request in requests)
        self.flight.send(envs, RESETTING, None if plain else requests)

    def fetch(
        self, envs: Selection, infos: spaces.Array | None = None, *, resets: bool = True
    ) -> StepResult:
        """Wait for these envs, all in flight, and return their rows in this order.

        ``infos``: bare infos that were made before. ``resets``: set ``is_reset`` in the infos of
        resets. EnvError if an env raised, or its process ended.
        """
        while True:
            self.flight.wait(len(envs.ids), None, envs.ids)
            batch = self._deliver(envs, infos, resets=resets)
            if batch is not None:
                return batch

    def fetch_next(self, wait_num: int, timeout: float | None, *, strict: bool) -> StepResult:
        """Wait for ``wait_num`` results, or for all in flight if they are fewer; return the rows.

        After ``timeout`` seconds return fewer rows: at least one, or none with ``strict``. EnvError
        if an env raised, or its process ended.
        """
        flight, states = self.flight, self.states
        deadline = None
        if timeout is not None:
            deadline = timeout + (flight.polls_since or time.monotonic())
        while True:
            ids = flight.wait(min(wait_num, states.num_in_flight), deadline, None)
            if deadline is not None and not strict and not len(ids):
                ids = flight.wait(1, None, None)
            if self.exact:
                ids, late = ids[:wait_num], ids[wait_num:]
                states.unread.update(late.tolist())
            batch = self._deliver(Selection(ids))
            if batch is not None:
                return batch

    def _deliver(
        self, envs: Selection, infos: spaces.Array | None = None, *, resets: bool = True
    ) -> StepResult | None:
        """Make a batch of the results of these envs, which have all arrived; see ``fetch``.

        None if recovery handles an env that failed: its result is still to come. If EnvError is
        raised, the results of the other envs are kept.
        """
        flight, recovery, ids = self.flight, self.flight.recovery, envs.ids
        if flight.closed:
            flight.refuse_if_closed()
        try:
            marks = self.block.mark[envs.index]
            marked: list[tuple[int, int]] = []
            beside: dict[int, Beside] = {}
            if marks.tobytes().strip(_NO_MARK):  # faster than NumPy's functions
                marked = [(k, marks.item(k)) for k in marks.nonzero()[0].tolist()]
                if not self._take_beside(ids, marked, beside):
                    return None
            parts, obs, reward, terminated, truncated = self.batches.gather(envs, beside)
            if infos is None:
                infos = self.batches.bare_infos(ids.tolist())
            if marked:
                listed = ids.tolist()
                self.batches.complete(infos, listed, marked, beside, resets=resets)
                flight.positions.mark_returned(listed, marked)
            if flight.recorder is not None:
                flight.recorder.rows(ids, parts, reward, terminated, truncated)
            self.arrivals.remove(ids)
            self.states.mark_returned(envs, READY)
            if recovery.enabled:
                recovery.returned(ids, [int(ids[k]) for k, m in marked if m & (FINAL | OVER)])
            self.batch_ids = ids
            self.counts[0] += 1
            self.counts[1] += len(ids)
        except BaseException as error:
            self._cancel_interrupted(ids, error)
            raise
        return obs, reward, terminated, truncated, infos

    def _take_beside(
        self, ids: IdArray, marked: list[tuple[int, int]], beside: dict[int, Beside]
    ) -> bool:
        """Take the values beside the rows of these envs; False if recovery handles an error."""
        flight, recovery = self.flight, self.flight.recovery
        errors: dict[int, EnvError] = {}
        handled = False
        for k, mark in marked:
            if not mark & BESIDE:
                continue
            i = int(ids[k])
            if i not in flight.beside:
                kind = "reset" if self.states.state[i] == RESETTING else "step"
                flight.beside[i] = self.hosts.of(i).take_item(int(self.states.tokens[i]), kind)
            found = flight.beside[i]
            if not isinstance(found, EnvError):
                beside[i] = found
            elif recovery.handle(i, found, in_flight=True):
                flight.forget_result(i)
                handled = True
            else:
                errors[i] = found
        if errors:
            failed = np.array(list(errors), dtype=np.intp)
            if flight.recorder is not None:
                flight.recorder.failed(errors, raised=True)
            for i in errors:
                flight.forget_result(i)
            self.states.mark_returned(Selection(failed), RAISED)
            self.states.unread.update(np.setdiff1d(ids, failed).tolist())
            raise combine(list(errors.values()))
        if beside and not handled:
            for i in beside:
                flight.beside.pop(i, None)
            warn_of_rows(beside, self.warned)
        return not handled

    def _cancel_interrupted(self, ids: IdArray, error: BaseException, *, sent: bool = True) -> None:
        """Cancel the requests of a call that raised, if an interrupt was the reason."""
        if isinstance(error, EnvError) and not is_interrupt(error):
            return
        self.flight.cancel(ids)
        ready = ids[self.states.state[ids] == READY]
        if sent and len(ready):  # their rows were about to be returned
            self.states.mark_cancelled(ready)
            if self.flight.recorder is not None:
                self.flight.recorder.cancelled(ready.tolist(), [True] * len(ready))

    def close(self) -> list[EnvError]:
        self.flight.stop()
        errors = self.hosts.close()
        # Free the memory and its descriptor, even if the pool stays referenced.
        for owner in (self, self.flight):
            for name in ("block", "batches", "positions"):
                vars(owner).pop(name, None)
        return errors
