"""``step_timeout``: which env each worker process is stepping, and the stack of one that is stuck.

Each process has a *heartbeat* in the block, three int64 that it alone writes and the parent reads
while it waits:

* which env carries out a request (its id and 1), 0 for none, -1 for a request that is not timed;
* when that began, a float64 of the clock that all processes of a machine share;
* how many frames the process has dealt with.

A step that begins after a look cannot be overdue before one ``limit`` has passed since, so the
parent looks about once in ``limit`` seconds, and a process pays two stores and a clock for a step.
Without ``step_timeout`` there is no heartbeat, and no overhead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from envpool_py import shm
from envpool_py.spaces import Array

#: Seconds that a stuck process has for writing its stack down.
STACK_GRACE = 0.5
# Seconds without a further line after which a stack is taken to be whole.
_QUIET = 0.01

#: The signal that asks for the stack; one that envs are not likely to use.
STACK_SIGNAL: int = signal.SIGRTMAX if hasattr(signal, "SIGRTMAX") else signal.SIGTERM


# ------------------------------------------------------------------------------- in the process


def show_stacks(fd: int) -> None:
    """Have this process write the Python stacks of its threads there when it is asked to."""
    # In C, by the signal handler itself: it also works while an env holds the GIL.
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


class Heartbeat:
    """One process's side.

    Args:
        row: int64 ``(3,)``.
    """

    def __init__(self, row: Array) -> None:
        self._numbers: Any = memoryview(row)  # type: ignore[arg-type]
        self._times: Any = memoryview(row.view(np.float64))  # type: ignore[arg-type]

    def begin(self, i: int, *, timed: bool = True) -> None:
        """Env ``i`` begins a request."""
        # In this order: the parent may see a time that is too late, never one too early.
        self._times[1] = time.monotonic()
        self._numbers[0] = i + 1 if timed else -1

    def end(self) -> None:
        """No env is at work."""
        self._numbers[0] = 0

    def count(self, frames: int) -> None:
        """So many frames have been dealt with."""
        self._numbers[2] = frames


# -------------------------------------------------------------------------------- in the parent


class Overdue(NamedTuple):
    """A process that is stuck; ``env_id`` is None where it has not even begun its request."""

    number: int
    env_id: int | None


class Watchdog:
    """The parent's side: which processes are stuck, and where.

    Args:
        limit: seconds that a request may take.

    Attributes:
        stacks: descriptor of the file for the stacks of processes.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.stacks = shm.create()
        self._heartbeats: Array = np.zeros((0, 3), np.int64)
        # How far a process was when it was seen idle with a frame to read, and when that was.
        self._idle: dict[int, tuple[tuple[int, float], float]] = {}
        self._next_look = time.monotonic() + limit

    def attach(self, heartbeats: Array) -> None:
        """Look at these heartbeats, int64 ``(num_processes, 3)``."""
        self._heartbeats = heartbeats

    def forget(self, number: int) -> None:
        """Process ``number`` is not running, and will be started again."""
        if len(self._heartbeats):
            self._heartbeats[number] = 0
        self._idle.pop(number, None)

    def wait(self, timeout: float | None) -> float:
        """How long to wait before the next look, ``timeout`` seconds at the most."""
        left = max(self._next_look - time.monotonic(), 0.0)
        return left if timeout is None else min(left, timeout)

    def look(self, sent: Callable[[], Sequence[int]]) -> list[Overdue]:
        """The processes that are stuck, if it is time to look.

        Args:
            sent: how many frames each process was sent; -1 for one that is not running.
        """
        now = time.monotonic()
        if now < self._next_look:
            return []
        found = []
        due = now + self.limit
        for number, count in enumerate(sent() if len(self._heartbeats) else ()):
            if count < 0:
                continue
            env, _, done = self._heartbeats[number].tolist()
            began = float(self._heartbeats[number].view(np.float64)[1])
            if env < 0 or (not env and done >= count):
                self._idle.pop(number, None)
            elif env:
                self._idle.pop(number, None)
                # Read again: had that request ended meanwhile, the time might be that of another.
                if began + self.limit > now or env != int(self._heartbeats[number, 0]):
                    due = min(due, max(began + self.limit, now + 1e-3))
                else:
                    found.append(Overdue(number, env - 1))
            else:
                far, since = self._idle.setdefault(number, ((done, began), now))
                if far != (done, began):
                    self._idle[number] = ((done, began), now)
                elif since + self.limit <= now:
                    found.append(Overdue(number, None))
                else:
                    due = min(due, since + self.limit)
        self._next_look = due
        return found

    def stack_of(self, kill: Callable[[int], None]) -> str:
        """The Python stacks of a process's threads; empty if it does not give them.

        Args:
            kill: sends that process a signal.
        """
        start = end = os.fstat(self.stacks).st_size
        kill(STACK_SIGNAL)
        kill(signal.SIGCONT)  # a stopped process takes no signal but this one
        limit = quiet = time.monotonic() + STACK_GRACE
        while time.monotonic() < min(limit, quiet):
            time.sleep(1e-3)
            size = os.fstat(self.stacks).st_size
            if size > end:
                end = size
                quiet = time.monotonic() + _QUIET
        return os.pread(self.stacks, end - start, start).decode(errors="replace")

    def close(self) -> None:
        """Free everything."""
        self._heartbeats = np.zeros((0, 3), np.int64)
        with contextlib.suppress(OSError):
            os.close(self.stacks)
