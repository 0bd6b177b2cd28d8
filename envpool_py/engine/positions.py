"""The positions of envs in their schedules of episodes, which a recreated env continues."""

from __future__ import annotations

from collections.abc import Iterable

from envpool_py.env.block import Block, Position


class Positions:
    """The positions of envs that were lost, and of all envs at their last returned row.

    The executor writes the position of its env into the block (``Block.put_position``).

    Attributes:
        returned: the position of each env when its last row was returned.
    """

    def __init__(self, block: Block) -> None:
        self._now = block.position
        self._lost: dict[int, Position] = {}
        self.returned: dict[int, Position] = {}

    def mark_returned(self, ids: Iterable[int]) -> None:
        self.returned.update((i, self._now(i)) for i in ids)

    def mark_lost(self, i: int, *, unanswered: bool = False) -> None:
        """Keep the position of env ``i``; an ``unanswered`` request does not count."""
        returned = self.returned.get(i) if unanswered else None
        self._lost.setdefault(i, returned or self._now(i))

    def mark_recreated(self, i: int) -> None:
        self._lost.pop(i, None)
        self.mark_returned([i])

    def of(self, i: int) -> Position:
        """Return the position of env ``i``, or its position when it was lost."""
        return self._lost.get(i) or self._now(i)
