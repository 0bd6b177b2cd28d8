"""The outcomes of tasks: what ``Sessions.map`` returns."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import NamedTuple  # generic before Python 3.11

from envpool_py.env.failures import describe, place_of
from envpool_py.errors import EnvError

T = TypeVar("T")
V = TypeVar("V")


class Outcome(NamedTuple, Generic[T, V]):
    """The outcome of one task: the value of its conversation, or its error."""

    task: T
    value: V | None = None
    error: BaseException | None = None


class Outcomes(list[Outcome[T, V]]):
    """The outcomes of tasks, in the order of the tasks."""

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which tasks have failed: bool ``(num_tasks,)``."""
        return np.array([one.error is not None for one in self], np.bool_)

    @property
    def errors(self) -> list[str | None]:
        """The text of the error of each task, or None."""
        return [
            e.text if isinstance(e, EnvError) else None if e is None else describe(e) + place_of(e)
            for e in (one.error for one in self)
        ]
