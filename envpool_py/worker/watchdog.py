"""Find the envs that are stuck in a request, and read their Python stacks.

Each host has a *heartbeat*, that of its first env in the block, which its process writes and the
parent reads:

* ``env``: what carries out a request: its id plus 1, or ``~id`` if it has no limit; 0 for none;
* ``since``: the start of that request, by ``time.monotonic``, the same clock in all processes;
* ``handled``: the number of messages that the process has handled;
* ``thread``: the number of the thread, as Python's stacks name it;
* ``phase``: what the env is doing: ``env.heartbeat.REQUEST``, ``CLOSING`` or ``MAKING``.

The parent reads the heartbeats about once per ``limit`` seconds: a step that begins after that
cannot be overdue earlier. The process needs three stores and one clock reading per step. Without
``step_timeout`` only recreating an env has a limit, and a step writes at most its env.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envpool_py.env import coroutine_envs, failures
from envpool_py.env.heartbeat import begun_env
from envpool_py.env.spaces import Array

#: Seconds that a stuck process has to write its stack.
STACK_GRACE = 0.5
#: Seconds without a further line after which a stack is complete; long enough for a busy machine.
STACK_QUIET = 0.1
# Bytes for the stack of a process, of which a file has no more than are written: faulthandler
# writes at most 100 frames of 100 threads.
_PART = 1 << 20
#: Whether all processes can write into one file, each at a position of its own.
SHARES_STACKS = Path("/proc/self/fd").exists()

#: The signal that requests the stack; envs are not likely to use this one.
STACK_SIGNAL: int = signal.SIGRTMAX if hasattr(signal, "SIGRTMAX") else signal.SIGTERM


def show_stacks(fd: int, number: int) -> None:
    """Let this process, number ``number``, write the Python stacks of its threads to ``fd``.

    It does so at ``STACK_SIGNAL``, and before a signal such as SIGSEGV ends the process.
    """
    if SHARES_STACKS:
        fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)  # has a position of its own
        os.lseek(fd, number * _PART, os.SEEK_SET)
    # The handlers are written in C, so they also work while an env holds the GIL.
    faulthandler.disable()
    for crash in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(crash, signal.SIG_DFL)  # pygame's handlers, if the parent has them, may hang
    faulthandler.enable(fd)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


class Watchdog:
    """Finds the envs whose request takes longer than ``limit`` seconds."""

    def __init__(self, limit: float, heartbeats: Array) -> None:
        self.limit = limit
        self.next_check = time.monotonic() + limit
        self._heartbeats = heartbeats
        # The time at which a process was first idle with a message to read, by its progress.
        self._idle: dict[tuple[int, int, float], float] = {}

    def forget(self, ids: Sequence[int]) -> None:
        self._heartbeats[ids] = 0
        self._idle = {key: since for key, since in self._idle.items() if key[0] not in ids}

    def find_overdue(self, sent: Callable[[], Mapping[int, int]]) -> list[tuple[int, int | None]]:
        """Return the numbers of overdue heartbeats and their stuck envs, if it is time to check.

        The env is None if the process has not begun its request. ``sent`` returns the number of
        messages sent, for each heartbeat of a process that runs.
        """
        now = time.monotonic()
        if now < self.next_check:
            return []
        found: list[tuple[int, int | None]] = []
        idle = {}
        due = now + self.limit
        for number, count in sent().items():
            row = self._heartbeats[number]
            env, done = int(row["env"]), int(row["handled"])
            since = began = float(row["since"])  # read after the env, see `Heartbeat`
            if env < 0 or (env == 0 and done >= count):
                continue
            if env == 0:  # it has a message to read
                progress = number, done, began
                since = idle[progress] = self._idle.get(progress, now)
            # Read the env again: if its request has ended, the time may belong to another one.
            if since + self.limit > now or env != int(row["env"]):
                due = min(due, max(since + self.limit, now + 1e-3))
            else:
                found.append((number, begun_env(env)))
        self._idle, self.next_check = idle, due
        return found


class Stacks:
    """The part of process ``number`` in a file for Python stacks; without /proc the whole file."""

    def __init__(self, fd: int, number: int) -> None:
        self.fd, self._start = fd, number * _PART if SHARES_STACKS else 0

    def dump(self, start: int = 0) -> bytes:
        """Return what the process has written, from this position on."""
        found = b""
        while (more := os.pread(self.fd, min(1 << 14, _PART - start), self._start + start)) and (
            text := more.partition(b"\0")[0]
        ):
            found, start = found + text, start + len(text)
        return found

    def erase(self) -> None:
        """Forget the stack of the process that was here before."""
        os.pwrite(self.fd, bytes(len(self.dump())), self._start)

    @staticmethod
    def request(requested: Sequence[tuple[Stacks, int]], quiet: float) -> None:
        """Request the stacks of these processes, and wait for all of them together; see ``read``.

        Each comes with the pid of its process.
        """
        for _, pid in requested:
            with contextlib.suppress(ProcessLookupError):  # its children have no handler
                os.kill(pid, STACK_SIGNAL)
                os.kill(pid, signal.SIGCONT)  # a stopped process handles no other signal
        sizes = [0] * len(requested)
        due = limit = time.monotonic() + STACK_GRACE
        while time.monotonic() < min(limit, due):
            time.sleep(1e-3)
            for k, (stacks, _) in enumerate(requested):
                if more := len(stacks.dump(sizes[k])):
                    sizes[k] += more
                    due = time.monotonic() + quiet if all(sizes) else limit

    def read(self, thread: int = 0) -> tuple[str, str]:
        """Return the user's line and the env's frames of the stack that the process has written.

        ``thread``: the number of the env's thread; 0: that of the thread that got the signal, if it
        steps an env.
        """
        return failures.stack_of(self.dump().decode(errors="replace"), thread)


def stack_of_thread(thread: int, coroutine: Any = None) -> tuple[str, str]:
    """Return as ``Stacks.read`` where a thread of this process is now, or a coroutine."""
    coroutine = coroutine or getattr(coroutine_envs.runner_of(thread), "coroutine", None)
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - just for this
    # The thread runs on: in Python 3.11 a collection of garbage in ``f_back`` may let it end the
    # frame that is being read, after which the process crashes.
    collects = gc.isenabled()
    gc.disable()
    try:
        frames: list[Any] = coroutine_envs.frames_of(coroutine)
        if not frames and frame is not None:
            frames += traceback.walk_stack(frame)
        frames += traceback.walk_stack(sys._getframe())  # noqa: SLF001
    finally:
        if collects:
            gc.enable()
    lines = [
        f'  File "{each.f_code.co_filename}", line {line} in {each.f_code.co_name}'
        for each, line in frames
    ]
    frames.clear()  # this frame is in it, and frames hold what the env has open
    return failures.stack_of("\n".join(["Thread (most recent call first):", *lines]))
