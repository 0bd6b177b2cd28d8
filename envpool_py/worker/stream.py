"""The parent's end of the stream to one worker process: messages out, items in.

What holds:

* the parent never blocks in a write: what the process does not take at once waits, and reading goes
  on meanwhile, so that two full pipes cannot wait for each other;
* a signal handler that raises leaves the stream whole, or ``torn`` set: a message was cut in two,
  and the process must be killed.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from typing import NamedTuple

from envpool_py.worker.channel import ID_MASK, ITEM, LARGEST, LAST_STATUS

_READ = 1 << 18
# Bytes that the system writes whole or not at all.
_ATOMIC = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512

#: Descriptors that only this process may hold: a fork, whoever makes it, closes its copies. A copy
#: of the parent's end of a pipe would keep the workers alive after the parent.
_OWNED: set[int] = set()


def claim(fd: int) -> int:
    """Have ``fd`` closed in every process forked from now on."""
    _OWNED.add(fd)
    return fd


def release(fd: int) -> None:
    """Close a descriptor that was claimed."""
    disown(fd)
    os.close(fd)


def disown(fd: int) -> None:
    """A descriptor that was claimed is about to be closed."""
    _OWNED.discard(fd)


def _close_in_fork() -> None:
    for fd in _OWNED:
        try:
            os.close(fd)
        except OSError:
            continue
    _OWNED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


class Item(NamedTuple):
    """What a process sends beside rows; see ``envpool_py.worker.channel``."""

    token: int
    status: int
    data: bytes


class _Received(NamedTuple):
    """What has arrived: bytes that are no whole item yet, and items that nobody has taken."""

    chunks: list[bytes]
    items: deque[Item]


#: Stands for what cannot be read; nothing follows it.
GARBLED = -1


class Stream:
    """One end of a socket.

    Args:
        ids: the envs of the process at the other end.

    Attributes:
        fd: the descriptor; -1 once closed.
        theirs: the other end, until it has been handed to the process.
        torn: whether a message was cut in two.
        ended: whether the other end is closed, which is no proof that the process has ended.
        sent: messages written, or waiting to be.
    """

    def __init__(self, ids: list[int]) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.fd = claim(ours.detach())
        self._ids = frozenset(ids)
        self.torn = self.ended = False
        self.sent = 0
        self._outbox: deque[memoryview] = deque()
        # Replaced as a whole, so that no interrupt can come in between.
        self._received = _Received([], deque())

    def write(self, data: bytes) -> bool:
        """Send a message, as far as that does not block; False if a rest is left to ``flush``."""
        self.sent += 1
        if self.ended:
            return True
        if self._outbox:
            self._outbox.append(memoryview(data))
            return False
        if len(data) <= _ATOMIC:
            try:
                sent = os.write(self.fd, data)
            except ConnectionError:  # the process has ended, which is noticed elsewhere
                return True
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return True
            self._outbox.append(memoryview(data)[sent:])
            return False
        self.torn = True
        sent = self._send(data)
        if sent < len(data):
            self._outbox.append(memoryview(data)[sent:])
        self.torn = False
        return sent == len(data)

    def flush(self) -> bool:
        """Send what is left over; True when nothing is."""
        while self._outbox:
            head = self._outbox[0]
            self.torn = True
            sent = self._send(head)
            if sent == len(head):
                self._outbox.popleft()
            else:
                self._outbox[0] = head[sent:]
            self.torn = False
            if sent < len(head):
                return False
        return True

    @property
    def full(self) -> bool:
        """Whether something is left to ``flush``."""
        return bool(self._outbox)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)  # the process has ended, which is noticed elsewhere

    def read(self) -> deque[Item]:
        """The items that have arrived, and that nobody has taken off this queue."""
        chunks = self._received.chunks
        if self.fd < 0:
            return self._received.items
        try:
            while True:
                # In one call: no signal handler can come between the read and the list.
                chunks.extend(map(os.read, (self.fd,), (_READ,)))
                if len(chunks[-1]) < _READ:
                    break
            if not chunks[-1]:
                self._end()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._end()
        self._parse()
        return self._received.items

    def _end(self) -> None:
        self.ended = True
        self._outbox.clear()  # nobody will read it

    def _parse(self) -> None:
        chunks, before = self._received
        length = sum(map(len, chunks))
        if length < ITEM.size:
            return
        if len(chunks[0]) >= ITEM.size:  # most often: a large item in many pieces is joined once
            claimed = self._length(chunks[0], 0)
            if claimed is not None and length < ITEM.size + claimed:
                return
        data = b"".join(chunks)
        items = deque(before)
        start = 0
        while len(data) - start >= ITEM.size:
            claimed = self._length(data, start)
            if claimed is None:
                items.append(Item(min(self._ids), GARBLED, b""))
                start = len(data)
                break
            end = start + ITEM.size + claimed
            if len(data) < end:
                break
            token, status, _ = ITEM.unpack_from(data, start)
            items.append(Item(token, status, data[start + ITEM.size : end]))
            start = end
        self._received = _Received([data[start:]] if start < len(data) else [], items)

    def _length(self, data: bytes, start: int) -> int | None:
        """The length that the head of an item claims; None where it is no head."""
        token, status, length = ITEM.unpack_from(data, start)
        known = token >= 0 and token & ID_MASK in self._ids and 0 <= status <= LAST_STATUS
        return length if known and 0 <= length <= LARGEST else None

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            release(fd)
