"""Where each env is in its run, so that a recreated env goes on there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from envpool_py import seeding
from envpool_py.env.block import Block, Position
from envpool_py.env.request import Request


class Positions:
    """The last seed of each env, and its position at its last returned row, or when it was lost.

    The executor writes the position of its env into the block (``Block.put_position``).

    Attributes:
        roots: the last seed of each env whose reset was returned; None: it had none.
        returned: the position of each env when its last row was returned.
    """

    def __init__(self, block: Block) -> None:
        self._now = block.position
        self._entropy = np.random.SeedSequence()
        self._sent: dict[int, int] = {}
        self._lost: dict[int, Position] = {}
        self.roots: dict[int, int | None] = dict.fromkeys(range(block.spec.num_envs))
        self.returned = dict.fromkeys(range(block.spec.num_envs), (-1, False))

    def root_of(self, i: int) -> int | None:
        """Return the last seed of env ``i``; if it had none, one drawn for this pool."""
        return seeding.per_env(self._entropy, [i])[0] if self.roots[i] is None else self.roots[i]

    def mark_sent(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        for i, request in zip(ids, requests, strict=True):
            if request.kwargs.get("seed") is not None:
                self._sent[i] = request.kwargs["seed"]

    def mark_returned(self, ids: Iterable[int]) -> None:
        for i in ids:
            self.returned[i] = self._now(i)
            if i in self._sent:
                self.roots[i] = self._sent.pop(i)

    def mark_cancelled(self, i: int, *, carried_out: bool) -> None:
        self.returned.pop(i, None)
        seed = self._sent.pop(i, None)
        if seed is not None and carried_out:
            self.roots[i] = seed

    def mark_lost(self, i: int, *, unanswered: bool = False) -> None:
        """Keep the position of env ``i``; an ``unanswered`` request does not count."""
        returned = self.returned.get(i) if unanswered else None
        self._lost.setdefault(i, returned or self._now(i))

    def mark_recreated(self, i: int) -> None:
        self._lost.pop(i, None)
        self.returned[i] = self._now(i)

    def of(self, i: int) -> Position:
        """Return the position of env ``i``, or its position when it was lost."""
        return self._lost.get(i) or self._now(i)
