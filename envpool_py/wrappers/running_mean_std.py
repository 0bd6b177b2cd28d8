"""The running mean and variance of a stream of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.wrappers.utils import update_mean_var_count_from_moments
from numpy.typing import ArrayLike, NDArray


class RunningMeanStd:
    """The mean and variance of all rows so far, in float64.

    Batches are merged by the parallel formula of Chan, Golub and LeVeque ("Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances", 1979), which stays accurate if the mean is
    much larger than the spread. The variance is the population's (divided by ``count``).

    Args:
        mean: the mean before the first update, a number or an array of the shape of a row.
        std: the standard deviation before the first update, likewise.
        clip_max: ``norm`` cuts off at this absolute value; None or 0 for no limit.
        epsilon: added to the variance in ``norm``, against a division by zero.
        count: the weight of ``mean`` and ``std`` in rows; with 0 the first update replaces them.

    Attributes:
        mean, var: float64 arrays of the shape of a row, ``()`` until that is known.
        count: ``count`` as given, plus the number of rows seen.
        clip_max, eps: ``clip_max`` and ``epsilon`` as given.

    Raises:
        TypeError: one of them is no real number.
        ValueError: ``std``, ``clip_max``, ``epsilon`` or ``count`` is negative or NaN, or ``mean``
            and ``std`` can't be broadcast to one shape.

    After a NaN in a batch, the mean and variance of that component stay NaN; after an infinity, the
    variance does. Other components do not change. Remove such values before ``update``.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]

    def __init__(
        self,
        mean: ArrayLike = 0.0,
        std: ArrayLike = 1.0,
        clip_max: float | None = 10.0,
        epsilon: float = float(np.finfo(np.float32).eps),
        count: float = 0,
    ) -> None:
        numbers = {"std": std, "clip_max": clip_max or 0.0, "epsilon": epsilon, "count": count}
        for name, value in numbers.items():
            if not np.all(_real(value, name) >= 0):
                raise ValueError(f"{name}: got {value}, but it must not be negative")
        center, deviation = np.broadcast_arrays(mean, std)
        self.mean = np.array(center, np.float64)
        self.var = np.square(np.array(deviation, np.float64))
        self.count = count
        self.clip_max = clip_max
        self.eps = epsilon

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.mean.shape}, count={self.count})"

    def update(self, batch: ArrayLike) -> None:
        """Update the statistics with the rows of a batch ``(k, *shape)``; ``k`` may be 0.

        Before the first update any shape of rows is taken, unless ``mean`` or ``std`` was given as
        an array. TypeError if they are no real numbers, ValueError for a scalar, or rows of another
        shape than those before; the statistics do not change then.
        """
        rows = _real(batch, "batch")
        if rows.ndim == 0:
            raise ValueError(f"batch: got the scalar {rows}; its first axis must count rows")
        if (self.count or self.mean.ndim) and rows.shape[1:] != self.mean.shape:
            text = f"rows have shape {rows.shape[1:]}, but the statistics have {self.mean.shape}"
            raise ValueError(f"batch: {text}")
        added = len(rows)
        if not added:
            return
        mean = rows.mean(axis=0, dtype=np.float64)
        # NumPy 1 would subtract a scalar from float16 in float16.
        var = np.square(np.subtract(rows, mean, dtype=np.float64)).mean(axis=0)
        mean, var, self.count = update_mean_var_count_from_moments(  # type: ignore[no-untyped-call]
            self.mean, self.var, self.count, mean, var, added
        )
        # Of 0-dimensional arrays NumPy makes scalars, and asarray arrays again.
        self.mean, self.var = np.asarray(mean), np.asarray(var)

    def norm(self, x: ArrayLike) -> NDArray[Any]:
        """``(x - mean) / sqrt(var + eps)``, within ``-clip_max`` and ``clip_max``.

        ``x`` has the statistics' shape, or more axes before it. Return a new array of its shape, of
        its dtype where that is floating, else float64. TypeError if ``x`` are no real numbers,
        ValueError if its last axes are not the shape of the statistics.
        """
        data = _real(x, "x")
        shape = self.mean.shape
        if data.shape[max(data.ndim - len(shape), 0) :] != shape:
            raise ValueError(f"x: has shape {data.shape}, but the statistics have {shape}")
        dtype = data.dtype if data.dtype.kind == "f" else np.dtype(np.float64)
        result = (data.astype(np.float64) - self.mean) / np.sqrt(self.var + self.eps)
        if self.clip_max:
            result = np.clip(result, -self.clip_max, self.clip_max)
        return np.asarray(result, dtype=dtype)


def _real(value: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: got dtype {array.dtype}, but it must be real numbers")
    return array
