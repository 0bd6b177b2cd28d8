"""The meter: how many steps and resets each env has taken, and how long they took.

A small memory beside the block, shared where envs live in processes: each env's row is written by
whoever steps that env, and read by the pool at any time. How long steps took is kept as a histogram
on a logarithmic scale, eight bins for each doubling, so that a percentile is known to about 5 % of
itself and a row is of one size, however long the pool runs. There is no meter, and no cost, unless
the pool was made with ``measure=True``.
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
_ROW = (_COUNTS + _BINS) * 8


def nbytes(num_envs: int) -> int:
    """The size of the memory, in bytes."""
    return num_envs * _ROW


class EnvMeter:
    """One env's side.

    Args:
        memory: that of all envs.
        i: which env.
    """

    def __init__(self, memory: Any, i: int) -> None:
        self._row = memoryview(memory)[i * _ROW : (i + 1) * _ROW].cast("q")

    @staticmethod
    def now() -> int:
        """The clock, in nanoseconds."""
        return time.perf_counter_ns()

    @property
    def reset_ns(self) -> int:
        """The time that resets have taken until now, in nanoseconds."""
        return self._row[RESET_NS]

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


class Meter:
    """The pool's side.

    Args:
        memory: that of all envs.
        num_envs: how many they are.
    """

    def __init__(self, memory: Any, num_envs: int) -> None:
        rows = np.frombuffer(memory, dtype=np.int64, count=num_envs * _ROW // 8)
        self._rows = rows.reshape(num_envs, -1)

    def counts(self) -> NDArray[np.int64]:
        """A copy, shape ``(num_envs, 4 + bins)``; columns as ``STEPS`` and so on."""
        return self._rows.copy()


def percentile(counts: Array, share: float) -> NDArray[np.float64]:
    """The time below which ``share`` of the steps of each env were, in seconds; NaN without steps.

    Args:
        counts: rows of ``Meter.counts``, shape ``(k, ...)``.
        share: 0 to 1.
    """
    upto = np.cumsum(counts[:, _COUNTS:], axis=1)
    total = upto[:, -1]
    place = (upto < np.ceil(share * total)[:, None]).sum(axis=1)
    return np.where(total > 0, _middles()[np.minimum(place, _BINS - 1)], np.nan)
