"""Where each env is in its run, so that a recreated env goes on there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envpool_py import seeding
from envpool_py.env.block import FINAL, OVER, RESET_ROW, Block, Position
from envpool_py.env.request import Request

_POSITION_MARKS = FINAL | RESET_ROW | OVER


class Positions:
    """The last seed of each env, and its position at its last returned row.

    The executor writes the position of its env into the block (``Block.put_position``), as a
    number; these numbers are kept here.

    Attributes:
        root_seeds: the seed of the last reset that reached each env, or failed; None: it had none.
    """

    def __init__(self, block: Block, *, episode_seeds: bool) -> None:
        self._block, self._episode_seeds, self._any_worked = block, episode_seeds, False
        self._last_returned: list[int] = block.positions.tolist()  # -1: not known
        self._entropy = np.random.SeedSequence()
        self._before_reset: dict[int, tuple[int | None, int]] = {}  # of the resets in flight
        self.root_seeds: dict[int, int | None] = dict.fromkeys(range(block.spec.num_envs))

    def root_seed_of(self, i: int) -> int | None:
        """Return the last seed of env ``i``; if it had none, one drawn for this pool."""
        seed = self.root_seeds[i]
        return seeding.per_env(self._entropy, [i])[0] if seed is None else seed

    def mark_sent(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        self._any_worked = self.any_worked()  # the numbers may begin again at 0
        for i, request in zip(ids, requests, strict=True):
            self._before_reset[i] = self.root_seeds[i], self._last_returned[i]
            if request.kwargs.get("seed") is not None:
                self.root_seeds[i] = request.kwargs["seed"]
                if self._episode_seeds:
                    self._last_returned[i] = 0

    def mark_returned(self, ids: Sequence[int], marked: Sequence[tuple[int, int]]) -> None:
        """Note the rows of these envs; ``marked``: the places in the batch that have a mark."""
        for k, mark in marked:  # faster than NumPy for the few of a batch
            if mark & _POSITION_MARKS:
                i = ids[k]
                self._last_returned[i] = self._block.positions[i]
                self._before_reset.pop(i, None)

    def mark_cancelled(self, i: int, *, carried_out: bool) -> None:
        if carried_out:
            self._before_reset.pop(i, None)
        self.mark_unsent(i)
        self._last_returned[i] = -1

    def mark_unsent(self, i: int) -> None:
        now = self.root_seeds[i], self._last_returned[i]
        self.root_seeds[i], self._last_returned[i] = self._before_reset.pop(i, now)

    def mark_unanswered(self, i: int) -> None:
        """Set env ``i``, whose process has ended, back to its position before its request."""
        if self._last_returned[i] >= 0:
            self._block.positions[i] = self._last_returned[i]

    def mark_recreated(self, i: int) -> None:
        self._last_returned[i] = self._block.positions[i]

    def any_worked(self) -> bool:
        """Whether any env has ever completed a reset; else the code may be wrong."""
        return self._any_worked or any(n > 1 for n in self._block.positions)  # 1: a ``lost_step``

    def of(self, i: int) -> Position:
        return Block.position(self._block.positions[i])

    def last_returned(self, i: int) -> Position:
        """Return the position of env ``i`` when its last row was returned; unknown: episode -2."""
        return Block.position(self._last_returned[i])
