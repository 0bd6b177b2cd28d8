"""Memory for the observations of partial batches, used again and again where ``copy=False``.

A batch of some envs has to be gathered, and allocating memory for it can cost more than gathering:
large arrays come from the system page by page. A buffer is free again once every env of its batch
has been sent its next request.
"""

from __future__ import annotations

import numpy as np

from envpool_py.block import Block
from envpool_py.ids import IdArray
from envpool_py.spaces import Array


class BufferPool:
    """As many buffers as there ever were batches at a time.

    Args:
        block: where rows are gathered from.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._buffers: list[list[Array | None]] = []
        # For each buffer how many envs hold it, for each env the one that it holds, or -1.
        self._holders = np.zeros(0, dtype=np.intp)
        self._held = np.full(block.spec.num_envs, -1)

    def release(self, ids: IdArray) -> None:
        """These envs are sent their next request: their last rows need not be kept."""
        if not self._buffers:
            return
        held = self._held[ids]
        held = held[held >= 0]
        if len(held):
            self._holders -= np.bincount(held, minlength=len(self._holders))
            self._held[ids] = -1

    def take(self, ids: IdArray) -> list[Array | None]:
        """An array ``(k, *shape)`` for each leaf; None for a leaf of objects."""
        self.release(ids)
        free = np.flatnonzero(self._holders == 0)
        if len(free):
            number = int(free[0])
        else:
            number = len(self._buffers)
            self._buffers.append(
                [None if array is None else np.empty_like(array) for array in self._block.obs]
            )
            self._holders = np.append(self._holders, 0)
        self._holders[number] = len(ids)
        self._held[ids] = number
        return [None if array is None else array[: len(ids)] for array in self._buffers[number]]
