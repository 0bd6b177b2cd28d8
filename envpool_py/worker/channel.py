"""How requests travel to worker processes and results come back, and how each side sleeps.

A *token* is an int64 that names one request: the env id in the low bits, above it whether a reset
or something without a row is asked for, above that the env's *generation*. A process answers a
request with the token that it was sent. To cancel a request is to raise the env's generation: its
answer is stale from then on.

In the machine's own byte order travel:

* parent to process, on the process's own stream: frames ``length << 3 | kind`` (int64) and
  ``length`` bytes: tokens, or a pickle;
* process to parent, on the pipe that all processes of a pool share: tokens, as many in one write as
  the pipe keeps together;
* process to parent, on the process's own stream: what a row cannot hold, as items
  ``token, status, length`` and ``length`` bytes. An item is written before its request's token.

A signal handler that raises loses no token: reading one and keeping it is a single call.
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
#: A plain reset is asked for, not a step.
RESET = 1 << 24
#: A request that brings no row is asked for; its token and that of a row are two.
ASK = 1 << 25
#: One generation.
GENERATION = 1 << 26
TOKEN_BYTES = 8
# Bytes of tokens that one write to a pipe keeps together.
_PUBLISH_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512

HEADER = struct.Struct("=q")
KIND_BITS = 3
_KINDS = (1 << KIND_BITS) - 1
TOKENS, TOKENS_PROMPT, REQUESTS, ATTACH, CLOSE = range(5)
#: A token that stands for no request.
WAKE = HEADER.pack(-1)

ITEM = struct.Struct("=qiq")
#: The status of an item: the rest of a row or a reply, an error, the spaces of an env that was made
#: (nothing before the first), the error of a close.
BESIDE, FAILURE, HELLO, CLOSE_FAILURE = range(4)
#: Bytes; a frame or an item that claims more is none.
LARGEST = 1 << 40

# Bytes of one read: memory for so much is allocated each time, whether anything comes or not.
_READ = 1 << 12
_LONGEST = 1e6  # seconds; the system takes no more in one wait
# How many results may be taken in a row without a look at streams and at the ends of processes.
_RESULTS_IN_A_ROW = 16

clock = time.perf_counter


def frame(kind: int, body: bytes) -> bytes:
    """A message to a process."""
    return HEADER.pack(len(body) << KIND_BITS | kind) + body


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait for something to read, or for the end of it; False if nothing came."""
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def dumps(value: Any, what: str) -> bytes:
    """``value`` pickled; the TypeError where it cannot be names it as ``what``."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:  # cloudpickle may still know a way
        if from_signal_handler(error):
            raise
    try:
        return cast("bytes", cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        if from_signal_handler(error):
            raise
        raise TypeError(f"{what} cannot be pickled: {error}") from error


# ------------------------------------------------------------------------------- the parent's end

# Descriptors that only this process may hold: every fork closes its copies. A copy
# of the parent's end of a pipe would keep the workers alive after the parent.
_owned: set[int] = set()


def claim(fd: int) -> int:
    """Have ``fd`` closed in every process forked from now on."""
    _owned.add(fd)
    return fd


def release(fd: int) -> None:
    """Close a descriptor, claimed or not; -1 stands for none."""
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
    """The results of all processes of a pool, and what else there is to wait for.

    ``watch(fd, note)`` has ``note(fd, events)`` called when something happens to a descriptor.
    """

    def __init__(self) -> None:
        self._notes: dict[int, Any] = {}
        self._in_a_row = 0
        self.results = self.theirs = -1
        self._poll: Any = None
        self._second = 1 if hasattr(select, "epoll") else 1000

    def open(self) -> None:
        """Get the descriptors; OSError where there are too few."""
        self._poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.results, self.theirs = os.pipe()
        claim(self.results)
        os.set_blocking(self.results, False)
        self._poll.register(self.results, select.POLLIN)

    def watch(self, fd: int, note: Any, *, write: bool = False) -> None:
        """Watch a descriptor for reading, and for writing if asked."""
        mask = select.POLLIN | (select.POLLOUT if write else 0)
        (self._poll.modify if fd in self._notes else self._poll.register)(fd, mask)
        self._notes[fd] = note

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer."""
        self._notes.pop(fd, None)
        with contextlib.suppress(OSError, KeyError, ValueError):  # forgotten before
            self._poll.unregister(fd)

    def fetch(self, chunks: list[bytes], look_for: float, timeout: float | None) -> bool:
        """Wait for results, or for anything else that is watched; append results to ``chunks``.

        For ``look_for`` seconds look for results, yielding the core at each look; then sleep, all
        in all for ``timeout`` seconds (None: indefinitely). Return whether something else than
        results was noticed.
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
        """Take the results that are there; return whether there were any."""
        count = len(chunks)
        try:
            # In one call: no signal handler can come between the read and the list.
            chunks.extend(map(os.read, (self.results,), (_READ,)))
            while len(chunks[-1]) == _READ:
                chunks.extend(map(os.read, (self.results,), (_READ,)))
        except BlockingIOError:
            pass
        return len(chunks) > count

    def wake(self) -> None:
        """End a sleep that is under way in another thread; no token is written."""
        with contextlib.suppress(OSError, ValueError):  # closed, or not open yet
            poll = select.poll()
            poll.register(self.theirs, select.POLLOUT)
            if poll.poll(0):  # a full pipe wakes the sleeper by itself
                os.write(self.theirs, WAKE)

    def close(self) -> None:
        """Free all descriptors."""
        if hasattr(self._poll, "close"):
            self._poll.close()
        fds, self.results, self.theirs = (self.results, self.theirs), -1, -1
        for fd in fds:
            release(fd)


# ------------------------------------------------------------------------------- the process's end

#: Seconds for which a process looks for its next request before sleeping, at the most.
LONGEST_LOOK = 10e-3
#: Seconds that it looks before it has seen how long a caller takes.
FIRST_LOOK = 300e-6
# A look pays where a request came within this many times the time that requests took of late.
_MARGIN = 2.0
# Seconds of a look that nothing is learnt from.
_BRIEF = 150e-6
# Of the time in which a process looks, the part that others may take of its core before looking is
# dropped, and for how many requests; doubled each time, to the limit. One busy caller
# beside two processes on two cores takes a third.
_PUSHED_ASIDE = 0.42
_FEW, _MANY = 16, 512


class Looks:
    """For how long a process looks for its next request before it sleeps.

    Sleeping costs more than it seems: a process that sleeps begins 200 to 400 µs late on a virtual
    machine, with cold caches. Looking takes a core from other programs. So a process looks
    for about as long as requests took to come of late; not at all where they take longer than
    ``LONGEST_LOOK``, and not while other programs push it aside: then the wall time in which it
    looks is longer than its CPU time. ``allowed``: whether every process can have its own core.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self.look_for = FIRST_LOOK if allowed else 0.0
        self._gap = FIRST_LOOK
        self._pause = 0
        self._next_pause = _FEW

    def note(self, gap: float, looked: float, computed: float) -> None:
        """A request came ``gap`` seconds after the process had nothing left to do.

        ``looked``: seconds of a long look, but for its beginning, of which ``computed`` were CPU
        time; 0 for none.
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
            self._gap = min(self._gap, 1.5 * LONGEST_LOOK)  # a single long pause is soon forgotten
        else:
            self.look_for = min(_MARGIN * self._gap, LONGEST_LOOK)


class ProcessEnd:
    """A process's ends of its stream and of the pipe of the results."""

    def __init__(self, stream: socket.socket, results: int, looks: Looks) -> None:
        self._stream = stream
        self._results = results
        self._looks = looks
        self._received = b""
        self._items: list[bytes] = []

    def receive(self) -> tuple[int, bytes]:
        """The next frame, as (kind, body); ``CLOSE`` when the parent has closed its end."""
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
        """Look for data, then sleep until there is some; empty when the other end is closed."""
        looks, stream = self._looks, self._stream
        start = now = clock()
        seen = computed = 0.0  # CPU time of the look, but for its beginning
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
                if seen:  # else it came so soon that there is nothing to learn
                    looks.note(now - start, now - seen, time.thread_time() - computed)
                return data
            looked, computed = now - seen, time.thread_time() - computed
            data = stream.recv(_READ)
        except ConnectionError:
            return b""
        looks.note(clock() - start, looked if seen else 0.0, computed)
        return data

    def add(self, token: int, status: int, data: bytes) -> None:
        """Keep an item for the next ``send``."""
        self._items += ITEM.pack(token, status, len(data)), data

    def send(self) -> None:
        """Send the items; waits while the parent does not read."""
        self._stream.sendall(b"".join(self._items))
        self._items.clear()

    def publish(self, tokens: bytes) -> None:
        """Send the items, then tell the parent of finished requests."""
        if self._items:
            self.send()
        while len(tokens) > _PUBLISH_BYTES:
            os.write(self._results, tokens[:_PUBLISH_BYTES])
            tokens = tokens[_PUBLISH_BYTES:]
        os.write(self._results, tokens)
