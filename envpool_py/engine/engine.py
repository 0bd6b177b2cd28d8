"""The engine: batches in and out, by one code path for steps and resets on every kind of host.

::

    step, reset    check the states, store the actions, record, send
    fetch          wait for the results of some envs, or of the next ones that finish
    deliver        gather the rows into a batch, complete the infos, set the states

Whole and partial batches, steps and resets differ only in the request that is sent and in the
number of results to wait for. ``flight`` holds what is under way.

Invariants:

* an env that raised is no longer in flight; the results that came with its error are kept, and
  returned by the next call that fetches, or dropped by a reset;
* an interrupted ``step`` or ``reset`` (Ctrl-C, a signal handler that raises) cancels its requests,
  and those envs then accept no step before a reset. An interrupted ``fetch`` or ``fetch_next``
  keeps them, but for those of the batch that it was about to return;
* every request to an env whose process has ended raises the same error at once, unless
  ``engine.recovery`` handles it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from envpool_py import interrupts
from envpool_py.engine.batches import Batches
from envpool_py.engine.env_method_calls import Call, ask
from envpool_py.engine.env_states import READY, RESETTING, STEPPING
from envpool_py.engine.episode_positions import Positions
from envpool_py.engine.flight import Flight
from envpool_py.engine.recovery import Recovery
from envpool_py.engine.requested_restarts import RequestedRestarts
from envpool_py.env import spaces
from envpool_py.env.block import FINAL, OVER, Beside, StepResult
from envpool_py.env.common_spec import common_spec
from envpool_py.env.request import Request
from envpool_py.env.validation import warn_of_rows
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, combine
from envpool_py.interrupts import is_interrupt
from envpool_py.options import AllOptions
from envpool_py.record.record_writer import RecordWriter
from envpool_py.worker.host_group import HostGroup

Errors: TypeAlias = dict[int, EnvError]
_ZERO_BYTE = bytes(1)


class Engine:
    """Carries out the requests of a pool to its envs.

    ``publish_early``: batches may be partial.

    Attributes:
        flight: the requests in flight. ``hosts``, ``states``, ``arrivals``: its own.
        all: all envs, in order.
        batch_ids: the envs of the last batch that was returned.
        caps_batch_size: partial batches have at most ``wait_num`` rows; other results are kept.
        num_returned: the number of batches that were returned, and of rows in them.
        warned: the kinds of warnings about rows that were issued; each once per pool.
        no_autoreset: whether no automatic reset follows the episodes of the resets that are sent.
    """

    def __init__(self, hosts: HostGroup, options: AllOptions, *, publish_early: bool) -> None:
        self.options = options
        pool, env = options.pool, options.env
        self.flight = flight = Flight(hosts, publish_early=publish_early)
        self.hosts, self.states, self.arrivals = hosts, flight.states, flight.arrivals
        self.batch_ids: IdArray = np.empty(0, dtype=np.intp)
        self.caps_batch_size = False
        self.num_returned = [0, 0]
        self.warned: set[str] = set()
        self.no_autoreset = False
        self.all = Selection(np.arange(hosts.num_envs), is_whole=True)
        try:
            self.env_spaces = hosts.start(self.arrivals.token_chunks, flight.refuse_if_closed)
            spec = common_spec(self.env_spaces, env.autoreset_mode, columns=pool.columns)
            self.block = hosts.make_block(spec._replace(measured=pool.measure))
            self.batches = Batches(self.block, columns=pool.columns, copy=pool.copy)
            positions = Positions(self.block, episode_seeds=env.episode_seeds)
            flight.attach(self.block, self.batches, positions)
            self.recovery = flight.recovery = Recovery(flight, options)
            self.states.death_of = self.recovery.death_of
            self.requested_restarts = RequestedRestarts(flight, self.recovery.recreation)
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
            infos = self.batches.bare_infos(envs.ids.tolist())  # made while the envs step
            return self.fetch(envs, infos)
        except BaseException as error:
            self._end_failed_call(envs.ids, error, sent=sent)
            raise

    def reset(self, envs: Selection, requests: Sequence[Request]) -> StepResult:
        """Reset these envs, after ``claim_reset``, and wait for all of them; see ``step``."""
        sent = False
        try:
            self._send_resets(envs, requests)
            sent = True
            return self.fetch(envs, resets=False)
        except BaseException as error:
            self._end_failed_call(envs.ids, error, sent=sent)
            raise

    def send_steps(self, envs: Selection, actions: Any) -> None:
        """Send a step to each of these envs; the errors are those of ``step``."""
        self.states.check_step(envs)
        self._send_steps(envs, actions)
        self.flight.ids_of_call = None

    def _send_steps(self, envs: Selection, actions: Any) -> None:
        requests = None
        if not self.block.put_actions(envs, actions):
            actions = spaces.list_actions(self.block.spec.action, actions, envs.ids.tolist())
            requests = [Request("step", (action,)) for action in actions]
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
        self._send_resets(envs, requests)
        self.flight.ids_of_call = None

    def _send_resets(self, envs: Selection, requests: Sequence[Request]) -> None:
        listed = envs.ids.tolist()
        if self.no_autoreset:
            requests = [request._replace(no_autoreset=True) for request in requests]
        positions = self.flight.positions
        try:
            positions.mark_sent(listed, requests)
            self.recovery.note_resets(listed, requests)
            self.flight.send(envs, RESETTING, requests)
        except BaseException:  # after an interrupt some may be in flight: they are cancelled later
            with interrupts.deferred():
                unsent = envs.ids[~self.states.in_flight()[envs.ids]].tolist()
                for i in unsent:
                    positions.mark_unsent(i)
                self.recovery.mark_cancelled(unsent, {})
            raise

    def fetch(
        self, envs: Selection, infos: spaces.Array | None = None, *, resets: bool = True
    ) -> StepResult:
        """Wait for these envs, all in flight, and return their rows in this order.

        ``infos``: bare infos that were made before. ``resets``: set ``is_reset`` in the infos of
        resets. EnvError if an env raised, or its process ended.
        """
        while True:
            self.flight.wait(len(envs.ids), None, envs.ids)
            batch = self.deliver(envs, infos, resets=resets)
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
            if self.caps_batch_size:
                ids, late = ids[:wait_num], ids[wait_num:]
                states.unread.update(late.tolist())
            batch = self.deliver(Selection(ids))
            if batch is not None:
                return batch

    def deliver(
        self,
        envs: Selection,
        infos: spaces.Array | None = None,
        *,
        resets: bool = True,
        apart: Errors | None = None,
    ) -> StepResult | None:
        """Make a batch of the results of these envs, which have all arrived; see ``fetch``.

        None if recovery handles an env that failed: its result is still to come. If this raises,
        all results are kept, except after an interrupt of the last lines, from where on they count
        as returned: it cancels them. With ``apart`` errors are put there and not raised; the batch,
        of ``batch_ids``, has the other rows.
        """
        flight, ids = self.flight, envs.ids
        if flight.closed:
            flight.refuse_if_closed()
        marks = self.block.mark[envs.index]
        marked: list[tuple[int, int]] = []
        beside: dict[int, Beside] = {}
        # Faster than NumPy's functions.
        if marks.tobytes().strip(_ZERO_BYTE) or self.batches.first_vector_reward is not None:
            marked = [(k, marks.item(k)) for k in marks.nonzero()[0].tolist()]
            beside, errors = flight.values_and_errors(ids, marked)
            good = (i for i in ids.tolist() if i not in errors)  # seldom needed
            errors |= self.batches.wrong_rewards(good, beside)
            if errors:
                return self._deliver_with_errors(ids, errors, apart)
            if beside:
                warn_of_rows(beside, self.warned)
        parts, obs, reward, terminated, truncated = self.batches.gather(envs, beside)
        listed = ids.tolist() if marked or infos is None else []
        if infos is None:
            infos = self.batches.bare_infos(listed)
        if marked:
            self.batches.complete_infos(infos, listed, marked, beside, resets=resets)
        # Not below: from Python 3.12 on, an interrupt in a comprehension can skip the `except`.
        completed = [listed[k] for k, mark in marked if mark & (FINAL | OVER)] if marked else []
        flight.ids_of_call = ids  # see ``Flight.send``
        try:
            if flight.recorder is not None:
                flight.recorder.rows(ids, parts, reward, terminated, truncated, resets=resets)
            if marked:
                flight.positions.mark_returned(listed, marked)
            self.arrivals.remove(ids)
            self.states.mark_returned(envs, READY)
            if self.recovery.tracks_rows:
                self.recovery.mark_returned(ids, completed)
            if beside:
                flight.forget_items(beside)
            self.batch_ids = ids
            self.num_returned[0] += 1
            self.num_returned[1] += len(ids)
            flight.ids_of_call = None
        except BaseException as error:
            self._end_failed_call(ids, error, sent=True)
            raise
        return obs, reward, terminated, truncated, infos

    def _deliver_with_errors(
        self, ids: IdArray, errors: Errors, apart: Errors | None
    ) -> StepResult | None:
        """Let recovery handle these errors of a batch; with ``apart`` deliver its other rows."""
        batch = ids if apart is None else np.array([*errors])
        raised = self.recovery.recreate_or_raise(errors, batch)
        if apart is not None:
            apart |= raised
            good = np.array([i for i in ids.tolist() if i not in errors], np.intp)
            return self.deliver(Selection(good), resets=False, apart=apart) if len(good) else None
        if raised:
            raise combine([raised[i] for i in sorted(raised)])
        return None

    def _end_failed_call(self, ids: IdArray, error: BaseException, *, sent: bool) -> None:
        """After a call for these envs has raised, cancel it if it was interrupted.

        Else its results are kept: those of an EnvError, and of an error of a user's callback.
        """
        flight, states = self.flight, self.states
        if not is_interrupt(error):
            if sent and not isinstance(error, EnvError):
                states.unread.update(ids[states.in_flight()[ids]].tolist())
            flight.ids_of_call = None
            return
        flight.end_interrupted(ids, sent=sent)

    def ask(self, ids: IdArray, requests: Sequence[Request]) -> list[Any]:
        """Send a request without a row to each of these envs; see ``env_method_calls.ask``."""
        self.recovery.recreation.await_recreated(ids.tolist())
        return ask(self.flight, ids, requests)

    def prepare_call(self, ids: IdArray, requests: Sequence[Request]) -> Call:
        """Return the same as a call to be sent and waited for."""
        self.states.check_free(ids)
        self.recovery.recreation.await_recreated(ids.tolist())
        return Call(self.flight, ids, requests)

    def record(self, path: Path, header: Mapping[str, Any]) -> None:
        with interrupts.deferred():  # else a file might have no writer
            self.flight.recorder = RecordWriter(self.block, path, header)
            if all(host.can_measure for host in self.hosts.local):  # else `send` is code of users
                self.flight.recording_guard = interrupts.deferred
                self.flight.send = interrupts.deferred()(self.flight.send)  # type: ignore[method-assign]
            self.batches.keep_last_obs()  # as a replay does: a lost step repeats the observation

    def close(self) -> list[EnvError]:
        self.flight.mark_closed()
        if self.flight.recorder is not None:
            self.flight.recorder.close()
        errors = self.hosts.close()
        # Free the memory and its descriptor, even if the pool stays referenced.
        for owner in (self, self.flight):
            for name in ("block", "batches", "positions"):
                vars(owner).pop(name, None)
        return errors
