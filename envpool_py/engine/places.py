"""The places of envs in their schedules of episodes."""

from __future__ import annotations

from collections.abc import Iterable

from envpool_py.env.block import Block, Place


class Places:
    """The places of envs in their schedules of episodes.

    Attributes:
        seen: the place of each env when its last row was returned.
    """

    def __init__(self, block: Block) -> None:
        self._schedule = block.schedule
        self._lost: dict[int, Place] = {}
        self.seen: dict[int, Place] = {}

    def see(self, ids: Iterable[int]) -> None:
        """Keep the places of these envs, whose rows are being returned."""
        self.seen.update((i, self._schedule(i)) for i in ids)

    def keep(self, i: int, *, unanswered: bool = False) -> None:
        """Keep the place of env ``i``, which is lost; an ``unanswered`` request does not count."""
        seen = self.seen.get(i) if unanswered else None
        self._lost.setdefault(i, seen or self._schedule(i))

    def forget(self, i: int) -> None:
        """Forget the place at which env ``i`` returned its last row."""
        self.seen.pop(i, None)

    def release(self, i: int) -> None:
        """Drop the kept place of env ``i``, which was recreated and continues there."""
        self._lost.pop(i, None)
        self.see([i])

    def of(self, i: int) -> Place:
        """Return the place of env ``i``, or its place when it was lost."""
        return self._lost.get(i) or self._schedule(i)
