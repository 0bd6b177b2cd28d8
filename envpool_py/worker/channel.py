"""Send requests to worker processes and results back; let each side wait for the other.

A *token* is an int64 that names one request: the env id in the low bits, then two bits for a reset
and for a request without a row, then the env's *generation*. A process answers a request with the
token that it got. A request is cancelled by increasing the env's generation, which makes a late
answer stale.

The messages, in the byte order of the machine:

* parent to process, on the socket of that process: frames ``length << 3 | kind`` (int64) and
  ``length`` bytes: tokens, or a pickle;
* process to parent, on the pipe that all processes of a pool share: tokens, in writes that the pipe
  does not split;
* process to parent, on the socket of that process: values that a row cannot hold, as items
  ``token, status, length`` and ``length`` bytes. An item is written before its request's token.

A signal handler that raises loses no token, because one call reads a token and stores it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import struct
import time
from typing import Any, cast

import cloudpickle

from envpool_py.errors import from_signal_handler

#: The bits of a token that hold the env id.
ID_MASK = (1 << 24) - 1
#: The bit of a plain reset; without it the request is a step.
RESET = 1 << 24
#: The bit of a request without a row.
ASK = 1 << 25
#: The increment of one generation.
GENERATION = 1 << 26
TOKEN_BYTES = 8
# Bytes that the system writes to a pipe without splitting them.
_PUBLISH_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512

HEADER = struct.Struct("=q")
KIND_BITS = 3
_KINDS = (1 << KIND_BITS) - 1
TOKENS, TOKENS_PROMPT, REQUESTS, ATTACH, CLOSE = range(5)
#: A token of no request, which ends a sleep.
WAKE = HEADER.pack(-1)

ITEM = struct.Struct("=qiq")
#: The status of an item: values beside a row or a reply, an error, the spaces of a new env (empty
#: before the first env), the error of a close.
BESIDE, FAILURE, HELLO, CLOSE_FAILURE = range(4)
#: Bytes; a frame or item with a greater length is invalid.
LARGEST = 1 << 40

# Bytes of one read, kept small because every read allocates them.
_READ = 1 << 12
_LONGEST = 1e6  # seconds; the longest wait that the system accepts
# Results that are taken in a row before sockets and the ends of processes are checked.
_RESULTS_IN_A_ROW = 16

clock = time.perf_counter


def frame(kind: int, body: bytes) -> bytes:
    """Return a message to a process."""
    return HEADER.pack(len(body) << KIND_BITS | kind) + body


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait until ``fd`` has data or its other end is closed; False after ``seconds``."""
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def dumps(value: Any, what: str) -> bytes:
    """Pickle ``value``; the TypeError for a value that cannot be pickled calls it ``what``."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:  # cloudpickle can pickle more
        if from_signal_handler(error):
            raise
    try:
        return cast("bytes", cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        if from_signal_handler(error):
            raise
        raise TypeError(f"{what} cannot be pickled: {error}") from error


# ------------------------------------------------------------------------------- the parent's end

# Descriptors that only this process may hold; every fork closes its copies. A copy of the parent's
# end of a pipe would keep the workers alive after the parent has ended.
_owned: set[int] = set()


def claim(fd: int) -> int:
    """Close ``fd`` in every process forked from now on."""
    _owned.add(fd)
    return fd


def release(fd: int) -> None:
    """Close a descriptor, claimed or not; -1: there is none."""
    _owned.discard(fd)
    if fd >= 0:
        os.close(fd)


def _close_in_fork() -> None:
    for fd in list(_owned):
        with contextlib.suppress(OSError):
            release(fd)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


class Channel:
    """The results of all processes of a pool, and other descriptors to wait for.

    After ``watch(fd, note)``, ``fetch`` calls ``note(fd, events)`` for each event of ``fd``.
    """

    def __init__(self) -> None:
        self._notes: dict[int, Any] = {}
        self._in_a_row = 0
        self.results = self.theirs = -1
        self._poll: Any = None
        self._second = 1 if hasattr(select, "epoll") else 1000

    def open(self) -> None:
        """Create the descriptors; OSError if the system has too few."""
        self._poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.results, self.theirs = os.pipe()
        claim(self.results)
        os.set_blocking(self.results, False)
        self._poll.register(self.results, select.POLLIN)

    def watch(self, fd: int, note: Any, *, write: bool = False) -> None:
        """Watch a descriptor for reading, and with ``write`` for writing."""
        mask = select.POLLIN | (select.POLLOUT if write else 0)
        (self._poll.modify if fd in self._notes else self._poll.register)(fd, mask)
        self._notes[fd] = note

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""
        self._notes.pop(fd, None)
        with contextlib.suppress(OSError, KeyError, ValueError):  # not watched
            self._poll.unregister(fd)

    def fetch(self, chunks: list[bytes], look_for: float, timeout: float | None) -> bool:
        """Wait for results or for an event of a watched descriptor; append results to ``chunks``.

        Poll for ``look_for`` seconds, and yield the core after each poll; then sleep. The wait ends
        after ``timeout`` seconds in total (None: no timeout). Return whether there was an event of
        a watched descriptor.
        """
        if look_for and self._in_a_row < _RESULTS_IN_A_ROW:
            self._in_a_row += 1
            if self.collect(chunks):
                return False
            end = clock() + (look_for if timeout is None else min(timeout, look_for))
            while clock() < end:
                os.sched_yield()
                if self.collect(chunks):
                    return False
        self._in_a_row = 0
        if timeout is not None:
            timeout = min(timeout, _LONGEST) * self._second
        noticed = False
        for fd, events in self._poll.poll(timeout):
            if fd == self.results:
                self.collect(chunks)
            elif (note := self._notes.get(fd)) is not None:
                noticed = True
                note(fd, events)
        return noticed

    def collect(self, chunks: list[bytes]) -> bool:
        """Take the results that have arrived; return whether there were any."""
        count = len(chunks)
        try:
            # One call, so that no signal handler runs between the read and the list.
            chunks.extend(map(os.read, (self.results,), (_READ,)))
            while len(chunks[-1]) == _READ:
                chunks.extend(map(os.read, (self.results,), (_READ,)))
        except BlockingIOError:
            pass
        return len(chunks) > count

    def wake(self) -> None:
        """End a ``fetch`` that sleeps in another thread."""
        with contextlib.suppress(OSError, ValueError):  # closed, or not open yet
            poll = select.poll()
            poll.register(self.theirs, select.POLLOUT)
            if poll.poll(0):  # a full pipe has already ended the sleep
                os.write(self.theirs, WAKE)

    def close(self) -> None:
        """Close all descriptors."""
        if hasattr(self._poll, "close"):
            self._poll.close()
        fds, self.results, self.theirs = (self.results, self.theirs), -1, -1
        for fd in fds:
            release(fd)


# ------------------------------------------------------------------------------- the process's end

#: Longest time, in seconds, for which a process looks for its next request before it sleeps.
LONGEST_LOOK = 10e-3
#: Seconds that a process looks at first, before it has measured the caller.
FIRST_LOOK = 300e-6
# A process looks for this many times the recent time between two requests.
_MARGIN = 2.0
# Seconds; a shorter look is not used to measure whether other programs need the core.
_BRIEF = 150e-6
# A process stops looking when other programs take more than this fraction of its core while it
# looks (one busy caller beside two processes on two cores takes a third) ...
_PUSHED_ASIDE = 0.42
# ... for this number of requests at first, doubled each time up to the second number.
_FEW, _MANY = 16, 512


class Looks:
    """Decides how long a process looks (polls) for its next request before it sleeps.

    A process that sleeps starts 200 to 400 µs late on a virtual machine, with cold caches; one that
    looks takes a core from other programs. So a process looks for about as long as recent requests
    took to arrive, but not at all if that is longer than ``LONGEST_LOOK``, or while other programs
    need its core (a look then takes more wall time than CPU time). ``allowed``: whether every
    process can have its own core.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self.look_for = FIRST_LOOK if allowed else 0.0
        self._gap = FIRST_LOOK
        self._pause = 0
        self._next_pause = _FEW

    def note(self, gap: float, looked: float, computed: float) -> None:
        """Learn from a request that came ``gap`` seconds after the process became idle.

        ``looked``: seconds of a long look without its first ``_BRIEF`` seconds, 0 for a short look;
        ``computed``: the CPU time of these seconds.
        """
        if not self._allowed:
            return
        self._gap = gap if gap > self._gap else 0.9 * self._gap + 0.1 * gap
        if self._pause:
            self._pause -= 1
        elif looked > _BRIEF and looked - computed > _PUSHED_ASIDE * looked:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _MANY)
        elif looked:
            self._next_pause = max(self._next_pause - 1, _FEW)
        if self._pause or self._gap > LONGEST_LOOK:
            self.look_for = 0.0
            self._gap = min(self._gap, 1.5 * LONGEST_LOOK)  # so that one long pause counts little
        else:
            self.look_for = min(_MARGIN * self._gap, LONGEST_LOOK)


