"""The watch: what every worker process is doing just now, and the stack of one that is stuck.

A small shared memory beside the block, three numbers for each process, written by that process
alone and read by the parent while it waits:

* which env carries out a request (its id and 1), 0 for none, -1 for what is not timed;
* when that began, on the clock that all processes of the machine share;
* how many frames it has dealt with.

A step that begins later than the parent has looked can't be overdue before one ``limit`` has passed
since, so the parent looks about once in ``limit`` seconds, and a process pays two stores and a
clock for a step. There is no watch, and no cost, where no ``step_timeout`` was asked for.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from envpool_py import shm

T = TypeVar("T")

#: Bytes of the watch for each process.
_ROW = 24

#: Seconds that a stuck process has for writing its stack down.
STACK_GRACE = 0.5
#: Seconds without a further line after which a stack is taken to be whole.
_QUIET = 0.01

#: The signal that asks for the stack; one that envs are not likely to use.
STACK_SIGNAL: int = signal.SIGRTMAX if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2


# ------------------------------------------------------------------------------- in the process


def attach(memory: int, number: int, stacks: int) -> Begin:
    """The watch's place for process ``number``, and its stack on demand from here on."""
    # In C, by the signal handler itself: it also works while an env holds the GIL.
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    return Begin(shm.attach(memory), number)


class Begin:
    """One process's side of the watch.

    Args:
        memory: the watch of all processes.
        number: the place of this one in it.
    """

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        row = memoryview(memory)[number * _ROW : (number + 1) * _ROW]
        self.numbers = row.cast("q")
        self.times = row.cast("d")

    def watched(self, carry_out: Callable[[Any], T], i: int) -> Callable[[Any], T]:
        """``carry_out``, said to be done by env ``i`` while it is."""
        numbers, times, clock = self.numbers, self.times, time.monotonic

        def watched(argument: Any) -> T:
            # In this order: the parent may see a time that is too late, never one too early.
            times[1] = clock()
            numbers[0] = i + 1
            try:
                return carry_out(argument)
            finally:
                numbers[0] = 0

        return watched

    def end(self) -> None:
        """No env is at work."""
        self.numbers[0] = 0

    def untimed(self, carry_out: Callable[[Any], T]) -> Callable[[Any], T]:
        """``carry_out``, which may take as long as it likes."""
        numbers = self.numbers

        def untimed(argument: Any) -> T:
            numbers[0] = -1
            try:
                return carry_out(argument)
            finally:
                numbers[0] = 0

        return untimed

    def counted(self, frames: Iterator[T]) -> Iterator[T]:
        """``frames``, each counted once it has been dealt with."""
        for frame in frames:
            yield frame
            self.numbers[2] += 1


# -------------------------------------------------------------------------------- in the parent


class Overdue(NamedTuple):
    """A process that is stuck; ``env_id`` is None where it has not even begun its request."""

    number: int
    env_id: int | None


class Watch:
    """The parent's side: which processes are stuck, and where.

    Args:
        num_processes: how many there are.
        limit: seconds that a request may take.

    Attributes:
        memory: descriptor of the watch, for the processes.
        stacks: descriptor of the file for their stacks.
    """

    def __init__(self, num_processes: int, limit: float) -> None:
        self.limit = limit
        with contextlib.ExitStack() as half_made:
            self.memory = shm.create()
            half_made.callback(os.close, self.memory)
            self.stacks = shm.create()
            half_made.callback(os.close, self.stacks)
            self._mapped = shm.allocate(self.memory, num_processes * _ROW, "the watch")
            half_made.pop_all()
        self._numbers = np.frombuffer(self._mapped, dtype=np.int64).reshape(-1, 3)
        self._times = self._numbers.view(np.float64)
        # How far a process was when it was seen idle with a frame to read, and when that was.
        self._idle: dict[int, tuple[tuple[int, float], float]] = {}
        self._next_look = time.monotonic() + limit

    def forget(self, number: int) -> None:
        """Begin anew with process ``number``, which is not running."""
        self._numbers[number] = 0
        self._idle.pop(number, None)

    def wait(self, timeout: float | None) -> float:
        """How long to wait before the next look, ``timeout`` seconds at the most."""
        left = max(self._next_look - time.monotonic(), 0.0)
        return left if timeout is None else min(left, timeout)

    def look(self, sent: Sequence[int]) -> list[Overdue]:
        """The processes that are stuck, if it is time to look.

        Args:
            sent: how many frames each process was sent; -1 for one that is not running.
        """
        now = time.monotonic()
        if now < self._next_look:
            return []
        found = []
        due = now + self.limit
        for number, count in enumerate(sent):
            if count < 0:
                continue
            env = int(self._numbers[number, 0])
            began = float(self._times[number, 1])
            if env < 0:
                self._idle.pop(number, None)
                continue
            if env:
                self._idle.pop(number, None)
                # Read again: had that request ended meanwhile, the time might be that of another.
                if began + self.limit > now or env != int(self._numbers[number, 0]):
                    due = min(due, max(began + self.limit, now + 1e-3))
                else:
                    found.append(Overdue(number, env - 1))
                continue
            done = int(self._numbers[number, 2])
            if done >= count:
                self._idle.pop(number, None)
                continue
            now_at = (done, began)
            far, since = self._idle.setdefault(number, (now_at, now))
            if far != now_at:
                self._idle[number] = (now_at, now)
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
        del self._numbers, self._times
        with contextlib.suppress(BufferError):
            self._mapped.close()
        os.close(self.memory)
        os.close(self.stacks)
