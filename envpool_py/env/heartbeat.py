"""The heartbeat of a worker process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from envpool_py.env.spaces import Array

#: The length of a heartbeat: the env in a request, the start of the request, the frames handled.
NUMBERS = 3


class Heartbeat:
    """Writes the heartbeat of one process, int64 ``(NUMBERS,)``."""

    def __init__(self, row: Array) -> None:
        self._numbers: Any = memoryview(row)  # type: ignore[arg-type]
        self._times: Any = memoryview(row.view(np.float64))  # type: ignore[arg-type]

    def begin(self, i: int, *, timed: bool = True) -> None:
        # In this order, so that the parent may read a time that is too late, but never too early.
        self._times[1] = time.monotonic()
        self._numbers[0] = i + 1 if timed else -1

    def end(self) -> None:
        self._numbers[0] = 0

    def count(self, frames: int) -> None:
        self._numbers[2] = frames
