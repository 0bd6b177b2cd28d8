"""The result of ``AsyncCollector.rollout``, and the buffer in which it is collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py.collector.buffer import OpenRows
from envpool_py.env.spaces import Leaf, stack_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MODES = ("equal", "variable")


@dataclass(frozen=True, eq=False, slots=True)
class Rollout:
    """Steps of every env under one policy, for on-policy learners.

    ``T`` is ``num_steps``, ``N`` the number of envs. The columns have the shape ``(T, N, ...)``:
    row ``t`` of column ``n`` is the ``t``-th step of env ``n``. With ``mode="variable"`` they have
    ``(T * N, ...)``: all steps of env 0 in their order, then those of env 1, ...; ``lengths`` says
    how many. The observations and actions of a Dict or Tuple space are a dict or tuple with one
    array per leaf; a leaf without a fixed shape is an object array.

    Attributes:
        obs: the observations that the policy got.
        actions: the actions of the policy, in the dtype of the action space.
        rewards: float64; ``(T, N, m)`` where the env's reward is a vector.
        terminated: bool: the episode ended with this step, and no reward follows.
        truncated: bool: the episode was cut off; bootstrap from its row of ``final_obs``.
        env_error: bool: the env failed in this step and was recreated (``on_error="restart"``).
            The step is truncated, its reward is 0, its row of ``final_obs`` the last observation
            that is known.
        episode_starts: bool: ``obs`` is the first observation of an episode.
        final_obs: ``(E, ...)``, the last observations of the ``E`` episodes that ended, in the
            order of ``np.nonzero(terminated | truncated)``.
        next_obs: ``(N, ...)``, the observation after the last step of each env, from which the next
            rollout continues; after the end of an episode the first one of the next.
        lengths: int ``(N,)``, the number of steps of each env; ``T`` with ``mode="equal"``.
        extras: the extras of the policy, by name.
        infos: the info dicts that came with the rewards, at the end of an episode its last one;
            None without ``keep_infos``.
    """

    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    env_error: NDArray[np.bool_]
    episode_starts: NDArray[np.bool_]
    final_obs: Any
    next_obs: Any
    lengths: NDArray[np.int64]
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    infos: NDArray[np.object_] | None = None

    def __repr__(self) -> str:
        ended = int(np.count_nonzero(self.terminated | self.truncated))
        steps, num_envs = int(self.lengths.sum()), len(self.lengths)
        return f"<Rollout of {num_envs} envs: {steps} steps, {ended} episodes ended>"


class RolloutBuffer(OpenRows):
    """The steps of one rollout, each in a slot: ``t * N + n`` if equal, else in order of sending.

    Args:
        num_envs: how many envs.
        num_steps: of each env, or on average.
        obs: the leaves of an observation.
        action: the leaves of an action.
        equal: whether each env makes ``num_steps`` steps, or all together ``num_envs`` times that.
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int,
        obs: Sequence[Leaf],
        action: Sequence[Leaf],
        *,
        equal: bool,
    ) -> None:
        super().__init__(num_envs, obs, action, num_steps)
        self._total, self._equal = num_envs * num_steps, equal
        self._leaves = list(obs), list(action)
        self._sent = np.zeros(num_envs, np.int64)
        self._env = np.empty(self._total, np.intp)  # of each slot
        # terminated, truncated, env_error, episode_starts
        self._flags = np.zeros((4, self._total), np.bool_)
        self._infos = np.empty(self._total, object)
        self._rewards: NDArray[np.float64] | None = None
        self._final: dict[int, list[Any]] = {}  # last observations per leaf, by slot

    def may_act(self, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these envs, the first ones first, have another step to make: ``(k,)``."""
        if self._equal:
            more: NDArray[np.bool_] = self._sent[ids] < self._size
        else:
            more = np.arange(len(ids)) < self._total - self._sent.sum()
        return more

    def open(self, ids: NDArray[np.intp], obs: Sequence[Any], starts: NDArray[np.bool_]) -> None:
        """Begin a step of each of these envs, which may act, from an observation per leaf."""
        if self._equal:
            slots = self._sent[ids] * self._num_envs + ids
        else:
            slots = self._sent.sum() + np.arange(len(ids))
        self._row[ids], self._env[slots], self._flags[3, slots] = slots, ids, starts
        self._sent[ids] += 1
        self.add(ids, obs, None)

    def close(
        self,
        ids: NDArray[np.intp],
        rewards: NDArray[np.float64],
        flags: Sequence[Any],
        final: Sequence[tuple[int, list[Any]]],
        infos: NDArray[np.object_] | None,
    ) -> None:
        """End the step of each of these envs.

        Args:
            ids: ``(k,)``.
            rewards: ``(k,)`` or ``(k, m)``.
            flags: terminated, truncated and env_error, each ``(k,)``.
            final: env id and last observation per leaf of the episodes that ended.
            infos: ``(k,)``, or None.
        """
        slots = self._row[ids]
        if self._rewards is None:
            self._rewards = np.zeros((self._total, *rewards.shape[1:]))
        self._rewards[slots] = rewards
        self._flags[:3, slots] = flags
        if infos is not None:
            self._infos[slots] = infos
        self._final.update((int(self._row[i]), obs) for i, obs in final)

    def columns(self, *, infos: bool) -> dict[str, Any]:
        """All columns by the names of a ``Rollout``; observations and actions per leaf."""
        assert self._rewards is not None  # noqa: S101 - each rollout has a step
        order = np.argsort(self._env, kind="stable")
        rows: Any = slice(None) if self._equal else order
        shape = (self._size, self._num_envs) if self._equal else (self._total,)

        def shaped(column: NDArray[Any]) -> Any:
            return column.reshape(*shape, *column.shape[1:])

        def stacked(leaf: Leaf, column: Any) -> Any:
            return column if leaf.dtype is not None else stack_objects(list(column), leaf)

        def of(leaves: list[Leaf], columns: list[Any]) -> list[Any]:
            pairs = zip(leaves, columns, strict=True)
            return [shaped(stacked(leaf, column.rows(rows))) for leaf, column in pairs]

        terminated, truncated, env_error, starts = (shaped(flag[rows]) for flag in self._flags)
        ended = range(self._total) if self._equal else order.tolist()
        finals = [self._final[slot] for slot in ended if slot in self._final]
        return {
            "obs": of(self._leaves[0], self._obs),
            "actions": of(self._leaves[1], self._actions),
            "rewards": shaped(self._rewards[rows]),
            "terminated": terminated,
            "truncated": truncated,
            "env_error": env_error,
            "episode_starts": starts,
            "final_obs": [
                _stack([obs[n] for obs in finals], leaf) for n, leaf in enumerate(self._leaves[0])
            ],
            "lengths": self._sent,
            "extras": {name: shaped(c.rows(rows)) for name, c in (self._extras or {}).items()},
            "infos": shaped(self._infos[rows]) if infos else None,
        }


def _stack(values: list[Any], leaf: Leaf) -> NDArray[Any]:
    """The values of one leaf as an array ``(E, ...)``."""
    if leaf.dtype is None:
        return stack_objects(values, leaf)
    return np.asarray(values, leaf.dtype).reshape(len(values), *leaf.shape)
