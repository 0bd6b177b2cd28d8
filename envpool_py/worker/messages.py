"""The messages between the parent and a worker process, in the byte order of the machine.

* Parent to process, on the socket of that process: messages ``kind, length`` and ``length`` bytes:
  tokens, or a pickle.
* Process to parent, on the pipe that all processes of a pool share: tokens, in writes that the pipe
  does not split.
* Process to parent, on the socket of that process: values that a row cannot hold, as items
  ``token, status, length`` and ``length`` bytes. An item is written before its request's token.
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from envpool_py.env import failures
from envpool_py.env.request import ID_MASK
from envpool_py.interrupts import ordinary
from envpool_py.worker import file_descriptors

HEADER = struct.Struct("=qq")
TOKENS, TOKENS_EARLY, REQUESTS, ATTACH, CLOSE = range(5)
#: The body of a CLOSE: after how many seconds other envs are closed beside one that hangs; or none.
PATIENCE = struct.Struct("=d")

ITEM = struct.Struct("=qiq")
#: The status of an item: values beside a row or a reply, an error, the spaces of a new env (empty
#: before the first env), the end of an env's close (its error, or empty), the exception that ends
#: the process, as text.
VALUES, FAILURE, MADE, CLOSED, ENDED = range(5)
#: The status of an item in place of data that is no item.
UNREADABLE = -1
#: Bytes; a message or item with a greater length is invalid.
LARGEST = 1 << 40
#: Bytes of a digest.
DIGEST_BYTES = 32
#: Bytes that the system writes to a pipe or socket without splitting them.
ATOMIC_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
#: A flag of ``send``: if the process has ended, no SIGPIPE, whose default ends the program.
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
#: Bytes of one read of tokens or messages, kept small because every read allocates them; of items.
READ_BYTES, READ_ITEMS_BYTES = 1 << 12, 1 << 18


def pack(kind: int, body: bytes) -> bytes:
    return HEADER.pack(kind, len(body)) + body


def dumps(value: Any, what: str) -> bytes:
    """Pickle ``value``; the TypeError for a value that cannot be pickled calls it ``what``."""
    try:
        return failures.dumps(value)
    except ordinary() as error:
        raise TypeError(f"{what} cannot be pickled: {error}") from error


def digest(data: bytes) -> bytes:
    """Return the digest of pickled spaces: ``DIGEST_BYTES``, fewer than any pickled spaces."""
    return hashlib.sha256(data).digest()


class Stream:
    """The parent's end of the socket to a worker process: messages to send, items received.

    Attributes:
        ended: whether the other end is closed; the process may still run.
        send: sends bytes, with flags, and returns how many were accepted.
        outbox: the bytes to send, and the numbers of bytes that were sent of them.
    """

    def __init__(self, ours: socket.socket, ids: Sequence[int]) -> None:
        ours.setblocking(False)
        self.fd, self.send = file_descriptors.claim(ours.fileno(), ours), ours.send
        self._ids = frozenset(ids)
        self.ended = False
        # As ``_received``, replaced in one assignment.
        self.outbox: tuple[bytes | memoryview, list[int]] = b"", []
        # Bytes of an incomplete item, items (token, status, data) not yet taken, and the size of
        # the next item. Replaced in one assignment, so that an interrupt cannot mix two versions.
        self._received: tuple[list[bytes], deque[Any], int] = [], deque(), ITEM.size

    def flush(self) -> bool:
        """Send what the process accepts of the waiting bytes; return True if none is left."""
        data, sent = self.outbox
        try:
            # One call, so that no signal handler runs between the write and the list.
            sent.extend(map(self.send, (data[sum(sent) :],), (NO_SIGNAL,)))
        except BlockingIOError:
            pass
        except ConnectionError:  # the process has ended; ``reap`` handles that
            data = b""
        self.outbox = data[sum(sent) :], []
        return not self.outbox[0]

    def read(self) -> deque[Any]:
        """Return the queue of items that have arrived; the caller removes those that it handles."""
        chunks = self._received[0]
        if self.fd < 0:
            return self._received[1]
        try:
            # One call, so that no signal handler runs between the read and the list.
            chunks.extend(map(os.read, (self.fd,), (READ_ITEMS_BYTES,)))
            while len(chunks[-1]) == READ_ITEMS_BYTES:
                chunks.extend(map(os.read, (self.fd,), (READ_ITEMS_BYTES,)))
            self.ended |= not chunks[-1]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.ended = True
        chunks, before, needed = self._received  # new ones if a signal handler has closed the pool
        if sum(map(len, chunks)) < needed:  # join the pieces of a large item only once
            return before
        data, items, start, needed = b"".join(chunks), before.copy(), 0, ITEM.size
        while len(data) - start >= ITEM.size:
            token, status, length = ITEM.unpack_from(data, start)
            known = token >= 0 and token & ID_MASK in self._ids
            known &= 0 <= status <= ENDED
            if not (known and 0 <= length <= LARGEST):
                items.append((token, UNREADABLE, b""))
                start = len(data)
                break
            needed = ITEM.size + length
            if len(data) - start < needed:
                break
            items.append((token, status, data[start + ITEM.size : start + needed]))
            start, needed = start + needed, ITEM.size
        self._received = [data[start:]], items, needed
        return items
