"""The heartbeat of a thread that steps envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from envpool_py.env.spaces import Array

#: The length of a heartbeat; ``worker.watchdog`` says what the numbers are.
ROW_LENGTH = 5
#: What the env is doing: a request, or in it its ``close`` or its ``env_fn``, to be recreated.
REQUEST, CLOSING, MAKING = range(3)


class Heartbeat:
    """Writes the heartbeat of the thread that makes it.

    ``row``, int64 ``(ROW_LENGTH,)``, is None if nobody reads it. ``enter`` is called when code of
    the env is about to run, ``leave`` when it has returned. ``limited``: requests have a timeout;
    else only recreating an env has one.

    Attributes:
        is_read: whether each step is to ``begin`` and ``leave``.
        numbers: the row, to write the env of a step that does not ``begin`` (``~env_id``); None:
            nobody reads it.
    """

    def __init__(
        self,
        row: Array | None = None,
        enter: Callable[[], object] | None = None,
        leave: Callable[[], object] | None = None,
        *,
        limited: bool = False,
    ) -> None:
        self.is_read = limited or enter is not None
        self._has_limit = limited
        self.numbers: Any = None if row is None else row.data
        row = np.zeros(ROW_LENGTH, np.int64) if row is None else row
        self._numbers: Any = row.data
        self._times: Any = row.view(np.float64).data
        self._numbers[3] = threading.get_ident()
        self.enter, self.leave = enter or (lambda: None), leave or (lambda: None)

    @property
    def env(self) -> int:
        """The env that carries out a request: its id plus 1; 0: none."""
        return abs(int(self._numbers[0]))  # ``~i`` is ``-(i + 1)``

    def begin(self, i: int, phase: int = REQUEST, *, sets_up: bool = False) -> None:
        """Note that a request to env ``i``, or a phase of it, begins; ``sets_up``: no limit."""
        self.leave()
        # In this order, so that the parent may read a time that is too late, but never too early.
        self._times[1] = time.monotonic()
        self._numbers[4] = phase
        self._numbers[0] = i + 1 if phase or (self._has_limit and not sets_up) else ~i
        self.enter()

    def end(self) -> None:
        self.leave()
        self._numbers[0] = 0

    def count(self, messages: int) -> None:
        self._numbers[2] = messages
