"""The rows of the episodes that are running, env by env, and the last row of each env.

Rows are stored for a whole batch at once. ``EpisodeBuffer`` stores them into blocks of some rows
per env; a full block is put aside. Memory holds the running episodes and one block per env,
whatever the number of episodes. ``LastRows`` holds one row per env.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from envpool_py.spaces import Leaf, stack_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: The blocks of all envs take about so much together, bytes.
_BLOCK_BYTES = 1 << 25
#: Rows of a block: 2 at the least, so that one which is full holds a step and not only a reset.
_SHORTEST_BLOCK, _LONGEST_BLOCK = 2, 256


class Rows(Protocol):
    """Stores, for each env, a row that is opened by an observation and closed by an action."""

    def add(
        self, ids: NDArray[np.intp], obs: Sequence[Any], rewards: NDArray[np.float64] | None
    ) -> None:
        """Open a row for each of ``ids``."""

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store what the policy returned for the open rows of ``ids``, and close these rows."""


class EpisodeBuffer:
    """Observations, actions, extras and rewards of one running episode per env.

    Row ``t`` of an episode holds observation ``t``, the reward that came with it (0 for the
    reset's), and the action and extras that the policy returned for it.

    Args:
        num_envs: how many envs.
        obs: the leaves of an observation.
        action: the leaves of an action.
    """

    def __init__(self, num_envs: int, obs: Sequence[Leaf], action: Sequence[Leaf]) -> None:
        row_bytes = sum(
            int(np.prod(leaf.shape, dtype=np.int64)) * (leaf.dtype or np.dtype(object)).itemsize
            for leaf in (*obs, *action)
        )
        self._size = int(
            np.clip(_BLOCK_BYTES // (num_envs * (row_bytes + 8)), _SHORTEST_BLOCK, _LONGEST_BLOCK)
        )
        self._num_envs = num_envs
        self._obs = [self._column(leaf) for leaf in obs]
        self._actions = [self._column(leaf) for leaf in action]
        self._extras = _Extras(num_envs, self._size)
        self._rewards: _Column | None = None
        self._start = np.arange(num_envs) * self._size  # of each env's rows in a block
        self._row = self._start.copy()  # where its next row goes
        self._room = self._size  # every env has room for so many rows, or for more

    def add(
        self, ids: NDArray[np.intp], obs: Sequence[Any], rewards: NDArray[np.float64] | None
    ) -> None:
        """Open a row for each of ``ids``, which are distinct.

        Args:
            ids: ``(k,)``.
            obs: one array ``(k, ...)`` per leaf.
            rewards: ``(k,)`` or ``(k, m)``; None where all rows are of resets.
        """
        if not self._room:
            self._make_room()
        self._room -= 1
        rows = self._row[ids]
        for column, part in zip(self._obs, obs, strict=True):
            column.put(rows, part)
        if rewards is not None:
            if self._rewards is None:
                # Only now is it known whether a reward is a number or a vector.
                self._rewards = self._column(Leaf((), rewards.shape[1:], rewards.dtype))
            self._rewards.put(rows, rewards)

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store the actions, one array ``(k, ...)`` per leaf, and the extras, and close the rows.

        Raises:
            TypeError, ValueError: the extras are not those of the calls before.
        """
        rows = self._row[ids]
        self._extras.put(rows, extras)
        for column, part in zip(self._actions, actions, strict=True):
            column.put(rows, part)
        self._row[ids] = rows + 1

    def take(
        self, env_id: int
    ) -> tuple[list[Any], list[Any], NDArray[np.float64], dict[str, NDArray[Any]]]:
        """Take the episode of one env out, whose last row is open.

        Returns:
            Observations ``(L + 1, ...)`` and actions ``(L, ...)`` per leaf, rewards ``(L, ...)``,
            extras ``(L, ...)`` by name.
        """
        start, stop = int(self._start[env_id]), int(self._row[env_id])
        self._row[env_id] = start
        assert self._rewards is not None  # noqa: S101 - an episode ends with a step
        return (
            [column.take(env_id, start, stop + 1) for column in self._obs],
            [column.take(env_id, start, stop) for column in self._actions],
            self._rewards.take(env_id, start, stop + 1)[1:],
            {n: c.take(env_id, start, stop) for n, c in self._extras.columns.items()},
        )

    def clear(self) -> None:
        """Forget all running episodes."""
        self._row[:] = self._start
        for column in self._columns():
            column.clear()
        self._extras = _Extras(self._num_envs, self._size)

    def _columns(self) -> list[_Column]:
        rewards = [self._rewards] if self._rewards else []
        return [*self._obs, *self._actions, *self._extras.columns.values(), *rewards]

    def _column(self, leaf: Leaf) -> _Column:
        return _Column(leaf, self._num_envs, self._size)

    def _make_room(self) -> None:
        room = self._start + self._size - self._row
        for i in np.flatnonzero(room == 0).tolist():
            for column in self._columns():
                column.put_aside(i, int(self._start[i]), self._size)
            self._row[i] = self._start[i]
            room[i] = self._size
        self._room = int(room.min())


class LastRows:
    """The last observation of each env, and the action and extras that the policy returned for it.

    Args:
        num_envs: how many envs.
        obs: the leaves of an observation.
        action: the leaves of an action.
    """

    def __init__(self, num_envs: int, obs: Sequence[Leaf], action: Sequence[Leaf]) -> None:
        self._num_envs = num_envs
        self._obs = [_Column(leaf, num_envs, 1) for leaf in obs]
        self._actions = [_Column(leaf, num_envs, 1) for leaf in action]
        self._extras = _Extras(num_envs, 1)

    def add(
        self, ids: NDArray[np.intp], obs: Sequence[Any], rewards: NDArray[np.float64] | None
    ) -> None:
        """Store the observations, one array ``(k, ...)`` per leaf; the rewards are not stored."""
        del rewards
        for column, part in zip(self._obs, obs, strict=True):
            column.put(ids, part)

    def add_actions(
        self, ids: NDArray[np.intp], actions: Sequence[Any], extras: Mapping[str, NDArray[Any]]
    ) -> None:
        """Store the actions, one array ``(k, ...)`` per leaf, and the extras; errors as above."""
        self._extras.put(ids, extras)
        for column, part in zip(self._actions, actions, strict=True):
            column.put(ids, part)

    def clear(self) -> None:
        """Forget which extras there were."""
        self._extras = _Extras(self._num_envs, 1)

    def of(self, ids: NDArray[np.intp]) -> tuple[list[Any], list[Any], dict[str, NDArray[Any]]]:
        """The rows of ``ids``: observations and actions per leaf, extras by name; copies."""
        return (
            [column.rows(ids) for column in self._obs],
            [column.rows(ids) for column in self._actions],
            {name: column.rows(ids) for name, column in self._extras.columns.items()},
        )


class _Extras:
    """Columns by the names that the first call of the policy returned."""

    def __init__(self, num_envs: int, size: int) -> None:
        self._num_envs, self._size = num_envs, size
        self._is_empty = True
        self.columns: dict[str, _Column] = {}

    def put(self, rows: NDArray[np.intp], extras: Mapping[str, NDArray[Any]]) -> None:
        if self._is_empty:
            self._is_empty = False
            for name, values in extras.items():
                leaf = Leaf((), values.shape[1:], values.dtype)
                self.columns[name] = _Column(leaf, self._num_envs, self._size)
        if extras.keys() != self.columns.keys():
            raise ValueError(
                f"policy: extras have the keys {sorted(extras)}, but those before had"
                f" {sorted(self.columns)}"
            )
        for name, values in extras.items():
            self.columns[name].put_like_before(rows, values, f"policy: extras[{name!r}]")


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

    def put_like_before(self, rows: NDArray[np.intp], values: NDArray[Any], what: str) -> None:
        """Put rows that must be of the shape and of a dtype of the kind of those before."""
        leaf = self._leaf
        if values.shape[1:] != leaf.shape:
            raise ValueError(
                f"{what}: got rows of shape {values.shape[1:]}, but those before have {leaf.shape}"
            )
        if not np.can_cast(values.dtype, self._block.dtype, "same_kind"):
            raise TypeError(f"{what}: got dtype {values.dtype}, but before it was {leaf.dtype}")
        self._block[rows] = values

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
