"""Mean and variance of a stream of arrays, with the arithmetic of Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RunningMeanStd:
    """Mean and variance of all rows seen so far, in float64.

    It begins as if ``epsilon`` rows of mean 0 and variance 1 had been seen. Batches are merged by
    the parallel formula of Chan, Golub and LeVeque; the variance is the population's. The order of
    the operations is that of Stable-Baselines3, so that the results are equal to the last bit.

    Args:
        epsilon: the weight of the initial values.
        shape: of a row.

    Attributes:
        mean: float64, of that shape.
        var: float64, of that shape.
        count: the number of rows seen, and ``epsilon``.
    """

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        self.mean: Any = np.zeros(shape, np.float64)
        self.var: Any = np.ones(shape, np.float64)
        self.count = epsilon

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={np.shape(self.mean)}, count={self.count:g})"

    def copy(self) -> RunningMeanStd:
        """The same statistics, of their own."""
        other = RunningMeanStd()
        other.mean, other.var = np.copy(self.mean), np.copy(self.var)
        other.count = float(self.count)
        return other

    def combine(self, other: RunningMeanStd) -> None:
        """Take in all that another has seen."""
        self.update_from_moments(other.mean, other.var, other.count)

    def update(self, arr: NDArray[Any]) -> None:
        """Take in the rows of a batch.

        Args:
            arr: ``(k, *shape)``.
        """
        self.update_from_moments(np.mean(arr, axis=0), np.var(arr, axis=0), arr.shape[0])

    def update_from_moments(self, batch_mean: Any, batch_var: Any, batch_count: float) -> None:
        """Take in a batch that is known by its moments.

        Args:
            batch_mean: of the shape of a row.
            batch_var: likewise.
            batch_count: its number of rows.
        """
        total = self.count + batch_count
        delta = batch_mean - self.mean
        squares = self.var * self.count + batch_var * batch_count
        squares = squares + np.square(delta) * self.count * batch_count / total
        self.mean = self.mean + delta * batch_count / total
        self.var = squares / total
        self.count = batch_count + self.count
