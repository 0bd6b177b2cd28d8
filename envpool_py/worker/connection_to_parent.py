"""A worker process's end of its connection to the parent: receive messages, send results."""

from __future__ import annotations

import os
import socket
from time import perf_counter, thread_time

from envpool_py.worker.messages import ATOMIC_BYTES, CLOSE, HEADER, ITEM, LARGEST, READ_BYTES

#: Longest time, in seconds, for which a process spins for its next request before it sleeps.
LONGEST_SPIN = 10e-3
#: Seconds that a process spins at first, before it has measured the caller.
FIRST_SPIN = 300e-6
# A process spins for this many times the recent time between two requests.
_SPIN_PER_GAP = 2.0
# Seconds; a shorter spin is not used to measure whether other programs need the core.
_BRIEF_SPIN = 150e-6
# A process stops spinning when other programs take more than this fraction of its core while it
# spins (one busy caller beside two processes on two cores takes a third) ...
_PUSHED_ASIDE = 0.42
# ... for this number of requests at first, doubled each time up to the second number.
_FIRST_PAUSE, _MAX_PAUSE = 16, 512


class Spinning:
    """Decides how long a process spins (busy polling) for its next request before it sleeps.

    A process that sleeps starts 200 to 400 µs late on a virtual machine, with cold caches; one that
    spins takes a core from other programs. So a process spins for about as long as recent requests
    took to arrive, but not at all if that is longer than ``LONGEST_SPIN``, or while other programs
    need its core (a spin then takes more wall time than CPU time). ``allowed``: whether every
    process can have its own core.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self.spin_for = FIRST_SPIN if allowed else 0.0
        self._gap = FIRST_SPIN
        self._skips = 0
        self._next_pause = _FIRST_PAUSE

    def note(self, gap: float, spun: float, computed: float) -> None:
        """Learn from a request that came ``gap`` seconds after the process became idle.

        ``spun``: seconds of a long spin without its first ``_BRIEF_SPIN`` seconds, 0 for a short
        spin; ``computed``: the CPU time of these seconds.
        """
        if not self._allowed:
            return
        self._gap = gap if gap > self._gap else 0.9 * self._gap + 0.1 * gap
        if self._skips:
            self._skips -= 1
        elif spun > _BRIEF_SPIN and spun - computed > _PUSHED_ASIDE * spun:
            self._skips, self._next_pause = self._next_pause, min(2 * self._next_pause, _MAX_PAUSE)
        elif spun:
            self._next_pause = max(self._next_pause - 1, _FIRST_PAUSE)
        if self._skips or self._gap > LONGEST_SPIN:
            self.spin_for = 0.0
            self._gap = min(self._gap, 1.5 * LONGEST_SPIN)  # so that one long pause counts little
        else:
            self.spin_for = min(_SPIN_PER_GAP * self._gap, LONGEST_SPIN)


class ConnectionToParent:
    """The ends of the socket and of the result pipe that a worker process has."""

    def __init__(self, stream: socket.socket, results: int, spinning: Spinning) -> None:
        self._stream = stream
        self._results = results
        self._spinning = spinning
        self._received = b""
        self._items: list[bytes] = []

    def receive(self) -> tuple[int, bytes]:
        """Return the next message as (kind, body); ConnectionError if the parent has ended."""
        data = self._received
        while True:
            if len(data) >= HEADER.size:
                kind, length = HEADER.unpack_from(data)
                if not (0 <= kind <= CLOSE and 0 <= length <= LARGEST):
                    raise ValueError(f"no message has kind {kind} and length {length}")
                end = HEADER.size + length
                if len(data) >= end:
                    self._received = data[end:]
                    return kind, data[HEADER.size : end]
                more = self._stream.recv(end - len(data), socket.MSG_WAITALL)
            else:
                more = self._await_data()
            if not more:
                raise ConnectionResetError("the parent has ended")
            data += more

    def _await_data(self) -> bytes:
        """Spin for data, then sleep until there is some; return b"" if the other end is closed."""
        spinning, stream = self._spinning, self._stream
        start = now = perf_counter()
        seen = computed = 0.0  # wall and CPU time when the first _BRIEF_SPIN seconds had passed
        limit = start + spinning.spin_for
        while now < limit:
            try:
                data = stream.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()
                now = perf_counter()
                if not seen and now > start + _BRIEF_SPIN:
                    seen, computed = now, thread_time()
                continue
            if seen:  # else the spin was too short to learn from
                spinning.note(now - start, now - seen, thread_time() - computed)
            return data
        spun, computed = now - seen, thread_time() - computed
        data = stream.recv(READ_BYTES)
        spinning.note(perf_counter() - start, spun if seen else 0.0, computed)
        return data

    def add(self, token: int, status: int, data: bytes) -> None:
        self._items += ITEM.pack(token, status, len(data)), data

    def send(self) -> None:
        """Send the items; blocks while the parent does not read."""
        self._stream.sendall(b"".join(self._items))
        self._items.clear()

    def publish(self, tokens: bytes) -> None:
        """Send the items, then the tokens of finished requests."""
        if self._items:
            self.send()
        for start in range(0, len(tokens), ATOMIC_BYTES):
            os.write(self._results, tokens[start : start + ATOMIC_BYTES])