class ProcessEnd:
    """The ends of the socket and of the result pipe that a worker process has."""

    def __init__(self, stream: socket.socket, results: int, looks: Looks) -> None:
        self._stream = stream
        self._results = results
        self._looks = looks
        self._received = b""
        self._items: list[bytes] = []

    def receive(self) -> tuple[int, bytes]:
        """Return the next frame as (kind, body); ``CLOSE`` if the parent has closed its end."""
        data = self._received
        while True:
            if len(data) >= HEADER.size:
                (head,) = HEADER.unpack_from(data)
                kind, end = head & _KINDS, HEADER.size + (head >> KIND_BITS)
                if kind > CLOSE or not HEADER.size <= end <= LARGEST:
                    raise ValueError(f"no frame has kind {kind} and length {end - HEADER.size}")
                if len(data) >= end:
                    self._received = data[end:]
                    return kind, data[HEADER.size : end]
                more = self._stream.recv(end - len(data), socket.MSG_WAITALL)
            else:
                more = self._fetch()
            if not more:
                return CLOSE, b""
            data += more

    def _fetch(self) -> bytes:
        """Look for data, then sleep until there is some; return b"" if the other end is closed."""
        looks, stream = self._looks, self._stream
        start = now = clock()
        seen = computed = 0.0  # wall and CPU time when the first _BRIEF seconds had passed
        try:
            limit = start + looks.look_for
            while now < limit:
                try:
                    data = stream.recv(_READ, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
                    now = clock()
                    if not seen and now > start + _BRIEF:
                        seen, computed = now, time.thread_time()
                    continue
                if seen:  # else the look was too short to learn from
                    looks.note(now - start, now - seen, time.thread_time() - computed)
                return data
            looked, computed = now - seen, time.thread_time() - computed
            data = stream.recv(_READ)
        except ConnectionError:
            return b""
        looks.note(clock() - start, looked if seen else 0.0, computed)
        return data

    def add(self, token: int, status: int, data: bytes) -> None:
        """Add an item to the next ``send``."""
        self._items += ITEM.pack(token, status, len(data)), data

    def send(self) -> None:
        """Send the items; blocks while the parent does not read."""
        self._stream.sendall(b"".join(self._items))
        self._items.clear()

    def publish(self, tokens: bytes) -> None:
        """Send the items, then the tokens of finished requests."""
        if self._items:
            self.send()
        while len(tokens) > _PUBLISH_BYTES:
            os.write(self._results, tokens[:_PUBLISH_BYTES])
            tokens = tokens[_PUBLISH_BYTES:]
        os.write(self._results, tokens)
