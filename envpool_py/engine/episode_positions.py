"""Where each env is in its run, so that a recreated env goes on there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envpool_py import seeding
from envpool_py.env.block import FINAL, OVER, RESET_ROW, Block, Position
from envpool_py.env.request import Request

_NEW_POSITION = FINAL | RESET_ROW | OVER


class Positions:
    """The last seed of each env, and its position at its last returned row.

    The executor writes the position of its env into the block (``Block.put_position``), as a
    number; these numbers are kept here.

    Attributes:
        roots: the seed of the last reset that reached each env, or failed; None: it had none.
    """

    def __init__(self, block: Block, *, episode_seeds: bool) -> None:
        self._block, self._episode_seeds = block, episode_seeds
        self._returned: list[int] = block.positions.tolist()  # -1: not known
        self._entropy = np.random.SeedSequence()
        # Root and number before the resets in flight.
        self._before: dict[int, tuple[int | None, int]] = {}
        self._any_works = False
        self.roots: dict[int, int | None] = dict.fromkeys(range(block.spec.num_envs))

    def root_of(self, i: int) -> int | None:
        """Return the last seed of env ``i``; if it had none, one drawn for this pool."""
        return seeding.per_env(self._entropy, [i])[0] if self.roots[i] is None else self.roots[i]

    def mark_sent(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        self._any_works = self.any_works()  # the numbers may begin again at 0
        for i, request in zip(ids, requests, strict=True):
            self._before[i] = self.roots[i], self._returned[i]
            if request.kwargs.get("seed") is not None:
                self.roots[i] = request.kwargs["seed"]
                if self._episode_seeds:
                    self._returned[i] = 0

    def mark_returned(self, ids: Sequence[int], marked: Sequence[tuple[int, int]]) -> None:
        """Note the rows of these envs; ``marked``: the places in the batch that have a mark."""
        for k, mark in marked:  # faster than NumPy for the few of a batch
            if mark & _NEW_POSITION:
                i = ids[k]
                self._returned[i] = self._block.positions[i]
                self._before.pop(i, None)

    def mark_cancelled(self, i: int, *, carried_out: bool) -> None:
        if carried_out:
            self._before.pop(i, None)
        self.mark_unsent(i)
        self._returned[i] = -1

    def mark_unsent(self, i: int) -> None:
        self.roots[i], self._returned[i] = self._before.pop(i, (self.roots[i], self._returned[i]))

    def mark_unanswered(self, i: int) -> None:
        """Set env ``i``, whose process has ended, back to its position before its request."""
        if self._returned[i] >= 0:
            self._block.positions[i] = self._returned[i]

    def mark_recreated(self, i: int) -> None:
        self._returned[i] = self._block.positions[i]

    def any_works(self) -> bool:
        """Whether any env has ever completed a reset; else the code may be wrong."""
        # 1: of a ``lost_step``.
        return self._any_works or any(number > 1 for number in self._block.positions)

    def of(self, i: int) -> Position:
        return Block.position(self._block.positions[i])

    def returned(self, i: int) -> Position:
        """Return the position of env ``i`` when its last row was returned; unknown: episode -2."""
        return Block.position(self._returned[i])
