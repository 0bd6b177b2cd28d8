"""The messages between the parent and a worker process, in the byte order of the machine.

* Parent to process, on the socket of that process: messages ``kind, length`` and ``length`` bytes:
  tokens, or a pickle.
* Process to parent, on the pipe that all processes of a pool share: tokens, in writes that the pipe
  does not split.
* Process to parent, on the socket of that process: values that a row cannot hold, as items
  ``token, status, length`` and ``length`` bytes. An item is written before its request's token.
"""

from __future__ import annotations

import pickle
import select
import struct
from typing import Any, cast

import cloudpickle

from envpool_py.env.request import pack_token
from envpool_py.interrupts import ordinary

HEADER = struct.Struct("=qq")
TOKENS, TOKENS_EARLY, REQUESTS, ATTACH, CLOSE = range(5)
#: A token of no request, which ends a sleep.
WAKE = pack_token(-1)

ITEM = struct.Struct("=qiq")
#: The status of an item: values beside a row or a reply, an error, the spaces of a new env (empty
#: before the first env), the error of a close.
VALUES, FAILURE, HELLO, CLOSE_FAILURE = range(4)
#: Bytes; a message or item with a greater length is invalid.
LARGEST = 1 << 40
#: Bytes that the system writes to a pipe or socket without splitting them.
ATOMIC = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
#: Bytes of one read of tokens or messages, kept small because every read allocates them.
READ = 1 << 12


def pack(kind: int, body: bytes) -> bytes:
    return HEADER.pack(kind, len(body)) + body


def dumps(value: Any, what: str) -> bytes:
    """Pickle ``value``; the TypeError for a value that cannot be pickled calls it ``what``."""
    try:
        return pickle.dumps(value, protocol=5)
    except ordinary():
        pass  # cloudpickle can pickle more
    try:
        return cast("bytes", cloudpickle.dumps(value, protocol=5))
    except ordinary() as error:
        raise TypeError(f"{what} cannot be pickled: {error}") from error
