"""The state of each env: a table with one row per env.

An env is in flight from the moment a request is sent until its result is returned, and accepts no
other request meanwhile. Every request has a token (``env.request``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from numpy.typing import NDArray

from envpool_py.env.request import GENERATION
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError, name_ids

# Only a READY env accepts a step; one below STEPPING is idle, and accepts a reset, the others are
# in flight. A dead env is not READY.
READY, NEVER_RESET, RAISED, INTERRUPTED, RESTARTED, STEPPING, RESETTING = range(7)

_WHY_RESET = {
    NEVER_RESET: "reset before step",
    RAISED: "an exception was raised; reset before step",
    INTERRUPTED: "the last request was cancelled; reset before step",
    RESTARTED: "restarted; reset before step",
}

_ALL_READY = bytes([READY])
_MAX_LOG_ENTRIES = 1024  # two entries for each batch that is sent or returned


class States:
    """The state of every env.

    Attributes:
        state: uint8 ``(num_envs,)``: ``READY``, ``NEVER_RESET``, ...
        tokens: int64 ``(num_envs,)``: the current token of each env.
        num_in_flight: the number of envs in flight.
        dead: the envs whose process has ended, and that no restart has revived.
        recreated_in_flight: the envs that were recreated after their row, in flight, had arrived.
        death_of: returns a new error that says how the process of an env ended.
        is_held: whether a ``Call`` with ``hold`` is under way; meanwhile no env accepts a request.
        unread: envs in flight whose result has arrived, but was not returned: the error of another
            env was raised, or the batch was full.
    """

    death_of: Callable[[int], EnvError]  # set by the engine

    def __init__(self, num_envs: int) -> None:
        self.state = np.full(num_envs, NEVER_RESET, np.uint8)
        # No token is 0: a stray zero must not look like a result.
        self.tokens: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64) + GENERATION
        self.num_in_flight = 0
        self.is_held = False
        self.dead: set[int] = set()
        self.recreated_in_flight: set[int] = set()
        self.unread: set[int] = set()
        # When requests were sent or returned, in nanoseconds, and of which envs, in turn. A log,
        # because each batch adds to it (0.1 µs; to store 64 times took 3 µs), and few read it. Its
        # first entry has all envs, and one time or a time for each.
        self._log: list[Any] = [0, np.arange(num_envs)]

    def in_flight(self) -> NDArray[np.bool_]:
        """Return a mask ``(num_envs,)`` of the envs in flight."""
        return self.state >= STEPPING

    def dead_among(self, ids: IdArray) -> IdArray:
        """Return those of these envs that are idle, and dead."""
        return ids[np.isin(ids, [*self.dead]) & ~self.in_flight()[ids]]

    def _condense_log(self) -> tuple[NDArray[np.int64], IdArray]:
        """Make the log one entry: the time of the last entry of each env, and the ids, sorted."""
        times, batches = self._log[::2], self._log[1::2]
        ids = np.concatenate(batches)
        first = np.broadcast_to(times[0], batches[0].shape)
        later = np.array(times[1:], np.int64)
        later = later.repeat(np.array([*map(len, batches[1:])], np.intp))
        last = np.empty(len(first), np.intp)
        last[ids] = np.arange(len(ids))
        last.sort()
        self._log = [np.concatenate([first, later])[last], ids[last]]
        return self._log[0], self._log[1]

    def waiting(self) -> IdArray:
        """Return the envs in flight, the oldest request first."""
        _, order = self._condense_log()
        return order[self.in_flight()[order]]

    def sent_before(self, nanoseconds: int) -> set[int]:
        """Return the envs in flight whose requests were sent before this ``time.monotonic_ns``."""
        times, order = self._condense_log()
        return set(order[self.in_flight()[order] & (times < nanoseconds)].tolist())

    def ready(self) -> IdArray:
        """Return the envs that accept a request, in the order in which results were returned."""
        _, order = self._condense_log()
        return order[~self.in_flight()[order] & ~np.isin(order, [*self.dead])]

    def check_free(self, ids: IdArray) -> None:
        """Raise AlreadyPendingCallError for an env in flight, EnvError if its process has ended."""
        if self.is_held:
            text = "a call is under way; wait for its replies first"
            raise AlreadyPendingCallError(f"{name_ids(ids.tolist())}: {text}", "call")
        if self.dead and len(dead := self.dead_among(ids)):
            raise self.death_of(int(dead[0]))
        state = self.state[ids]
        busy = state >= STEPPING
        if not busy.any():
            return
        resets = state[busy.argmax()] == RESETTING
        kind = "resetting" if resets else "stepping"
        fact = f"still {kind}; pass pool.batch_ids as the ids in partial batches, else call recv()"
        listed = ids[busy].tolist()
        if not self.unread.isdisjoint(listed):
            listed = [i for i in listed if i in self.unread]
            of = "reset" if resets else "step"
            fact = f"a result of the previous {of} is still unread; call recv(), or reset()"
        raise AlreadyPendingCallError(f"{name_ids(listed)}: {fact}", kind)

    def check_step(self, envs: Selection) -> None:
        """Raise ResetNeeded if an env needs a reset first, and the errors of ``check_free``."""
        state = self.state[envs.index]
        if not self.is_held and not state.tobytes().strip(_ALL_READY):  # faster than NumPy
            return
        self.check_free(envs.ids)
        wrong = envs.ids[self.state[envs.ids] != READY]
        why = _WHY_RESET[int(self.state[wrong[0]])]
        raise ResetNeeded(f"{name_ids(wrong.tolist())}: {why}")

    def check_fetch(self, ids: IdArray) -> None:
        """Raise ValueError unless all of these envs are in flight."""
        idle = ~self.in_flight()[ids]
        if idle.any():
            raise ValueError(f"{name_ids(ids[idle].tolist())}: not in flight; send actions first")

    def mark_sent(self, envs: Selection, state: int) -> None:
        self.state[envs.index] = state
        self.num_in_flight += len(envs.ids)
        self._log += time.monotonic_ns(), envs.ids

    def mark_returned(self, envs: Selection, state: int) -> None:
        self.state[envs.index] = state
        self.num_in_flight -= len(envs.ids)
        if envs.is_whole:
            self._log = [time.monotonic_ns(), envs.ids]
        else:
            self._log += time.monotonic_ns(), envs.ids
            if len(self._log) > _MAX_LOG_ENTRIES:
                self._condense_log()
        if self.unread:
            self.unread.difference_update(envs.ids.tolist())
        if self.recreated_in_flight:
            stale = self.recreated_in_flight.intersection(envs.ids.tolist())
            self.state[list(stale)] = NEVER_RESET
            self.recreated_in_flight -= stale
        if self.dead:
            self.state[self.dead_among(envs.ids)] = RAISED

    def mark_cancelled(self, ids: IdArray) -> None:
        """Cancel the requests of these envs: they need a reset, and late results are stale."""
        self.tokens[ids] += GENERATION
        self.state[ids] = INTERRUPTED
        self.recreated_in_flight.difference_update(ids.tolist())
        self.recount()

    def recount(self) -> None:
        """Recount the envs in flight, because an interrupt may have left the count wrong."""
        ids = np.flatnonzero(self.in_flight())
        self.num_in_flight = len(ids)
        self.unread.intersection_update(ids.tolist())

    def mark_dead(self, i: int) -> None:
        """Mark that the process of env ``i`` has ended; a request in flight still has a result."""
        self.dead.add(i)
        if self.state[i] < STEPPING:
            self.state[i] = RAISED

    def mark_recreated(self, i: int, *, has_request: bool) -> None:
        """Mark env ``i`` as recreated; in flight it keeps its request, or the row that it has."""
        self.dead.discard(i)
        if self.state[i] < STEPPING:
            self.state[i] = NEVER_RESET
        elif not has_request:
            self.recreated_in_flight.add(i)

    def mark_as_reset(self) -> None:
        """Let envs that were never reset accept a step."""
        self.state[self.state == NEVER_RESET] = READY
