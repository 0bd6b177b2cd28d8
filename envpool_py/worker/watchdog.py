"""``step_timeout``: find the envs that are stuck in a request, and read their Python stacks.

Each process has a *heartbeat* in the block, three int64 that it writes and the parent reads:

* the env that carries out a request (its id plus 1), 0 for none, -1 for a request without timeout;
* the start of that request, a float64 of ``time.monotonic``, the same clock in all processes;
* the number of frames that the process has handled.

The parent reads the heartbeats about once per ``limit`` seconds: a step that begins after that
cannot be overdue earlier. The process needs two stores and one clock reading per step. Without
``step_timeout`` there is no heartbeat, and no overhead.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from envpool_py.env.heartbeat import NUMBERS
from envpool_py.env.spaces import Array

#: Seconds that a stuck process has to write its stack.
STACK_GRACE = 0.5
# Seconds without a further line after which a stack is complete; long enough for a busy machine.
_QUIET = 0.1

#: The signal that requests the stack; envs are not likely to use this one.
STACK_SIGNAL: int = signal.SIGRTMAX if hasattr(signal, "SIGRTMAX") else signal.SIGTERM


def show_stacks(fd: int) -> None:
    """Let this process write the Python stacks of its threads to ``fd``.

    It does so at ``STACK_SIGNAL``, and before a signal such as SIGSEGV ends the process.
    """
    # The handlers are written in C, so they also work while an env holds the GIL.
    faulthandler.enable(fd)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


class Overdue(NamedTuple):
    """A stuck process; ``env_id`` is None if it has not begun its request."""

    number: int
    env_id: int | None


class Watchdog:
    """Finds the processes in which a request takes longer than ``limit`` seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._heartbeats: Array = np.zeros((0, NUMBERS), np.int64)
        # The progress of a process that had a frame to read but was idle, and the time of that.
        self._idle: dict[int, tuple[tuple[int, float], float]] = {}
        self._next_check = time.monotonic() + limit

    def attach(self, heartbeats: Array) -> None:
        """Read these heartbeats from now on, int64 ``(num_processes, NUMBERS)``."""
        self._heartbeats = heartbeats

    def forget(self, number: int) -> None:
        if len(self._heartbeats):
            self._heartbeats[number] = 0
        self._idle.pop(number, None)

    def wait(self, timeout: float | None) -> float:
        """Return the seconds until the next check, at most ``timeout``."""
        left = max(self._next_check - time.monotonic(), 0.0)
        return left if timeout is None else min(left, timeout)

    def find_overdue(self, sent: Callable[[], Sequence[int]]) -> list[Overdue]:
        """Return the processes that are stuck, if it is time to check.

        ``sent`` returns the number of frames sent to each process, -1 for one that is not running.
        """
        now = time.monotonic()
        if now < self._next_check:
            return []
        found = []
        idle = {}
        due = now + self.limit
        for number, count in enumerate(sent() if len(self._heartbeats) else ()):
            env, _, done = self._heartbeats[number].tolist()
            since = began = float(self._heartbeats[number].view(np.float64)[1])
            if count < 0 or env < 0 or (env == 0 and done >= count):
                continue
            if env == 0:  # it has a frame to read
                far, since = self._idle.get(number, ((done, began), now))
                if far != (done, began):
                    since = now
                idle[number] = (done, began), since
            # Read the env again: if its request has ended, the time may belong to another one.
            if since + self.limit > now or env != int(self._heartbeats[number, 0]):
                due = min(due, max(since + self.limit, now + 1e-3))
            else:
                found.append(Overdue(number, env - 1 if env else None))
        self._idle, self._next_check = idle, due
        return found

    def close(self) -> None:
        self._heartbeats = np.zeros((0, NUMBERS), np.int64)


def await_stack(fd: int, kill: Callable[[int], None]) -> None:
    """Wait until the process that ``kill`` signals has written its stack, or it does not."""
    kill(STACK_SIGNAL)
    kill(signal.SIGCONT)  # a stopped process handles no other signal
    size, limit = 0, time.monotonic() + STACK_GRACE
    quiet = limit
    while time.monotonic() < min(limit, quiet):
        time.sleep(1e-3)
        if os.fstat(fd).st_size > size:
            size = os.fstat(fd).st_size
            quiet = time.monotonic() + _QUIET
