"""The engine: one code path for every kind of request, and for envs in any process.

::

    dispatch   set the states and tokens of the envs, send one message to each host
    wait       collect results, step the envs of this process, sleep, until there are enough
    deliver    gather the rows into a batch, set the states, complete the infos

Whole and partial batches, steps and resets differ only in the request that is dispatched and in the
number of results to wait for. Values that the block cannot hold (objects, options) are pickled.

Invariants:

* an env that raised is no longer in flight; the results that came with its error are kept, and
  returned by the next call that fetches, or dropped by a reset;
* an interrupted call (Ctrl-C, a signal handler that raises) cancels its requests, and those envs
  then accept only a reset; their late results are dropped, however late they come;
* every request to an env whose process has ended raises the same error at once, unless recovery
  (``envpool_py.engine.recovery``), which is asked in one place, handles it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py.engine import faults
from envpool_py.engine.arrivals import Arrivals
from envpool_py.engine.recreation import Places
from envpool_py.engine.states import RAISED, READY, RESETTING, STEPPING, States
from envpool_py.env import spaces
from envpool_py.env.batches import Batches, BufferPool
from envpool_py.env.block import BESIDE, WHOLE, Beside, StepResult
from envpool_py.env.executor import ASKED
from envpool_py.env.request import Request
from envpool_py.env.spaces import Array
from envpool_py.env.tokens import RESET, TOKEN_BYTES
from envpool_py.errors import EnvError, combine, from_signal_handler
from envpool_py.ids import IdArray
from envpool_py.record.observers import Observer, Rows, Steps
from envpool_py.worker.frames import TOKENS, TOKENS_PROMPT
from envpool_py.worker.hosts import Hosts, common_spec

#: Seconds for which the caller steps its own envs before it collects results of the worker
#: processes again, in partial batches.
SLICE = 150e-6

_NO_MARK = bytes(1)


class Engine:
    """Carries out the requests of a pool to its envs.

    ``scheduled``: keep the place of each env in its schedule of episodes. ``prompt``: batches may
    be partial, so results are published one by one; may be set later.

    Attributes:
        all_ids: every env id, in order; a request to all envs passes this same array object.
        beside: for each env the values beside its row, or its error, until they are returned.
        asked: the envs with a request without a row, and their replies; None: not yet known.
        batch_ids: the envs of the last batch that was returned.
        counts: the number of batches that were returned, and of rows in them.
        warned: the kinds of warnings about rows that were issued.
        closed: whether the pool was closed, possibly by another thread or a signal handler.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        autoreset: str | None,
        columns: bool,
        copy: bool,
        measure: bool,
        scheduled: bool,
        prompt: bool,
    ) -> None:
        self.prompt, self._scheduled = prompt, scheduled
        self.closed = False
        self.recovery: Any = None
        self.observers: list[Observer] = []
        self.hosts = hosts
        self.states = States(hosts.num_envs)
        self.arrivals = Arrivals(self.states)
        self.batch_ids: IdArray = np.empty(0, dtype=np.intp)
        self.counts = [0, 0]
        self.warned: set[str] = set()
        self.beside: dict[int, Beside | EnvError] = {}
        self.asked: dict[int, Any] = {}
        self.all_ids: IdArray = np.arange(hosts.num_envs)
        self.all_ids.setflags(write=False)
        try:
            self.env_spaces = hosts.start(self.arrivals.chunks, self.refuse_if_closed)
            spec = common_spec(self.env_spaces, autoreset, columns=columns)
            self.block = hosts.attach(spec._replace(measured=measure, scheduled=scheduled))
            self.batches = Batches(self.block, columns=columns, copy=copy)
            self._buffers = None if copy else BufferPool(self.block)
            self.places = Places(self.block)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------ sending

    def step(self, ids: IdArray, actions: Any) -> StepResult:
        """Step these envs and wait for all of them; after an interrupt they accept only a reset.

        Raises:
            ResetNeeded, AlreadyPendingCallError, EnvError: an env accepts no step, or has failed.
            TypeError, ValueError: the actions are wrong; nothing was sent.
        """
        index = WHOLE if ids is self.all_ids else ids
        self.states.check_step(ids, index)
        sent = False
        try:
            self._send_steps(ids, index, actions)
            sent = True
            # Made while the envs step.
            infos = self.batches.bare_infos(ids.tolist())
            return self.fetch(ids, infos)
        except BaseException as error:
            self._cancel_interrupted(ids, error, sent=sent)
            raise

    def reset(self, ids: IdArray, requests: Sequence[Request]) -> StepResult:
        """Reset these envs, after ``claim_reset``, and wait for all of them; see ``step``."""
        sent = False
        try:
            self.send_resets(ids, requests)
            sent = True
            return self.fetch(ids, resets=False)
        except BaseException as error:
            self._cancel_interrupted(ids, error, sent=sent)
            raise

    def send_steps(self, ids: IdArray, actions: Any) -> None:
        """Send a step to each of these envs; raises as ``step``."""
        index = WHOLE if ids is self.all_ids else ids
        self.states.check_step(ids, index)
        self._send_steps(ids, index, actions)

    def _send_steps(self, ids: IdArray, index: Any, actions: Any) -> None:
        if self.recovery is not None and self.recovery.failed:
            try:
                ids, index, actions = self.recovery.take_steps(ids, actions)
            except BaseException:
                self.cancel(ids)
                raise
        stored = self.block.put_actions(ids, index, actions)
        rows = [] if stored else spaces.list_actions(self.block.spec.action, actions, ids.tolist())
        for observer in self.observers:
            columns = self.block.action_columns(ids, actions) if stored else None
            observer.steps(ids, Steps(columns, rows))
        requests = None if stored else [Request("step", (row,)) for row in rows]
        self._dispatch(ids, index, STEPPING, requests)

    def claim_reset(self, ids: IdArray) -> None:
        """Check that these envs accept a reset; drop their results that were left unread.

        Raises:
            AlreadyPendingCallError, EnvError: an env does not accept a reset.
        """
        unread = self.states.unread.intersection(ids.tolist())
        if unread:
            self.states.check_free(np.setdiff1d(ids, list(unread)))
            self.cancel(np.array(sorted(unread), dtype=np.intp))
        self.states.check_free(ids)

    def send_resets(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """Send a reset to each of these envs, which must accept one."""
        if self.recovery is not None:
            try:
                ids, requests = self.recovery.take_resets(ids, requests)
            except BaseException:
                self.cancel(ids)
                raise
        for observer in self.observers:
            observer.resets(ids.tolist(), requests)
        plain = not any(request.kwargs for request in requests)
        index = WHOLE if ids is self.all_ids else ids
        self._dispatch(ids, index, RESETTING, None if plain else requests)

    def _dispatch(
        self, ids: IdArray, index: Any, state: int, requests: Sequence[Request] | None
    ) -> None:
        """Send a step or a reset to each of these envs; requests with arguments are pickled."""
        tokens = self.states.tokens
        if requests is not None:
            messages = self.hosts.pack(ids, tokens, requests)
        else:
            kind = TOKENS_PROMPT if self.prompt else TOKENS
            resets = state == RESETTING
            messages = self.hosts.messages(index, tokens, kind, RESET if resets else 0)
        try:
            self.states.sent(ids, index, state)
            if self._buffers is not None:
                self._buffers.release(ids)
            for post, message in messages:
                post(message)
        except BaseException:
            self.cancel(ids)
            raise

    def resend(self, i: int, request: Request) -> None:
        """Send a request to env ``i``, which is in flight; used by recovery."""
        ids = np.array([i], dtype=np.intp)
        for post, message in self.hosts.pack(ids, self.states.tokens, [request]):
            post(message)

    # ----------------------------------------------------------------------------------- fetching

    def fetch(self, ids: IdArray, infos: Array | None = None, *, resets: bool = True) -> StepResult:
        """Wait for these envs, all in flight, and return their rows in this order.

        ``infos``: bare infos that were made before. ``resets``: set ``is_reset`` in the infos of
        resets.

        Raises:
            EnvError: an env raised, or its process ended.
        """
        while True:
            self._wait(len(ids), None, ids)
            batch = self._deliver(ids, infos, resets=resets)
            if batch is not None:
                return batch

    def fetch_next(self, wait_num: int, timeout: float | None, *, strict: bool) -> StepResult:
        """Wait for ``wait_num`` results, or for all in flight if they are fewer; return the rows.

        After ``timeout`` seconds return fewer rows: at least one, or none with ``strict``.

        Raises:
            EnvError: an env raised, or its process ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ids = self._wait(min(wait_num, self.states.in_flight), deadline, None)
            if deadline is not None and not strict and not len(ids):
                ids = self._wait(1, None, None)
            batch = self._deliver(ids, None, resets=True)
            if batch is not None:
                return batch

    def _wait(self, goal: int, deadline: float | None, only: IdArray | None) -> IdArray:
        """Wait until ``deadline`` for ``goal`` results, including those of the envs ``only``.

        Returns:
            The envs whose results have arrived, in the order of arrival.
        """
        arrivals, chunks = self.arrivals, self.arrivals.chunks
        wanted: set[int] | None = None
        if only is not None and self.states.in_flight != len(only):
            wanted = set(only.tolist())
        try:
            while True:
                if arrivals.stale:
                    arrivals.drop_stale()
                missing = goal - sum(map(len, chunks)) // TOKEN_BYTES
                left = None if deadline is None else deadline - time.monotonic()
                if missing <= 0 or (left is not None and left <= 0):
                    if self.hosts.processes is None and wanted is None and only is not None:
                        return only  # without processes, nothing else writes results
                    ids = arrivals.sound_ids()
                    if ids is None:
                        faults.end_writers(self)
                        continue
                    if wanted is None:
                        return ids
                    missing = len(wanted.difference(ids.tolist()))
                    if not missing:
                        return ids
                self.advance(missing, left, wanted)
        except BaseException:
            self.settle()
            raise

    def advance(self, missing: int, left: float | None, wanted: set[int] | None) -> None:
        """Step the envs of this process, or wait at most ``left`` seconds for an event.

        ``missing``: the number of results still to wait for, including those of ``wanted``.
        """
        if self.closed:
            self.refuse_if_closed()
        chunks, processes = self.arrivals.chunks, self.hosts.processes
        if self.recovery is not None and self.recovery.has_jobs() and not self.asked:
            count = len(chunks)
            left = self.recovery.run_jobs(left)
            if len(chunks) != count:
                return
        for host in self.hosts.local:
            if host.left(wanted):
                if processes is None:
                    host.run(chunks, missing, left, wanted)
                    return
                host.run(chunks, len(self.all_ids), SLICE if self.prompt else None, wanted)
                if self.prompt:
                    processes.channel.collect(chunks)
                if processes.timed:
                    faults.attend(self)
                return
        if processes is None:
            self.hosts.closing.wait(left)
        else:
            if processes.timed:
                left = processes.timeout(left)
            if processes.channel.fetch(chunks, self.hosts.look_for, left) or processes.timed:
                faults.attend(self)

    def settle(self) -> None:
        """After an interrupt, publish what envs here have finished; cancel the interrupted ones."""
        lost = [i for host in self.hosts.local for i in host.settle(self.arrivals.chunks)]
        self.arrivals.drop_stale()  # also drops results that were published twice
        if lost:
            self.cancel(np.array(lost, dtype=np.intp))

    # -------------------------------------------------------------------------- returning rows

    def _deliver(self, ids: IdArray, infos: Array | None, *, resets: bool) -> StepResult | None:
        """Make a batch of the results of these envs, which have all arrived; see ``fetch``.

        Returns:
            The batch; None if recovery handles an env that failed: its result is still to come.

        Raises:
            EnvError: envs have failed; the results of the others are kept.
        """
        index = WHOLE if ids is self.all_ids else ids
        if self.closed:
            self.refuse_if_closed()
        try:
            marks = self.block.mark[index]
            marked: list[tuple[int, int]] = []
            beside: dict[int, Beside] = {}
            if marks.tobytes().strip(_NO_MARK):  # faster than NumPy's functions
                marked = [(k, marks.item(k)) for k in marks.nonzero()[0].tolist()]
                if not self._take_beside(ids, marked, beside):
                    return None
            out = None if self._buffers is None or index is WHOLE else self._buffers.take(ids)
            parts, obs, reward, terminated, truncated = self.batches.gather(ids, index, beside, out)
            if infos is None:
                infos = self.batches.bare_infos(ids.tolist())
            if marked:
                self.batches.complete(infos, ids.tolist(), marked, beside, resets=resets)
            if self._scheduled:
                self.places.see(ids[(marks | terminated | truncated).nonzero()[0]].tolist())
            if self.observers:
                self._show(ids, (parts, reward, terminated, truncated), infos, resets=resets)
            if self.recovery is not None:
                self.recovery.annotate(ids, truncated, infos)
            self.arrivals.take(ids)
            self.states.returned(ids, index, READY)
            if self.recovery is not None:
                self.recovery.returned(ids)
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
        errors: dict[int, EnvError] = {}
        handled = False
        for k in [k for k, mark in marked if mark & BESIDE]:
            i = int(ids[k])
            if i not in self.beside:
                kind = "reset" if self.states.state[i] == RESETTING else "step"
                self.beside[i] = self.hosts.of(i).take_item(int(self.states.tokens[i]), kind)
            own: Any = self.beside[i]
            if isinstance(own, EnvError):
                if self.recovery is not None and self.recovery.handle(i, own):
                    handled = True
                else:
                    errors[i] = own
            else:
                beside[i] = own
        if errors:
            self._raise(ids, errors)
        if not handled:
            for i in beside:
                self.beside.pop(i, None)
            faults.warn_of(self, beside)
        return not handled

    def forget_result(self, i: int) -> None:
        """Drop the result of env ``i``, which stays in flight; used by recovery."""
        self.arrivals.drop([i])
        self.beside.pop(i, None)

    def _raise(self, ids: IdArray, errors: dict[int, EnvError]) -> None:
        failed = np.array(list(errors), dtype=np.intp)
        for observer in self.observers:
            observer.failed(errors, raised=True)
        for i in errors:
            self.forget_result(i)
        self.states.returned(failed, failed, RAISED)
        self.states.unread.update(np.setdiff1d(ids, failed).tolist())
        raise combine(list(errors.values()))

    def _show(
        self, ids: IdArray, batch: tuple[Any, Any, Any, Any], infos: Array, *, resets: bool
    ) -> None:
        """Pass a batch to the observers."""
        asked = {info["env_id"]: info.pop(ASKED) for info in infos if ASKED in info}
        lost, notes = (set(), {}) if self.recovery is None else self.recovery.told(ids)
        rows = Rows(*batch, resets, lost, notes, asked)
        for observer in self.observers:
            observer.rows(ids, rows)

    # --------------------------------------------------------------------------------- cancelling

    def cancel(self, ids: IdArray) -> None:
        """Cancel the requests of these envs; they then accept only a reset."""
        if self.closed:
            return
        flying = ids[self.states.flying()[ids]]
        if not len(flying):
            self.states.recount()
            return
        self.arrivals.drop_stale()
        arrived = set(self.arrivals.ids().tolist())
        listed = flying.tolist()
        # An interrupt may come at any line, so stale results are dropped before tokens change.
        self.hosts.forget_messages()
        for i in listed:
            self.beside.pop(i, None)
            self.places.seen.pop(i, None)
        late = [i for i in listed if i not in arrived and self.hosts.may_answer(i)]
        self.arrivals.stale.update((i, int(self.states.tokens[i])) for i in late)
        self.states.cancelled(flying)
        carried_out = self.hosts.cancel(set(listed)) | arrived
        self.arrivals.drop_stale()
        for observer in self.observers:
            observer.cancelled(listed, [i in carried_out for i in listed])
        for i in [] if self.recovery is None else self.recovery.cancelled(listed):
            self.arrivals.stale.pop(i, None)

    def _cancel_interrupted(self, ids: IdArray, error: BaseException, *, sent: bool = True) -> None:
        """Cancel the requests of a call that raised, if an interrupt was the reason."""
        if isinstance(error, EnvError) and not from_signal_handler(error):
            return
        self.cancel(ids)
        ready = ids[self.states.state[ids] == READY]
        if sent and len(ready):  # their rows were about to be returned
            self.states.cancelled(ready)
            self.hosts.forget_messages()
            for observer in self.observers:
                observer.cancelled(ready.tolist(), [True] * len(ready))

    # ------------------------------------------------------------------------------------- close

    def refuse_if_closed(self) -> None:
        """Raise ClosedEnvironmentError if the pool was closed."""
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed while a call waited; make a new pool")

    def stop(self) -> None:
        """Make a call that is under way raise ClosedEnvironmentError."""
        self.closed = True
        self.hosts.wake()

    def close(self) -> list[EnvError]:
        """Close all envs and end all processes; return the errors of closing envs."""
        self.stop()
        errors = self.hosts.close()
        # Free the memory and its descriptor, even if the pool stays referenced.
        for name in ("block", "batches", "places", "_buffers"):
            self.__dict__.pop(name, None)
        return errors
