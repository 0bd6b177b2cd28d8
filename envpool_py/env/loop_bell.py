"""``LoopBell``: calls a function in an event loop, from any thread."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any


class LoopBell:
    """Calls ``look`` in an event loop after each ``ring``; once for all rings of a moment.

    ``call_soon_threadsafe`` does the same, for twice the CPU time.
    """

    def __init__(self, loop: Any, look: Callable[[], object]) -> None:
        self._loop, self._look = loop, look
        self._turn, self._rung_in = 0, -1
        self._ours, self._theirs = socket.socketpair()
        loop.add_reader(self._ours, self._answer)

    def ring(self) -> None:
        if self._rung_in != (turn := self._turn):
            try:  # no ``with``: it takes as long as all this
                self._theirs.send(b"1")
            except OSError:  # closed
                return
            self._rung_in = turn  # an interrupt before this costs one call more

    def _answer(self) -> None:
        self._ours.recv(64)
        self._turn += 1  # before ``look``: what comes from now on calls again
        self._look()

    def close(self) -> None:
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()
