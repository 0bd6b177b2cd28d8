"""Mean and variance of a stream of arrays, with the methods that Stable-Baselines3 has."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium.wrappers import utils
from numpy.typing import NDArray


class RunningMeanStd(utils.RunningMeanStd):
    """Mean and variance of all rows seen so far, in float64.

    Rows, ``mean`` and ``var``, the variance of the population, have this ``shape``. ``count`` is
    the number of rows seen, plus ``epsilon``, the weight of the initial mean 0 and variance 1.
    """

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        super().__init__(epsilon, shape)  # type: ignore[no-untyped-call]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        shape: tuple[int, ...] = self.mean.shape
        return shape

    def update(self, arr: NDArray[Any]) -> None:
        """Add the rows of a batch ``(k, *shape)``."""
        super().update(arr)  # type: ignore[no-untyped-call]

    def copy(self) -> RunningMeanStd:
        """A copy, which learns independently."""
        return copy.deepcopy(self)

    def combine(self, other: RunningMeanStd) -> None:
        """Add all rows that ``other`` has seen."""
        self.update_from_moments(other.mean, other.var, other.count)  # type: ignore[no-untyped-call]
