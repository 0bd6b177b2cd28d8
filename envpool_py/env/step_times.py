"""Count and time the steps and resets of each env, in the process of the env.

Each env has a row of int64 in the block: four counts, then a histogram of the times of its steps on
a logarithmic scale with eight bins per doubling, so percentiles are known to about 5 %. Without
``measure=True`` there are no rows, and no overhead.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import Array

STEPS, RESETS, STEP_NS, RESET_NS = range(4)
_COUNTS = 4
_PER_DOUBLING = 8
_BINS = 40 * _PER_DOUBLING  # up to 2 ** 40 ns, 18 minutes
ROW_LENGTH = _COUNTS + _BINS


def note_step(row: Any, nanoseconds: int) -> None:
    row[STEPS] += 1
    row[STEP_NS] += nanoseconds
    place = int(math.log2(nanoseconds | 1) * _PER_DOUBLING)  # | 1: a logarithm for 0, too
    row[_COUNTS + min(place, _BINS - 1)] += 1


def percentile(counts: Array, share: float) -> NDArray[np.float64]:
    """Return, per row, the seconds within which ``share`` (0 to 1) of the steps ended, or NaN."""
    upto = np.cumsum(counts[:, _COUNTS:], axis=1)
    total = upto[:, -1]
    place = (upto < np.ceil(share * total)[:, None]).sum(axis=1)
    middle = 2.0 ** ((place + 0.5) / _PER_DOUBLING)  # of the bin
    return np.where(total > 0, middle * 1e-9, np.nan)
