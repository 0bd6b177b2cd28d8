"""``PoolAdapter``: what every interface over a pool has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py.pool.base import BaseVectorEnv


class PoolAdapter:
    """The base class of interfaces over a pool; it closes with ``with``."""

    pool: BaseVectorEnv
    num_envs: int
    close: Any

    @property
    def is_closed(self) -> bool:
        """Whether this, or the pool, is closed."""
        return self.pool.is_closed

    @property
    def closed(self) -> bool:
        """The same as ``is_closed``."""
        return self.pool.is_closed

    @closed.setter
    def closed(self, value: bool) -> None:
        pass  # Gymnasium's ``close`` sets it, after it has closed the pool

    @property
    def restarts(self) -> NDArray[np.int64]:
        """How often each env was recreated: int64, one number per env."""
        return self.pool.restarts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool!r})"

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Self:
        self.pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled; make another")
