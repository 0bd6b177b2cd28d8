"""The rows of the running episodes of each env, and the last row of each env.

Rows are stored for a whole batch at once. ``EpisodeBuffer`` stores them into blocks of some rows
per env; a full block is put aside. Memory holds the running episodes and one block per env,
whatever the number of episodes. ``OpenRows`` holds one row per env.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import Leaf, fit, stack_objects

#: The blocks of all envs take about so much together, bytes.
_BLOCK_BYTES = 1 << 25
#: Rows of a block: 2 at the least, so that one which is full holds a step and not only a reset.
_SHORTEST_BLOCK, _LONGEST_BLOCK = 2, 256


class OpenRows:
    """The open row of each env: an observation, and what the policy returned for it.

    ``obs`` and ``action`` are the leaves of an observation and of an action; ``size`` are the rows
    of a block of each env, of which one is used here.
    """

    def __init__(
        self, num_envs: int, obs: Sequence[Leaf], action: Sequence[Leaf], size: int = 1
    ) -> None:
        self._num_envs, self._size = num_envs, size
        self._obs = [self._column(leaf) for leaf in obs]
        self._actions = [self._column(leaf) for leaf in action]
        self._extras: dict[str, _Column] | None = None  # by the names that the first call returned
        self._row = np.arange(num_envs) * size  # the open row of each env, or its next one

    def add(
        self, ids: NDArray[np.intp], obs: Sequence[Any], rewards: NDArray[np.float64] | None
    ) -> None:
        """Open a row for each of ``ids`` ``(k,)``, distinct ones; ``obs``: ``(k, ...)`` per leaf.

        ``rewards``, ``(k,)`` or ``(k, m)``, None where all rows are of resets, are not stored here.
        """
        del rewards
        for column, part in zip(self._obs, obs, strict=True):
            column.put(self._row[ids], part)

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store what the policy returned for the open rows, actions per leaf, and close the rows.

        ValueError if the extras are not those of the calls before, or their values don't fit.
        """
        rows = self._row[ids]
        if self._extras is None:
            self._extras = {
                name: self._column(Leaf((), values.shape[1:], values.dtype))
                for name, values in extras.items()
            }
        if extras.keys() != self._extras.keys():
            raise ValueError(
                f"policy: extras have the keys {sorted(extras)}, but those before had"
                f" {sorted(self._extras)}"
            )
        for name, values in extras.items():
            self._extras[name].put_fitting(rows, values, f"policy: extras[{name!r}]")
        for column, part in zip(self._actions, actions, strict=True):
            column.put(rows, part)

    def of(self, ids: NDArray[np.intp]) -> tuple[list[Any], list[Any], dict[str, NDArray[Any]]]:
        """The rows of ``ids``: observations and actions per leaf, extras by name; copies."""
        rows = self._row[ids]
        return (
            [column.rows(rows) for column in self._obs],
            [column.rows(rows) for column in self._actions],
            {name: column.rows(rows) for name, column in (self._extras or {}).items()},
        )

    def clear(self) -> None:
        self._extras = None

    def _column(self, leaf: Leaf) -> _Column:
        return _Column(leaf, self._num_envs, self._size)


