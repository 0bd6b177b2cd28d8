"""A worker process's end of its connection to the parent: receive frames, send results."""

from __future__ import annotations

import os
import socket
import time

from envpool_py.worker.frames import (
    ATOMIC,
    CLOSE,
    HEADER,
    ITEM,
    KIND_BITS,
    KINDS,
    LARGEST,
    READ,
)

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

clock = time.perf_counter


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
                kind, end = head & KINDS, HEADER.size + (head >> KIND_BITS)
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
                    data = stream.recv(READ, socket.MSG_DONTWAIT)
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
            data = stream.recv(READ)
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
        while len(tokens) > ATOMIC:
            os.write(self._results, tokens[:ATOMIC])
            tokens = tokens[ATOMIC:]
        os.write(self._results, tokens)
