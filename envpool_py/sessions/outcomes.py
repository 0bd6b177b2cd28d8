"""The outcomes of tasks: what ``Sessions.map`` returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py.errors import EnvError


class Outcome(NamedTuple):
    """The outcome of one task: the value of its conversation, or its error."""

    task: Any
    value: Any = None
    error: BaseException | None = None


class Outcomes(list[Outcome]):
    """The outcomes of tasks, in the order of the tasks."""

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which tasks have failed: bool ``(num_tasks,)``."""
        return np.array([one.error is not None for one in self], np.bool_)

    @property
    def errors(self) -> list[str | None]:
        """The text of the error of each task, or None."""
        found = [one.error for one in self]
        texts = [e.text if isinstance(e, EnvError) else f"{type(e).__name__}: {e}" for e in found]
        return [None if e is None else text for e, text in zip(found, texts, strict=True)]
