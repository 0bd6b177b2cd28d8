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

from envpool_py.env.spaces import Leaf, column_of, fit, map_tree, objects, stack_objects

#: The blocks of all envs take about so much together, bytes.
_BLOCK_BYTES = 1 << 25
#: Rows of a block: 2 at the least, so that one which is full holds a step and not only a reset.
_SHORTEST_BLOCK, _LONGEST_BLOCK = 2, 256


class OpenRows:
    """The open row of each env, one of ``size``: what was seen, and what the policy returned."""

    def __init__(
        self, num_envs: int, seen: Sequence[Leaf], action: Sequence[Leaf], size: int = 1
    ) -> None:
        self._num_envs, self._size = num_envs, size
        self._seen = [self._column(leaf) for leaf in seen]
        self._actions = [self._column(leaf) for leaf in action]
        self._extras: dict[str, _Column] | None = None  # by the names that the first call returned
        self._row = np.arange(num_envs) * size  # the open row of each env, or its next one

    def add(self, ids: NDArray[np.intp], seen: Sequence[Any]) -> None:
        """Open a row for each of ``ids``, distinct ones; ``seen`` are ``(k, ...)`` per leaf."""
        rows = self._row[ids]
        for column, part in zip(self._seen, seen, strict=True):
            column.put(rows, part)

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store what the policy returned for the open rows; ValueError if the extras don't fit."""
        rows = self._row[ids]
        if self._extras is None:
            self._extras = {name: self._column_like(values) for name, values in extras.items()}
        if extras.keys() != self._extras.keys():
            text = f"the keys {sorted(extras)}, but those before had {sorted(self._extras)}"
            raise ValueError(f"policy: extras have {text}")
        for name, values in extras.items():
            block, what = self._extras[name].block, f"policy: extras[{name!r}]"
            shape = (len(ids), *block.shape[1:])
            block[rows] = fit(values, shape, block.dtype, what, "the column of those before")
        for column, part in zip(self._actions, actions, strict=True):
            column.put(rows, part)

    def of(self, ids: NDArray[np.intp]) -> tuple[list[Any], list[Any], dict[str, NDArray[Any]]]:
        """The rows of ``ids``: what was seen and actions per leaf, extras by name; copies."""
        rows = self._row[ids]
        return (
            [column.block[rows] for column in self._seen],
            [column.block[rows] for column in self._actions],
            {name: column.block[rows] for name, column in (self._extras or {}).items()},
        )

    def _column(self, leaf: Leaf) -> _Column:
        return _Column(leaf, self._num_envs, self._size)

    def _column_like(self, values: NDArray[Any]) -> _Column:
        return self._column(Leaf((), values.shape[1:], values.dtype))


class EpisodeBuffer(OpenRows):
    """What was seen, actions, extras and rewards of one running episode per env.

    Row ``t`` has observation ``t``, its reward (of a reset 0), and the action chosen for it.
    """

    def __init__(self, num_envs: int, seen: Sequence[Leaf], action: Sequence[Leaf]) -> None:
        row_bytes = sum(
            int(np.prod(leaf.shape, dtype=np.int64)) * (leaf.dtype or np.dtype(object)).itemsize
            for leaf in (*seen, *action)
        )
        size = _BLOCK_BYTES // (num_envs * (row_bytes + 8))
        size = int(np.clip(size, _SHORTEST_BLOCK, _LONGEST_BLOCK))
        super().__init__(num_envs, seen, action, size)
        self._rewards: _Column | None = None
        self._start = self._row.copy()  # of each env's rows in a block
        self._room = size  # every env has room for so many rows, or for more

    def add(
        self, ids: NDArray[np.intp], seen: Sequence[Any], rewards: NDArray[np.float64] | None = None
    ) -> None:
        """Open a row for each of ``ids``, and store its reward; None: all rows are of resets."""
        if not self._room:
            self._make_room()
        self._room -= 1
        super().add(ids, seen)
        if rewards is not None:
            self._rewards = self._rewards or self._column_like(rewards)
            if self._rewards.block.ndim < rewards.ndim:
                self._rewards.widen(rewards.shape[1:])
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
        """Take out the episode of one env: observations, actions, rewards and extras."""
        start, stop = int(self._start[env_id]), int(self._row[env_id])
        self._row[env_id] = start
        assert self._rewards is not None  # noqa: S101 - an episode ends with a step
        return (
            [column.take(env_id, start, stop + 1) for column in self._seen],
            [column.take(env_id, start, stop) for column in self._actions],
            self._rewards.take(env_id, start, stop + 1)[1:],
            {n: c.take(env_id, start, stop) for n, c in (self._extras or {}).items()},
        )

    def _make_room(self) -> None:
        rewards = [self._rewards] if self._rewards else []
        columns = [*self._seen, *self._actions, *(self._extras or {}).values(), *rewards]
        full = self._row == self._start + self._size
        for i in np.flatnonzero(full).tolist():
            for column in columns:
                column.aside[i].append(column.block[self._start[i] : self._row[i]].copy())
        self._row[full] = self._start[full]
        self._room = int((self._start + self._size - self._row).min())


class _Column:
    """One leaf: ``block``, some rows per env, and ``aside``, the full blocks of each env."""

    def __init__(self, leaf: Leaf, num_envs: int, size: int) -> None:
        self._leaf = leaf
        self.block = np.empty((num_envs * size, *leaf.shape), leaf.dtype or object)
        self.aside: list[list[NDArray[Any]]] = [[] for _ in range(num_envs)]

    def put(self, rows: NDArray[np.intp], values: Any) -> None:
        # Arrays among objects are not to be spread over the block.
        self.block[rows] = values if self._leaf.dtype is not None else objects(values)

    def widen(self, shape: tuple[int, ...]) -> None:
        """Let scalars so far be rows of this shape."""
        self._leaf = Leaf((), shape, self._leaf.dtype)
        self.block = widened(self.block, shape)
        self.aside = [[widened(part, shape) for part in parts] for parts in self.aside]

    def take(self, env_id: int, start: int, stop: int) -> Any:
        part = np.concatenate([*self.aside[env_id], self.block[start:stop]])
        self.aside[env_id].clear()
        if self._leaf.dtype is None:
            self.block[start:stop] = None  # holds no objects of episodes that have ended
        return part if self._leaf.dtype is not None else stack_objects(list(part), self._leaf)


def widened(rewards: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Scalar rewards as vectors: those before the first vector of a pool are zeros."""
    return np.repeat(rewards[:, np.newaxis], shape[0], axis=1)


def stacked(layout: Any, columns: Any) -> Any:
    """A dict or tuple of columns as arrays ``(k, ...)``; objects that are alike are stacked."""
    return map_tree(column_of, layout, columns)
