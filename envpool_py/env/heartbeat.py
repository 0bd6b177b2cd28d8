"""The heartbeat of a thread that steps envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from envpool_py.env.spaces import Array

#: The length of a heartbeat; ``worker.watchdog`` says what the numbers are.
NUMBERS = 4


class Heartbeat:
    """Writes the heartbeat of the thread that makes it.

    ``row``, int64 ``(NUMBERS,)``, is None if nobody reads it. ``enter`` is called when code of the
    env is about to run, ``leave`` when it has returned.
    """

    def __init__(
        self,
        row: Array | None = None,
        enter: Callable[[], object] = lambda: None,
        leave: Callable[[], object] = lambda: None,
    ) -> None:
        self.is_read = row is not None
        row = np.zeros(NUMBERS, np.int64) if row is None else row
        self._numbers: Any = row.data
        self._times: Any = row.view(np.float64).data
        self._numbers[3] = threading.get_ident()
        self.enter, self.leave = enter, leave

    @property
    def env(self) -> int:
        """The env that carries out a request, see ``worker.watchdog``."""
        return int(self._numbers[0])

    def begin(self, i: int, *, timed: bool = True) -> None:
        self.leave()
        # In this order, so that the parent may read a time that is too late, but never too early.
        self._times[1] = time.monotonic()
        self._numbers[0] = i + 1 if timed else -1
        self.enter()

    def end(self) -> None:
        self.leave()
        self._numbers[0] = 0

    def count(self, messages: int) -> None:
        self._numbers[2] = messages
