"""How many steps and resets each env has taken, and how long they took.

Each env has a row of int64 in the block, written by the side that steps it and read by the pool at
any time. How long steps took is kept as a histogram on a logarithmic scale, eight bins for each
doubling: a percentile is known to about 5 %, and a row has one size, however long the pool
runs. Without ``measure=True`` there are no rows, and no overhead.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.spaces import Array

STEPS, RESETS, STEP_NS, RESET_NS = range(4)
_COUNTS = 4
_FINE = 3  # bits: 8 bins for each doubling
_BINS = 41 << _FINE  # up to 2 ** 40 ns, 18 minutes


class StepTimes:
    """One env's row, for the side that steps it.

    Args:
        row: int64 ``(4 + 328,)``.
    """

    now = staticmethod(time.perf_counter_ns)

    def __init__(self, row: Array) -> None:
        self._row: Any = memoryview(row)  # type: ignore[arg-type]

    def note_step(self, nanoseconds: int) -> None:
        """Count a step that took so long."""
        row = self._row
        row[STEPS] += 1
        row[STEP_NS] += nanoseconds
        row[_COUNTS + _bin(nanoseconds)] += 1

    def note_reset(self, nanoseconds: int) -> None:
        """Count a reset that took so long."""
        row = self._row
        row[RESETS] += 1
        row[RESET_NS] += nanoseconds


def _bin(nanoseconds: int) -> int:
    length = nanoseconds.bit_length()
    if length <= _FINE:
        return 0
    # The leading bits: of 1xyz... the bin is xyz within that doubling.
    place = (length << _FINE) | ((nanoseconds >> (length - _FINE - 1)) & ((1 << _FINE) - 1))
    return min(place, _BINS - 1)


def _middles() -> NDArray[np.float64]:
    """The middle of each bin, in seconds."""
    place = np.arange(_BINS)
    length, fine = place >> _FINE, place & ((1 << _FINE) - 1)
    width = 2.0 ** (length - _FINE - 1)
    return ((1 << _FINE) + fine + 0.5) * width * 1e-9


def percentile(counts: Array, share: float) -> NDArray[np.float64]:
    """The time below which ``share`` of the steps of each env were, in seconds; NaN without steps.

    Args:
        counts: rows of all envs, shape ``(k, ...)``.
        share: 0 to 1.
    """
    upto = np.cumsum(counts[:, _COUNTS:], axis=1)
    total = upto[:, -1]
    place = (upto < np.ceil(share * total)[:, None]).sum(axis=1)
    return np.where(total > 0, _middles()[np.minimum(place, _BINS - 1)], np.nan)
