"""Where every env is in its life: never reset, ready, in flight, failed, dead.

Between the pool, which checks what a user asks, and the worker group, which carries it out. What
holds here:

* an env is in flight from the moment of sending until its row is handed out, and takes no other
  request meanwhile;
* an error takes its own env out of flight; the rows that came with it are kept, and handed out by
  the next call that fetches, or dropped by a reset;
* a call that is broken off (Ctrl-C, a signal handler that raises) disowns what it asked for, and
  those envs then accept only a reset; what they still answer is dropped, however late it comes;
* an env whose process has ended answers every request with the same error at once.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from numpy.typing import NDArray

from envpool_py import ids as ids_
from envpool_py.errors import EnvError, combine, from_signal_handler, name_ids
from envpool_py.ids import IdArray, Ids
from envpool_py.leases import Leases
from envpool_py.rows import Batch
from envpool_py.spaces import Array
from envpool_py.worker.base import Request
from envpool_py.worker.group import WorkerGroup

#: (obs, reward, terminated, truncated, info)
StepResult: TypeAlias = "tuple[Any, Array, NDArray[np.bool_], NDArray[np.bool_], Array]"

# Only READY takes a step; what is below STEPPING takes a reset; from KEPT to RESETTING an env is in
# flight. KEPT: its row is there, but an error of another env kept it from being handed out.
READY, NEVER_RESET, FAILED, ABANDONED, RESTARTED = range(5)
KEPT, KEPT_RESET, STEPPING, RESETTING, DEAD = range(5, 10)

#: Ids that were sent or handed out before ``_order`` is told of them: memory, and one step's delay.
_MOST_UNTOLD = 1 << 14

_WHY_RESET = {
    NEVER_RESET: "reset before step",
    FAILED: "it has raised; reset before step",
    ABANDONED: "its last request was broken off; reset before step",
    RESTARTED: "it was restarted; reset before step",
}


class EnvLives:
    """The lives of the envs of one pool.

    Args:
        group: carries requests out; started.
        columns: batches of Dict and Tuple observations as dicts and tuples of arrays.
        copy: False: a batch of all envs in order may be views of the block, and the observations
            of any other lie in a buffer that is used again.
    """

    def __init__(self, group: WorkerGroup, *, columns: bool, copy: bool) -> None:
        num_envs = len(group.workers)
        self._group = group
        #: All ids, in order.
        self.everything = group.block.everything
        self._finished = group.finished
        self._columns = columns
        self._copy = copy
        self._leases = None if copy else Leases(group.block)
        # Of all envs at once it is quicker to compare and to set the bytes.
        self._states = bytearray([NEVER_RESET]) * num_envs
        self._state = np.frombuffer(self._states, dtype=np.int8)
        self._all_ready = bytes([READY]) * num_envs
        self._all_stepping = bytes([STEPPING]) * num_envs
        # Of sending for envs in flight, of handing out for the others.
        self._order = np.arange(num_envs)
        self._tick = num_envs
        # What ``_order`` has still to be told of, the oldest first, and how many ids that is.
        self._untold: list[IdArray] = []
        self._num_untold = 0
        # What an env becomes when it lands, where that is not for the caller to say.
        self._fate: dict[int, int] = {}
        self._resets = 0  # how many of those in flight
        # Whether the last to be sent were all envs, in order; and whether ``_order`` is so, too.
        self._sent_all = False
        self._in_order = True
        # The envs whose rows are being handed out.
        self._landing: IdArray | None = None
        # The ids of the last batch that was fetched.
        self._handed: tuple[IdArray, bytes] = np.empty(0, dtype=np.intp), b""
        #: How many envs are in flight.
        self.in_flight = 0
        #: How many batches were handed out, and rows in them.
        self.batches = self.rows = 0

    # ----------------------------------------------------------------------------------- looking

    def waiting(self) -> IdArray:
        """The envs in flight, the oldest request first."""
        if self._sent_all and self.in_flight == len(self.everything):
            return self.everything
        return self._ordered((self._state >= KEPT) & (self._state < DEAD))

    def ready(self) -> IdArray:
        """The envs that take a request, in the order in which their rows were handed out."""
        return self._ordered(self._state < KEPT)

    def _ordered(self, mask: NDArray[np.bool_]) -> IdArray:
        self._tell_order()
        ids = np.flatnonzero(mask)
        return ids[np.argsort(self._order[ids])]

    def take_as_reset(self) -> None:
        """Have envs that were never reset take a step."""
        self._state[self._state == NEVER_RESET] = READY

    # ---------------------------------------------------------------------------------- checking

    def check_free(self, ids: IdArray) -> None:
        """Raise unless these envs take a request that brings no row.

        Raises:
            AlreadyPendingCallError: one is in flight.
            WorkerDiedError: the process of one has ended.
        """
        state = self._state[ids]
        busy = state >= KEPT
        if not busy.any():
            return
        dead = state == DEAD
        if dead.any():
            raise self._group.death_of(int(ids[dead.argmax()]))
        kind = "resetting" if state[busy.argmax()] in (RESETTING, KEPT_RESET) else "stepping"
        raise AlreadyPendingCallError(
            f"{name_ids(ids[busy].tolist())}: still {kind}; its row must be fetched first,"
            " by recv() or step(None)",
            kind,
        )

    def check_step(self, ids: IdArray) -> None:
        """Raise unless these envs take a step.

        Raises:
            ResetNeeded: one was never reset, or has raised or been abandoned since.
            AlreadyPendingCallError, WorkerDiedError: as ``check_free``.
        """
        if self._states == self._all_ready or not np.count_nonzero(self._state[ids]):
            return
        self.check_free(ids)
        wrong = ids[self._state[ids] != READY]
        why = _WHY_RESET[int(self._state[wrong[0]])]
        raise ResetNeeded(f"{name_ids(wrong.tolist())}: {why}")

    def claim_reset(self, ids: IdArray) -> None:
        """Raise unless these envs take a reset, and drop the rows that are kept of them.

        Raises:
            AlreadyPendingCallError, WorkerDiedError: as ``check_free``.
        """
        state = self._state[ids]
        if not (state >= KEPT).any():
            return
        kept = (state == KEPT) | (state == KEPT_RESET)
        self.check_free(ids[~kept])
        self.give_up(ids[kept])
        self.check_free(ids)  # the process of a kept row may have ended since

    def check_fetch(self, ids: IdArray) -> None:
        """Raise unless all of these envs are in flight.

        Raises:
            ValueError: one is not.
        """
        state = self._state[ids]
        idle = (state < KEPT) | (state == DEAD)
        if idle.any():
            raise ValueError(f"{name_ids(ids[idle].tolist())}: nothing in flight to fetch")

    # ----------------------------------------------------------------------------------- sending

    def step(self, ids: IdArray, actions: Any) -> StepResult:
        """Step these envs and wait for all of them; broken off, they accept only a reset.

        Raises:
            ResetNeeded, AlreadyPendingCallError, WorkerDiedError: as ``check_step``.
        """
        if ids is self.everything and self._states == self._all_ready:
            return self._step_all(actions)
        self.check_step(ids)
        return self._blocking(self.send_steps, ids, actions)

    def _step_all(self, actions: Any) -> StepResult:
        """Step all envs, which are ready, the short way where there is one.

        What ``_blocking`` does, with what is the same each time left out: it runs once a batch, and
        in caches that are full of what the envs themselves need.
        """
        group, ids = self._group, self.everything
        sent = False
        try:
            group.cancelled_meanwhile = False
            self._states[:] = self._all_stepping
            self.in_flight = len(ids)
            sent = group.step_all(actions)
            if sent:
                self._sent_all = True
                if not self._in_order:
                    self._stamp(ids)
                if self._leases is not None:
                    self._leases.release(ids)
                if group.died or group.errors or group.complaints or group.closed:
                    self._attend()
                if len(self._finished) < len(ids):
                    self._wait_for(ids)
                return self._hand_out(ids, mark=False)
            self._states[:] = self._all_ready
            self.in_flight = 0
        except BaseException as error:
            if _is_of_envs(error):
                raise
            group.torn = ()  # with all others
            self._break_off(ids, error, landed=sent)
            raise
        return self._blocking(self.send_steps, ids, actions)

    def reset(self, ids: IdArray, requests: Sequence[Request]) -> StepResult:
        """Reset these envs and wait for all of them; broken off, they accept only a reset."""
        return self._blocking(self.send_resets, ids, requests)

    def _blocking(
        self, send: Callable[[IdArray, Any], None], ids: IdArray, asked: Any
    ) -> StepResult:
        sent = False
        try:
            send(ids, asked)
            sent = True
            if ids is self.everything:
                self._group.block.prepare()
            self._wait_for(ids)
            return self._hand_out(ids, mark=False)
        except BaseException as error:
            if _is_of_envs(error):
                raise
            self._break_off(ids, error, landed=sent)
            raise

    def _break_off(self, ids: IdArray, error: BaseException, *, landed: bool) -> None:
        """Give up what a blocking call asked for; see ``give_up``.

        Raises:
            ClosedEnvironmentError: what went wrong is that there is no pool any more.
        """
        self.give_up(ids, landed=landed)
        if self._group.cancelled_meanwhile:  # maybe before it was sent, or after it came
            self._group.cancel([])
            self._drop_stale()
        if self._group.closed and type(error) is AttributeError:
            raise _closed_meanwhile() from error

    def send(self, actions: Any, ids: Ids) -> None:
        """Begin a step of each of these envs, as a user names them; None is all.

        At once for the ids that were handed out last, which most often come back.

        Raises:
            ResetNeeded, AlreadyPendingCallError, WorkerDiedError: as ``check_step``.
            IndexError, TypeError, ValueError: ids or actions are wrong; nothing was sent.
        """
        handed, same = self._handed
        if (
            type(ids) is np.ndarray
            and ids.dtype is handed.dtype
            and ids.shape == handed.shape
            and ids.tobytes() == same
        ):
            resolved = handed
        else:
            resolved = self.everything if ids is None else ids_.resolve(ids, len(self.everything))
        self.check_step(resolved)
        self.send_steps(resolved, actions)

    def send_steps(self, ids: IdArray, actions: Any) -> None:
        """Begin a step of each env; all of it or, where the actions are wrong, nothing."""
        group = self._group
        if group.shares_block and group.block.takes(actions, len(ids)):
            self._send(ids, STEPPING, functools.partial(group.post_actions, ids, [actions]))
            return
        # The user's own code may run here; whatever it raises, nothing has been touched.
        self._send(ids, STEPPING, group.pack_steps(ids, actions))

    def send_resets(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """Begin a reset of each env; all of it or, where they can't be sent, nothing."""
        post = self._group.pack(ids.tolist(), requests)
        self._send(ids, RESETTING, post)

    def _send(self, ids: IdArray, state: int, post: Callable[[], None]) -> None:
        try:
            self._take_off(ids, state)
            post()
            if self._group.cancelled_meanwhile:  # by a signal handler, maybe before it was sent
                self._group.cancel(ids[self._state[ids] < KEPT].tolist())
        except BaseException:
            self.give_up(ids)
            raise

    def _take_off(self, ids: IdArray, state: int) -> None:
        count = len(ids)
        self._group.cancelled_meanwhile = False
        self.in_flight += count
        if state == RESETTING:
            self._resets += count
        self._sent_all = ids is self.everything
        if self._sent_all and state == STEPPING:
            self._states[:] = self._all_stepping
        else:
            self._state[ids] = state
        if self._leases is not None:
            self._leases.release(ids)
        self._stamp(ids)

    def _stamp(self, ids: IdArray) -> None:
        """Take note that these envs were sent or handed out now; it is seldom asked for."""
        if ids is self.everything:
            if self._in_order:
                return
            self._untold = []  # all of it is overtaken
            self._num_untold = 0
        self._in_order = False
        self._untold.append(ids)
        self._num_untold += len(ids)
        if self._num_untold > _MOST_UNTOLD:
            self._tell_order()
        self._in_order = ids is self.everything

    def _tell_order(self) -> None:
        if not self._untold:
            return
        ids = np.concatenate(self._untold)
        # Of an id that stands there more than once, the last place is kept.
        self._order[ids] = np.arange(self._tick, self._tick + len(ids))
        self._tick += len(ids)
        self._untold = []
        self._num_untold = 0

    def _land(self, ids: IdArray, state: Any) -> None:
        if self._resets:
            now = self._state[ids]
            self._resets -= int(((now == RESETTING) | (now == KEPT_RESET)).sum())
        if ids is self.everything and state == READY:
            self._states[:] = self._all_ready
        else:
            self._state[ids] = state
        self.in_flight -= len(ids)
        if self._fate:
            self._settle(ids)

    def _settle(self, ids: IdArray) -> None:
        for i in ids.tolist():
            if i in self._fate:
                self._state[i] = self._fate[i]
                if self._fate[i] != DEAD:
                    del self._fate[i]

    def give_up(self, ids: IdArray, *, landed: bool = False) -> None:
        """Disown the requests of those of these envs that are in flight.

        Args:
            ids: shape ``(k,)``.
            landed: those too whose row was about to be handed out.
        """
        state = self._state[ids]
        lost = (state >= KEPT) & (state < DEAD)
        if landed:
            lost |= state == READY
        flying = ids[lost]
        if len(flying):
            self._state[flying] = ABANDONED
            self._settle(flying)
            self._cancel(flying.tolist())
        # An interrupt may have come between a state and its count.
        state = self._state
        self.in_flight = int(((state >= KEPT) & (state < DEAD)).sum())
        self._resets = int(((state == RESETTING) | (state == KEPT_RESET)).sum())

    def cancel(self, ids: IdArray) -> None:
        """Give up what these envs have in flight; a call that waits for one of them raises.

        It comes too late for rows that are just being handed out.
        """
        self._group.cancelled_meanwhile = True
        if self._landing is not None:
            ids = np.setdiff1d(ids, self._landing)
        self.give_up(ids)
        self._group.wake()

    def _drop_stale(self) -> None:
        """Drop rows that were just taken in when a signal handler gave their requests up."""
        stale = [i for i in self._finished if self._state[i] < KEPT]
        if stale:
            self._group.forget(stale)

    def _refuse_cancelled(self, ids: IdArray) -> None:
        state = self._state[ids]
        gone = ids[(state < KEPT) & (state != READY)]
        if len(gone):
            raise ResetNeeded(
                f"{name_ids(gone.tolist())}: cancel() gave its request up while a call waited for"
                " it; reset before step"
            )

    def _cancel(self, ids: list[int]) -> None:
        self._group.cancel(ids)

    def put_lost(self, ids: IdArray) -> None:
        """Have these envs, none of them in flight, bring the row of a lost step."""
        self._take_off(ids, STEPPING)
        for i in ids.tolist():
            self._group.block.put_lost(i)
            self._finished.append(i)

    # ---------------------------------------------------------------------------------- fetching

    def fetch_exactly(self, ids: IdArray) -> StepResult:
        """Wait for these envs, all in flight, and hand their rows out in this order.

        Raises:
            EnvError: one has failed.
            ResetNeeded: a signal handler has cancelled one meanwhile.
        """
        if ids is self.everything:
            self._group.block.prepare()
        self._wait_for(ids)
        return self._hand_out(ids, mark=True)

    def fetch_next(self, wait_num: int, timeout: float | None, *, strict: bool) -> StepResult:
        """Wait for ``wait_num`` rows, or all in flight if they are fewer, and hand them out.

        Args:
            wait_num: 1 or more.
            timeout: seconds after which fewer will do, one at least.
            strict: none will do then.

        Raises:
            EnvError: one has failed.
            ResetNeeded: a signal handler has cancelled all of them meanwhile.
        """
        finished = self._finished
        want = wait_num
        deadline = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while (missing := min(want, self.in_flight) - len(finished)) > 0:
            self._wait(missing, left, None)
            if self._group.cancelled_meanwhile:
                self._drop_stale()
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    if finished or strict:
                        break
                    deadline, left, want = None, None, 1
        if self._group.cancelled_meanwhile:
            self._drop_stale()
            if not self.in_flight:
                self._refuse_cancelled(self.everything)
        return self._hand_out(self._finished_ids(), mark=True)

    def fetch_all(self) -> StepResult:
        """Wait for everything in flight and hand it out in the order in which it finished."""
        while len(self._finished) < self.in_flight:
            self._wait(self.in_flight - len(self._finished), None, None)
        return self._hand_out(self._finished_ids(), mark=True)

    def _finished_ids(self) -> IdArray:
        # Of a list that a signal handler shortens meanwhile NumPy reads more than there is.
        return np.array(tuple(self._finished), dtype=np.intp)

    def _wait_for(self, ids: IdArray) -> None:
        count = len(ids)
        finished = self._finished
        if count == self.in_flight:  # nobody else can finish
            while len(finished) < count:
                if self._group.cancelled_meanwhile:
                    self._refuse_cancelled(ids)
                self._wait(count - len(finished), None, None)
            return
        listed = ids.tolist()
        while missing := set(listed).difference(finished):
            if self._group.cancelled_meanwhile:
                self._refuse_cancelled(ids)
            self._wait(1, None, [i for i in listed if i in missing])

    def _wait(self, wait_num: int, timeout: float | None, only: list[int] | None) -> None:
        group = self._group
        try:
            group.wait(wait_num, timeout, only)
        except BaseException:
            torn, group.torn = group.torn, ()
            self.give_up(np.array(torn, dtype=np.intp))
            raise
        if group.died or group.errors or group.complaints or group.closed:
            self._attend()

    def _attend(self) -> None:
        """See to what has happened while the group waited."""
        group = self._group
        if group.closed:
            raise _closed_meanwhile()
        if group.died:
            self._note_deaths()
        if group.complaints:
            self._warn()

    def _warn(self) -> None:
        complaints = self._group.complaints
        while complaints:
            text = f'{complaints.pop(0)}; validate="off" takes it in silence'
            warnings.warn(text, UserWarning, stacklevel=_level_of_caller())

    def _note_deaths(self) -> None:
        group = self._group
        for i in group.died:
            self._fate[i] = DEAD
            if self._state[i] < KEPT or self._state[i] == DEAD:  # a new process may die as well
                self._state[i] = DEAD
            elif i not in self._finished:
                error = group.death_of(i)
                error.request = "reset" if self._state[i] == RESETTING else "step"
                group.errors[i] = error
                self._finished.append(i)
        group.died.clear()

    def _hand_out(self, ids: IdArray, *, mark: bool) -> StepResult:
        """Make a batch of the rows of these envs, all of them finished.

        Args:
            ids: shape ``(k,)``.
            mark: say ``is_reset`` in the infos of resets.

        Raises:
            EnvError: those of them that failed; the rows of the others are kept.
            ResetNeeded: a signal handler has cancelled one that a blocking call waits for.
        """
        group = self._group
        if group.closed:
            raise _closed_meanwhile()
        self._landing = ids
        try:
            if group.cancelled_meanwhile:
                if not mark:
                    self._refuse_cancelled(ids)
                self._drop_stale()
                self._landing = ids = ids[self._state[ids] >= KEPT]
            if group.errors:
                self._raise_errors(ids)
            return self._landed(ids, mark=mark)
        finally:
            self._landing = None

    def _landed(self, ids: IdArray, *, mark: bool) -> StepResult:
        count = len(ids)
        try:
            finished = self._finished
            if len(finished) == count:
                finished.clear()
            else:
                gone = set(ids.tolist())
                finished[:] = [i for i in finished if i not in gone]
            obs, reward, terminated, truncated, infos, _ = self._gather(ids)
            if mark and self._resets:
                for info, state in zip(infos, self._state[ids].tolist(), strict=True):
                    if state in (RESETTING, KEPT_RESET):
                        info["is_reset"] = True
            self._land(ids, READY)
            if mark:
                self._stamp(ids)
                self._handed = ids, ids.tobytes()
            self.batches += 1
            self.rows += count
        except BaseException:
            self.give_up(ids, landed=True)
            raise
        return obs, reward, terminated, truncated, infos

    def _gather(self, ids: IdArray) -> Batch:
        block, leases = self._group.block, self._leases
        out = None if leases is None or block.is_whole(ids) else leases.take(ids)
        return block.gather(ids, columns=self._columns, copy=self._copy, out=out)

    def _raise_errors(self, ids: IdArray) -> None:
        errors = self._group.errors
        failed = [i for i in ids.tolist() if i in errors]
        if not failed:
            return
        found = [errors[i] for i in failed]
        try:
            self._land(np.array(failed, dtype=np.intp), FAILED)
            self._group.forget(failed)
            rest = ids[~np.isin(ids, failed)]
            state = self._state[rest]
            self._state[rest[state == STEPPING]] = KEPT
            self._state[rest[state == RESETTING]] = KEPT_RESET
        except BaseException:
            self._group.forget(failed)
            self.give_up(ids)
            raise
        raise combine(found)

    # --------------------------------------------------------------- requests that bring no rows

    def ask(self, ids: IdArray, requests: Sequence[Request]) -> list[Any]:
        """Send, wait, and return the replies in the order of ``ids``, which are free.

        Raises:
            EnvError: one has failed.
        """
        group = self._group
        listed = ids.tolist()
        post = group.pack(listed, requests)
        try:
            post()
            while missing := set(listed).difference(self._finished, self._dead()):
                self._wait(1, None, [i for i in listed if i in missing])
            dead = self._dead()
            errors = [
                group.errors[i]
                if i in group.errors
                else self._death_of(i)
                if i in dead and i not in group.replies
                else None
                for i in listed
            ]
            replies = [group.replies.get(i) for i in listed]
            group.forget(listed)
        except BaseException:
            group.cancel(listed)
            raise
        raised = [error for error in errors if error is not None]
        if raised:
            raise combine(raised)
        return replies

    def ask_seeds(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """Requests that reset their envs but bring no row.

        Raises:
            EnvError: one has failed; that env then accepts only a reset.
        """
        self._state[ids] = ABANDONED  # should this be broken off
        try:
            self.ask(ids, requests)
        except Exception as error:
            self._state[ids] = READY
            self._state[list(getattr(error, "env_ids", ids.tolist()))] = FAILED
            self._state[[i for i, fate in self._fate.items() if fate == DEAD]] = DEAD
            raise
        self._state[ids] = READY

    def _dead(self) -> set[int]:
        """The envs whose process has ended."""
        return {i for i, fate in self._fate.items() if fate == DEAD}

    def _death_of(self, i: int) -> EnvError:
        return self._group.death_of(i)

    def restart(self, ids: IdArray) -> None:
        """Make envs anew, and all that shared an ended process with one of them.

        Raises:
            AlreadyPendingCallError: one is in flight, and its process lives.
            EnvError: an env_fn raised.
        """
        self._end_stuck(ids)
        self._state[ids[self._state[ids] != DEAD]] = ABANDONED  # should this be broken off
        try:
            self._made_anew(self._make_anew(ids.tolist()))
        finally:
            if self._group.died:
                self._note_deaths()

    def _end_stuck(self, ids: IdArray) -> None:
        self._group.notice_deaths()
        if self._group.died:
            self._note_deaths()
        self.check_free(ids[self._state[ids] != DEAD])
        self._group.end_stuck(ids.tolist())
        if self._group.died:
            self._note_deaths()

    def _make_anew(self, ids: list[int]) -> list[int]:
        return self._group.restart(ids)

    def _made_anew(self, made: Sequence[int]) -> None:
        for i in made:
            if self._state[i] < KEPT or self._state[i] == DEAD:
                self._fate.pop(i, None)
                self._state[i] = NEVER_RESET
            else:
                self._fate[i] = NEVER_RESET


def _level_of_caller() -> int:
    """The ``stacklevel`` at which a warning of the function that asks names the user's line."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way before Python 3.12
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("envpool_py."):
        frame = frame.f_back
        level += 1
    return level


def _closed_meanwhile() -> ClosedEnvironmentError:
    return ClosedEnvironmentError("the pool was closed while a call waited")


def _is_of_envs(error: BaseException) -> bool:
    """Whether it tells of requests that have ended; a signal handler may raise an EnvError too."""
    return isinstance(error, EnvError) and not from_signal_handler(error)
