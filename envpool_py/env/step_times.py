"""Count and time the steps and resets of each env, in the process of the env.

Each env has a row of int64 in the block: four counts, then a histogram of the times of its steps on
a logarithmic scale with eight bins per doubling, so percentiles are known to about 5 %. Without
``measure=True`` there are no rows, and no overhead.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import Array

STEPS, RESETS, STEP_NS, RESET_NS = range(4)
_COUNTS = 4
_FINE = 3  # bits: 8 bins for each doubling
_BINS = 41 << _FINE  # up to 2 ** 40 ns, 18 minutes
#: The length of a row.
NUMBERS = _COUNTS + _BINS


class StepTimes:
    """Writes the row of one env, int64 ``(NUMBERS,)``."""

    now = staticmethod(time.perf_counter_ns)

    def __init__(self, row: Array) -> None:
        self._row: Any = memoryview(row)  # type: ignore[arg-type]

    def note_step(self, nanoseconds: int) -> None:
        row = self._row
        row[STEPS] += 1
        row[STEP_NS] += nanoseconds
        row[_COUNTS + _bin(nanoseconds)] += 1

    def note_reset(self, nanoseconds: int) -> None:
        row = self._row
        row[RESETS] += 1
        row[RESET_NS] += nanoseconds


def _bin(nanoseconds: int) -> int:
    length = nanoseconds.bit_length()
    if length <= _FINE:
        return 0
    # The bin within a doubling is the three bits after the leading 1.
    place = (length << _FINE) | ((nanoseconds >> (length - _FINE - 1)) & ((1 << _FINE) - 1))
    return min(place, _BINS - 1)


def percentile(counts: Array, share: float) -> NDArray[np.float64]:
    """Return, per row, the seconds within which ``share`` (0 to 1) of the steps ended, or NaN."""
    upto = np.cumsum(counts[:, _COUNTS:], axis=1)
    total = upto[:, -1]
    place = (upto < np.ceil(share * total)[:, None]).sum(axis=1)
    place = np.minimum(place, _BINS - 1)
    # The middle of the bin.
    length, fine = place >> _FINE, place & ((1 << _FINE) - 1)
    nanoseconds = ((1 << _FINE) + fine + 0.5) * 2.0 ** (length - _FINE - 1)
    return np.where(total > 0, nanoseconds * 1e-9, np.nan)
