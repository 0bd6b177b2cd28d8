"""The engine: every request takes one way, whatever it is and wherever its env lives.

::

    dispatch   states and tokens of the envs, one message for each host
    wait       collect results, run envs that live here, look, sleep, until there are enough
    deliver    gather the rows into a batch, set the states, complete the infos

Synchronous and partial batches, all envs or some, steps and resets differ in what is dispatched and
in how many results are enough. What the block cannot hold (object actions, reset options, attribute
calls) is dispatched as a pickled request, the second and last way.

What holds:

* an error takes its own env out of flight; the results that came with it are kept, and returned by
  the next call that fetches, or dropped by a reset;
* a call that is interrupted (Ctrl-C, a signal handler that raises) cancels what it asked for, and
  those envs then accept only a reset; what they still answer is dropped, however late it comes;
* an env whose process has ended answers every request with the same error at once, unless recovery
  (``envpool_py.recovery``), which is asked in one place, handles it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import spaces
from envpool_py.asking import Asking
from envpool_py.block import BESIDE, WHOLE, Batches, Beside, BufferPool, StepResult
from envpool_py.errors import EnvError, combine, from_signal_handler
from envpool_py.faults import Faults, warn_of
from envpool_py.ids import IdArray
from envpool_py.observers import Observer, Rows, Steps
from envpool_py.recreation import Recreation
from envpool_py.spaces import Array
from envpool_py.states import (
    RAISED,
    READY,
    RESETTING,
    STEPPING,
    Arrivals,
    States,
)
from envpool_py.worker.base import Request
from envpool_py.worker.channel import (
    RESET,
    TOKEN_BYTES,
    TOKENS,
    TOKENS_PROMPT,
)
from envpool_py.worker.executor import ASKED
from envpool_py.worker.placement import Hosts, Plan, common_spec
from envpool_py.worker.process import ProcessHost

#: Seconds for which the caller steps its own envs between two looks at the others' results, where
#: results are wanted as they come.
SLICE = 150e-6


_NO_MARK = bytes(1)


class Engine:
    """Carries out what a pool asks of its envs.

    Args:
        plan: where the envs live.
        autoreset: None, ``"next_step"`` or ``"same_step"``.
        columns: as for ``Batches``.
        copy: as for ``Batches``.
        measure: time steps and resets.
        scheduled: it matters where envs are in their schedules of episodes.
        prompt: results are wanted as they come; may be set later.

    Attributes:
        all_ids: every env id, in order; "all envs" is told by this very array.
        states: what each env may be asked for.
        block: rows and actions.
        batches: gathers rows.
        env_spaces: of each env.
        batch_ids: the envs of the batch that was returned last.
        closed: whether the pool was closed, maybe by another thread or a signal handler.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        autoreset: str | None,
        columns: bool,
        copy: bool,
        measure: bool,
        scheduled: bool,
        prompt: bool,
    ) -> None:
        num_envs = plan.num_envs
        self.prompt = prompt
        self.closed = False
        self.recovery: Any = None
        self.observers: list[Observer] = []
        self.hosts = Hosts(plan)
        #: Whether every env lives in the calling process.
        self.runs_inline = plan.processes is None
        self.states = States(num_envs)
        self.arrivals = Arrivals(self.states)
        try:
            self.env_spaces = self.hosts.start(self.arrivals.chunks, self.refuse_if_closed)
            spec = common_spec(self.env_spaces, autoreset, columns=columns)
            self.block = self.hosts.attach(spec._replace(measured=measure, scheduled=scheduled))
        except BaseException:
            self.close()
            raise
        self.all_ids: IdArray = np.arange(num_envs)
        self.all_ids.setflags(write=False)
        self.batches = Batches(self.block, columns=columns, copy=copy)
        self._buffers = None if copy else BufferPool(self.block)
        self.batch_ids: IdArray = np.empty(0, dtype=np.intp)
        #: How many batches were returned, and rows in them.
        self.counts = [0, 0]
        # What lies beside rows, or their errors; kept until they are returned.
        self.beside: dict[int, Beside | EnvError] = {}
        self.asking = Asking(self)
        self.recreation = Recreation(self)
        self.faults = Faults(self)

    # ------------------------------------------------------------------------------------ sending

    def step(self, ids: IdArray, actions: Any) -> StepResult:
        """Step these envs and wait for all of them; interrupted, they accept only a reset.

        Raises:
            ResetNeeded, AlreadyPendingCallError, EnvError: one takes no step, or has failed.
            TypeError, ValueError: the actions are wrong; nothing was sent.
        """
        index = WHOLE if ids is self.all_ids else ids
        self.states.check_step(ids, index)
        sent = False
        try:
            self._send_steps(ids, index, actions)
            sent = True
            # While the envs are at work.
            infos = self.batches.bare_infos(ids.tolist())
            return self._fetch(ids, infos, resets=True)
        except BaseException as error:
            self._note_interrupt(ids, error, sent=sent)
            raise

    def reset(self, ids: IdArray, requests: Sequence[Request]) -> StepResult:
        """Reset these envs and wait for all of them; interrupted, they accept only a reset."""
        self.claim_reset(ids)
        sent = False
        try:
            self.send_resets(ids, requests)
            sent = True
            return self._fetch(ids, None, resets=False)
        except BaseException as error:
            self._note_interrupt(ids, error, sent=sent)
            raise

    def send_steps(self, ids: IdArray, actions: Any) -> None:
        """Begin a step of each of these envs."""
        index = WHOLE if ids is self.all_ids else ids
        self.states.check_step(ids, index)
        self._send_steps(ids, index, actions)

    def _send_steps(self, ids: IdArray, index: Any, actions: Any) -> None:
        if self.recovery is not None and self.recovery.reports:
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
        if stored:
            self._dispatch(ids, index, STEPPING)
        else:
            self._dispatch_requests(ids, [Request("step", (row,)) for row in rows], STEPPING)

    def claim_reset(self, ids: IdArray) -> None:
        """Raise unless these envs take a reset; drop the results of theirs that an error kept back.

        Raises:
            AlreadyPendingCallError, EnvError: one does not.
        """
        unread = self.states.unread.intersection(ids.tolist())
        if unread:
            self.states.check_free(np.setdiff1d(ids, list(unread)))
            self.cancel(np.array(sorted(unread), dtype=np.intp))
        self.states.check_free(ids)

    def send_resets(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """Begin a reset of each of these envs, which take one."""
        if self.recovery is not None:
            try:
                ids, requests = self.recovery.take_resets(ids, requests)
            except BaseException:
                self.cancel(ids)
                raise
        for observer in self.observers:
            observer.resets(ids.tolist(), requests)
        if any(request.kwargs for request in requests):
            self._dispatch_requests(ids, requests, RESETTING)
        else:
            self._dispatch(ids, WHOLE if ids is self.all_ids else ids, RESETTING)

    def resend(self, i: int, request: Request) -> None:
        """Send env ``i``, which is in flight, a request; for recovery."""
        pair = [(int(self.states.tokens[i]), request)]
        host = self.hosts.of(i)
        if isinstance(host, ProcessHost):
            host.write(host.pack(pair))
        else:
            host.post_requests(pair)

    def _dispatch(self, ids: IdArray, index: Any, state: int) -> None:
        """Send each of these envs a step or a plain reset."""
        try:
            kind = TOKENS_PROMPT if self.prompt else TOKENS
            tokens = self.states.tokens[index]
            messages = self.hosts.messages(
                index,
                tokens + RESET if state == RESETTING else tokens,
                kind,
                state == STEPPING,
            )
            self.states.sent(ids, index, state)
            if self._buffers is not None:
                self._buffers.release(ids)
            for host, message in messages:
                if not isinstance(host, ProcessHost):
                    host.post(message)
                elif host.exit is None and not host.stream.write(message):
                    host.write_later()
        except BaseException:
            self.cancel(ids)
            raise

    def _dispatch_requests(self, ids: IdArray, requests: Sequence[Request], state: int) -> None:
        """Send each of these envs a request with arguments."""
        send = self.hosts.pack(ids, self.states.tokens, requests)
        try:
            self.states.sent(ids, ids, state)
            if self._buffers is not None:
                self._buffers.release(ids)
            send()
        except BaseException:
            self.cancel(ids)
            raise

    # ----------------------------------------------------------------------------------- fetching

    def fetch(self, ids: IdArray) -> StepResult:
        """Wait for these envs, all in flight, and return their rows in this order.

        Raises:
            EnvError: one has failed.
        """
        return self._fetch(ids, None, resets=True)

    def _fetch(self, ids: IdArray, infos: Array | None, *, resets: bool) -> StepResult:
        while True:
            self._wait(len(ids), None, ids)
            batch = self._deliver(ids, infos, resets=resets)
            if batch is not None:
                return batch

    def fetch_next(self, wait_num: int, timeout: float | None, *, strict: bool) -> StepResult:
        """Wait for ``wait_num`` results, or all in flight if they are fewer, and return those.

        Args:
            wait_num: 1 or more.
            timeout: seconds after which fewer will do, one at least.
            strict: none will do then.

        Raises:
            EnvError: one has failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wait(min(wait_num, self.states.in_flight), deadline, None)
            if deadline is not None and not strict and not self.arrivals.count():
                self._wait(1, None, None)
            batch = self._deliver(self.arrivals.ids(), None, resets=True)
            if batch is not None:
                return batch

    def fetch_all(self) -> StepResult:
        """Wait for everything in flight and return it in the order in which it came."""
        return self.fetch_next(len(self.all_ids), None, strict=False)

    def _wait(self, goal: int, deadline: float | None, only: IdArray | None) -> None:
        """Wait until enough results are there.

        Args:
            goal: how many.
            deadline: a time of ``time.monotonic`` after which to return with fewer.
            only: those of these envs must be among them.
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
                if missing <= 0:
                    missing = 0
                    if wanted is not None:
                        missing = len(wanted.difference(arrivals.ids().tolist()))
                    elif only is not None and not (
                        self.runs_inline
                        or arrivals.add_up_to(sum(self.states.tokens[only].tolist()))
                    ):
                        self.faults.end_writers()
                        continue
                    if not missing:
                        return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self.advance(missing, left, wanted)
        except BaseException:
            self.settle()
            raise

    def advance(self, missing: int, left: float | None, wanted: set[int] | None) -> None:
        """Run envs that live here, or wait for something to happen elsewhere.

        Args:
            missing: how many more results are wanted.
            left: seconds that it may take; None for no limit.
            wanted: the envs that are waited for; None is any.
        """
        if self.closed:
            self.refuse_if_closed()
        if self.recovery is not None and self.recovery.jobs and not self.asking.asked:
            count = len(self.arrivals.chunks)
            left = self.recovery.run_jobs(left)
            if len(self.arrivals.chunks) != count:
                return
        chunks, processes = self.arrivals.chunks, self.hosts.processes
        for host in self.hosts.local:
            if host.left(wanted):
                if processes is None:
                    host.run(chunks, missing, left, wanted)
                else:
                    host.run(chunks, len(self.all_ids), SLICE if self.prompt else None, wanted)
                    if self.prompt:
                        processes.channel.collect(chunks)
                if self.hosts.timed:
                    self.faults.attend()
                return
        if processes is None:
            self.hosts.closing.wait(left)
        else:
            if processes.timed:
                left = processes.timeout(left)
            if processes.channel.fetch(chunks, self.hosts.look_for, left) or processes.timed:
                self.faults.attend()

    def settle(self) -> None:
        """After an interrupt: report what envs here have done, and cancel what was cut off."""
        lost = [i for host in self.hosts.local for i in host.settle(self.arrivals.chunks)]
        self.arrivals.drop_stale()  # and what was reported twice
        if lost and not self.closed:
            self.cancel(np.array(lost, dtype=np.intp))

    # -------------------------------------------------------------------------- returning rows

    def _deliver(self, ids: IdArray, infos: Array | None, *, resets: bool) -> StepResult | None:
        """Make a batch of the results of these envs, all of which are there.

        Args:
            ids: shape ``(k,)``.
            infos: of bare rows, where they were made before.
            resets: say ``is_reset`` in the infos of resets.

        Returns:
            None where recovery handles one that failed: its result is still to come.

        Raises:
            EnvError: those that failed; the results of the others are kept.
        """
        index = WHOLE if ids is self.all_ids else ids
        if self.closed:
            self.refuse_if_closed()
        if index is not WHOLE and not (self.runs_inline or self.arrivals.are_sound(ids)):
            self.faults.end_writers()
            return None
        try:
            marks = self.block.mark[index]
            marked: list[tuple[int, int]] = []
            beside: dict[int, Beside] = {}
            if marks.tobytes().strip(_NO_MARK):  # quicker than NumPy's functions
                marks = marks.copy()
                places = marks.nonzero()[0]
                marked = list(zip(places.tolist(), marks[places].tolist(), strict=True))
                if not self._take_beside(ids, marked, beside):
                    return None
            out = None if self._buffers is None or index is WHOLE else self._buffers.take(ids)
            parts, obs, reward, terminated, truncated = self.batches.gather(ids, index, beside, out)
            if infos is None:
                infos = self.batches.bare_infos(ids.tolist())
            if marked:
                self.batches.complete(infos, ids.tolist(), marked, beside, resets=resets)
            if self.recreation.follows_schedule:
                for k in (marks | terminated | truncated).nonzero()[0].tolist():
                    self.recreation.see(int(ids[k]))
            if self.observers:
                self._show(ids, (parts, reward, terminated, truncated, infos), resets=resets)
            if self.recovery is not None:
                self.recovery.annotate(ids, truncated, infos)
            self.arrivals.take(ids)
            self.states.landed(ids, index, READY)
            if self.recovery is not None:
                self.recovery.landed(ids)
            self.batch_ids = ids
            self.counts[0] += 1
            self.counts[1] += len(ids)
        except BaseException as error:
            if not _is_of_envs(error):
                self.interrupted(ids)
            raise
        return obs, reward, terminated, truncated, infos

    def _take_beside(
        self, ids: IdArray, marked: list[tuple[int, int]], beside: dict[int, Beside]
    ) -> bool:
        """Take what lies beside the rows of these envs; False where recovery handles an error."""
        errors: dict[int, EnvError] = {}
        handled = False
        for k in [k for k, mark in marked if mark & BESIDE]:
            i = int(ids[k])
            own: Any = self._beside_of(i)
            if "reply" in own if type(own) is dict else False:
                own = self.recovery.replayed(i, own["reply"])
                handled |= own is None
            if isinstance(own, EnvError):
                if self.recovery is not None and self.recovery.take(i, own):
                    handled = True
                else:
                    errors[i] = own
            elif own is not None:
                beside[i] = own
        if errors:
            self._raise(ids, errors)
        if not handled:
            for i in beside:
                self.beside.pop(i, None)
            warn_of(beside)
        return not handled

    def _beside_of(self, i: int) -> Beside | EnvError:
        if i not in self.beside:
            host = self.hosts.of(i)
            if isinstance(host, ProcessHost):
                kind = "reset" if self.states.state[i] == RESETTING else "step"
                self.beside[i] = host.take_item(int(self.states.tokens[i]), kind)
            else:
                self.beside[i] = host.beside.pop(i)
        return self.beside[i]

    def forget_result(self, i: int) -> None:
        """Env ``i`` is in flight, but its result is not one; for recovery."""
        self.arrivals.drop(i)
        self.beside.pop(i, None)

    def _raise(self, ids: IdArray, errors: dict[int, EnvError]) -> None:
        failed = np.array(list(errors), dtype=np.intp)
        for observer in self.observers:
            observer.raised(errors)
        for i in errors:
            self.forget_result(i)
        self.states.landed(failed, failed, RAISED)
        self.states.unread.update(np.setdiff1d(ids, failed).tolist())
        raise combine(list(errors.values()))

    def _show(self, ids: IdArray, batch: tuple[Any, ...], *, resets: bool) -> None:
        """Tell the observers of a batch."""
        parts, reward, terminated, truncated, infos = batch
        asked = {info["env_id"]: info.pop(ASKED) for info in infos if ASKED in info}
        lost, notes = (set(), {}) if self.recovery is None else self.recovery.told(ids)
        rows = Rows(parts, reward, terminated, truncated, infos, resets, lost, notes, asked)
        for observer in self.observers:
            observer.rows(ids, rows)

    # --------------------------------------------------------------------------------- cancelling

    def cancel(self, ids: IdArray) -> None:
        """Drop what these envs have in flight; they then accept only a reset."""
        flying = ids[self.states.flying()[ids]]
        if not len(flying):
            self.states.recount()
            return
        self.arrivals.drop_stale()
        arrived = set(self.arrivals.ids().tolist())
        listed = flying.tolist()
        # An interrupt may come at any line: what is stale goes before what makes it so.
        self.hosts.forget_messages()
        for i in listed:
            self.beside.pop(i, None)
            self.recreation.seen.pop(i, None)
        self.arrivals.stale.update((i, int(self.states.tokens[i])) for i in listed)
        self.states.cancelled(flying)
        carried_out = self.hosts.cancel(set(listed)) | arrived
        for i in listed:
            if i in arrived or not self.hosts.may_answer(i):
                self.arrivals.stale.pop(i, None)
        self.arrivals.drop_stale()
        for observer in self.observers:
            observer.cancelled(listed, [i in carried_out for i in listed])
        if self.recovery is not None:
            self.recovery.cancelled(listed)

    def interrupted(self, ids: IdArray) -> None:
        """As ``cancel``; envs whose row was about to be returned need a reset as well."""
        self.cancel(ids)
        ready = ids[self.states.state[ids] == READY]
        if len(ready):
            self.states.cancelled(ready)
            self.hosts.forget_messages()
            for observer in self.observers:
                observer.cancelled(ready.tolist(), [True] * len(ready))

    def _note_interrupt(self, ids: IdArray, error: BaseException, *, sent: bool) -> None:
        """A call that waits for these envs has raised: cancel its requests if it was cut off."""
        if self.closed or _is_of_envs(error):
            return
        if sent:
            self.interrupted(ids)
        else:
            self.cancel(ids)

    # ---------------------------------------------------------------------------------- the rest

    def sleep(self, seconds: float) -> None:
        """Wait; a close ends it.

        Raises:
            ClosedEnvironmentError: the pool was closed.
        """
        if seconds > 0:
            self.hosts.closing.wait(seconds)
        self.refuse_if_closed()

    def refuse_if_closed(self) -> None:
        """Raise ClosedEnvironmentError if the pool was closed."""
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed while a call waited")

    def stop(self) -> None:
        """Have a call that is under way raise ClosedEnvironmentError."""
        self.closed = True
        self.hosts.wake()

    def close(self) -> list[EnvError]:
        """Close all envs and end all processes; return what closing the envs raised."""
        self.stop()
        errors = self.hosts.close()
        # Its memory has a descriptor, and the pool may be referenced for long.
        for name in ("block", "batches", "_buffers"):
            self.__dict__.pop(name, None)
        return errors


def _is_of_envs(error: BaseException) -> bool:
    """Whether it tells of requests that have ended; a signal handler may raise an EnvError too."""
    return isinstance(error, EnvError) and not from_signal_handler(error)
