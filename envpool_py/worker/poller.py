"""Wait for the results and the events of all processes of a pool, or of all its threads or actors.

A signal handler that raises loses no token, because one call reads a token and stores it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from envpool_py import interrupts
from envpool_py.env.request import pack_token
from envpool_py.worker import file_descriptors
from envpool_py.worker.messages import READ_BYTES

# Seconds of one wait, after which callers wait again: a signal that comes after Python has looked
# for signals and before the system waits does not end that wait; on Windows Ctrl-C ends none.
_LONGEST_WAIT = 0.1 if sys.platform == "win32" else 1.0
_EXACT_BELOW = 5e-3  # seconds; epoll waits for whole milliseconds, too long for shorter waits
# Results that are taken in a row before sockets and the ends of processes are checked.
_RESULTS_IN_A_ROW = 16


class Poller:
    """Waits for the results of all processes of a pool, and for events of their descriptors.

    After ``watch(fd, handler)``, ``fetch`` calls ``handler(fd, events)`` for each event of ``fd``.

    Attributes:
        bell: a queue that has an item after ``wake``, and if ``rings``, after each result, until
            the results are collected.
        listener: called by ``wake``, and if ``rings``, for each result.
        end_noticed: a process may have ended, and nobody has handled that yet.
        deadlines: by the number of a host, when it is killed, and why.
    """

    rings = False
    listener: Callable[[], object] | None = None

    def __init__(self) -> None:
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.end_noticed = False
        self.deadlines: dict[int, tuple[float, str]] = {}
        self._handlers: dict[int, Any] = {}
        self._in_a_row = 0
        self.results = self.write_end = self._duplicated = -1
        self._poll: Any = None
        self._per_second = 1 if hasattr(select, "epoll") else 1000

    def open(self) -> None:
        """Create the descriptors; OSError if the system has too few."""
        self._poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.results, self.write_end = os.pipe()
        file_descriptors.claim(self.results)
        os.set_blocking(self.results, False)
        self._poll.register(self.results, select.POLLIN)

    def watch(self, fd: int, handler: Any, *, write: bool = False) -> None:
        mask = select.POLLIN | (select.POLLOUT if write else 0)
        (self._poll.modify if fd in self._handlers else self._poll.register)(fd, mask)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        if fd in self._handlers:
            with interrupts.suppressed(OSError, KeyError, ValueError):  # in an interrupted `forget`
                self._poll.unregister(fd)
            self._handlers.pop(fd, None)  # another thread may close the pool

    def fetch(self, token_chunks: list[bytes], spin_for: float, timeout: float | None) -> None:
        """Wait for results or an event of a watched descriptor; append results to ``token_chunks``.

        Spin for ``spin_for`` seconds, and yield the core after each poll; then sleep. The wait ends
        after ``timeout`` seconds, or after one second.
        """
        if spin_for and self._in_a_row < _RESULTS_IN_A_ROW:
            self._in_a_row += 1
            if self.collect(token_chunks):
                return
            end = perf_counter() + (spin_for if timeout is None else min(timeout, spin_for))
            while perf_counter() < end:
                os.sched_yield()
                if self.collect(token_chunks):
                    return
        self._in_a_row = 0
        timeout = _LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT)
        if 0 < timeout < _EXACT_BELOW and self._per_second == 1:
            with interrupts.suppressed(ValueError):  # its descriptor is above 1023
                select.select([self._poll], [], [], timeout)
                timeout = 0.0
        for fd, events in self._poll.poll(timeout * self._per_second):
            if fd == self.results:
                self.collect(token_chunks)
            elif (handler := self._handlers.get(fd)) is not None:
                handler(fd, events)

    def collect(self, token_chunks: list[bytes]) -> bool:
        """Take the results that have arrived; return whether there were any."""
        count = len(token_chunks)
        try:
            # One call, so that no signal handler runs between the read and the list.
            token_chunks.extend(map(os.read, (self.results,), (READ_BYTES,)))
            while len(token_chunks[-1]) == READ_BYTES:
                token_chunks.extend(map(os.read, (self.results,), (READ_BYTES,)))
        except BlockingIOError:
            pass
        return len(token_chunks) > count

    def duplicate(self) -> int:
        """Return a descriptor that is readable while ``fetch`` would return; -1: there is none."""
        if self._duplicated < 0 and hasattr(self._poll, "fileno"):
            with interrupts.deferred():
                self._duplicated = file_descriptors.claim(os.dup(self._poll.fileno()))
        return self._duplicated

    def ring(self) -> None:
        if self.bell.empty():  # else it is taken before the results are read
            self.bell.put(None)
        if (listener := self.listener) is not None:
            try:  # no ``with``, as in ``collect``
                listener()
            except RuntimeError:  # its event loop was closed meanwhile
                return

    def wake(self) -> None:
        """End a ``fetch`` that sleeps in another thread."""
        self.ring()
        with interrupts.suppressed(OSError, ValueError):  # closed, or not open yet
            poll = select.poll()
            poll.register(self.write_end, select.POLLOUT)
            if poll.poll(0):  # a full pipe has already ended the sleep
                os.write(self.write_end, pack_token(-1))  # of no request

    def close(self) -> None:
        if hasattr(self._poll, "close"):
            self._poll.close()
        with interrupts.deferred():
            # The writing end first: a write without a reader raises SIGPIPE, see ``wake``.
            for fd in (self.write_end, self.results, self._duplicated):
                file_descriptors.release(fd)
            self.results = self.write_end = self._duplicated = -1


class QueuePoller(Poller):
    """Waits for results that threads bring: those of envs, or of Ray."""

    rings = True

    def __init__(self) -> None:
        super().__init__()
        self._arrived: deque[Any] = deque()

    def put(self, found: bytes | Callable[[], bytes]) -> None:
        """Queue tokens, or a function that handles an event and returns its tokens."""
        self._arrived.append(found)
        self.ring()

    def fetch(self, token_chunks: list[bytes], spin_for: float, timeout: float | None) -> None:  # noqa: ARG002
        """Wait for results or for another event; see ``Poller``."""
        if not self._arrived:
            wait = _LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT)
            with contextlib.suppress(queue.Empty):
                # Python 3.10 waits without end where the time is over when it looks a second time.
                self.bell.get(wait > 0, max(wait, 1e-3))
        self.collect(token_chunks)

    def collect(self, token_chunks: list[bytes]) -> bool:
        count = len(token_chunks)
        while not self.bell.empty():
            self.bell.get()
        while self._arrived:
            found = self._arrived[0]
            # If an interrupt comes before this is noted, the event is handled once more.
            tokens = found if isinstance(found, bytes) else found()
            try:  # no ``with``: it takes a third of the time of all this
                self._arrived[0] = tokens
                # One call, so that no interrupt comes between the queue and the list.
                token_chunks.extend(map(deque.popleft, (self._arrived,)))
            except interrupts.ordinary(IndexError):  # a signal handler has closed the pool
                break
        return len(token_chunks) > count

    wake = Poller.ring
    close = wake  # ends a wait that a signal handler has interrupted to close the pool