class EpisodeBuffer(OpenRows):
    """Observations, actions, extras and rewards of one running episode per env.

    Row ``t`` of an episode holds observation ``t``, the reward that came with it (0 for the
    reset's), and the action and extras that the policy returned for it.
    """

    def __init__(self, num_envs: int, obs: Sequence[Leaf], action: Sequence[Leaf]) -> None:
        row_bytes = sum(
            int(np.prod(leaf.shape, dtype=np.int64)) * (leaf.dtype or np.dtype(object)).itemsize
            for leaf in (*obs, *action)
        )
        size = _BLOCK_BYTES // (num_envs * (row_bytes + 8))
        size = int(np.clip(size, _SHORTEST_BLOCK, _LONGEST_BLOCK))
        super().__init__(num_envs, obs, action, size)
        self._rewards: _Column | None = None
        self._start = self._row.copy()  # of each env's rows in a block
        self._room = size  # every env has room for so many rows, or for more

    def add(
        self, ids: NDArray[np.intp], obs: Sequence[Any], rewards: NDArray[np.float64] | None
    ) -> None:
        """Open a row for each of ``ids``, and store its reward."""
        if not self._room:
            self._make_room()
        self._room -= 1
        super().add(ids, obs, rewards)
        if rewards is not None:
            if self._rewards is None:
                # Only now is it known whether a reward is a number or a vector.
                self._rewards = self._column(Leaf((), rewards.shape[1:], rewards.dtype))
            self._rewards.put(self._row[ids], rewards)

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store what the policy returned, and go on to the next rows; errors as above."""
        super().add_actions(ids, actions, extras)
        self._row[ids] += 1

    def take(
        self, env_id: int
    ) -> tuple[list[Any], list[Any], NDArray[np.float64], dict[str, NDArray[Any]]]:
        """Take the episode of one env out, whose last row is open.

        Return observations ``(L + 1, ...)`` and actions ``(L, ...)`` per leaf, rewards ``(L, ...)``
        and extras ``(L, ...)`` by name.
        """
        start, stop = int(self._start[env_id]), int(self._row[env_id])
        self._row[env_id] = start
        assert self._rewards is not None  # noqa: S101 - an episode ends with a step
        return (
            [column.take(env_id, start, stop + 1) for column in self._obs],
            [column.take(env_id, start, stop) for column in self._actions],
            self._rewards.take(env_id, start, stop + 1)[1:],
            {n: c.take(env_id, start, stop) for n, c in (self._extras or {}).items()},
        )

    def clear(self) -> None:
        self._row[:] = self._start
        for column in self._columns():
            column.clear()
        super().clear()

    def _columns(self) -> list[_Column]:
        rewards = [self._rewards] if self._rewards else []
        return [*self._obs, *self._actions, *(self._extras or {}).values(), *rewards]

    def _make_room(self) -> None:
        room = self._start + self._size - self._row
        for i in np.flatnonzero(room == 0).tolist():
            for column in self._columns():
                column.put_aside(i, int(self._start[i]), self._size)
            self._row[i] = self._start[i]
            room[i] = self._size
        self._room = int(room.min())


class _Column:
    """One leaf: a block of rows per env, and the full blocks of the running episodes."""

    def __init__(self, leaf: Leaf, num_envs: int, size: int) -> None:
        self._leaf = leaf
        self._block = np.empty((num_envs * size, *leaf.shape), leaf.dtype or object)
        self._aside: list[list[NDArray[Any]]] = [[] for _ in range(num_envs)]

    def put(self, rows: NDArray[np.intp], values: Any) -> None:
        if self._leaf.dtype is not None:
            self._block[rows] = values
        else:  # one by one: arrays among the values are not to be spread over the block
            for row, value in zip(rows, values, strict=True):
                self._block[row] = value

    def put_fitting(self, rows: NDArray[np.intp], values: NDArray[Any], what: str) -> None:
        """Put values of the shape of those before, which their dtype holds without loss."""
        shape = (len(rows), *self._leaf.shape)
        self._block[rows] = fit(
            values, shape, self._block.dtype, what, "the column of those before"
        )

    def rows(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        return self._block[rows]

    def put_aside(self, env_id: int, start: int, size: int) -> None:
        self._aside[env_id].append(self._block[start : start + size].copy())

    def take(self, env_id: int, start: int, stop: int) -> Any:
        part = self._block[start:stop].copy()
        aside = self._aside[env_id]
        if aside:
            part = np.concatenate([*aside, part])
            aside.clear()
        if self._leaf.dtype is None:
            return stack_objects(list(part), self._leaf)
        return part

    def clear(self) -> None:
        for aside in self._aside:
            aside.clear()
