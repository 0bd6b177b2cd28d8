"""The result of ``AsyncCollector.rollout``, and the buffer in which it is collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.collector.episode_buffer import OpenRows, stacked, widened
from envpool_py.env import spaces


@dataclass(frozen=True, eq=False, slots=True)
class Rollout:
    """Steps of every env under one policy, for on-policy learners.

    ``T`` is ``num_steps``, ``N`` the number of envs. The columns have the shape ``(T, N, ...)``:
    row ``t`` of column ``n`` is the ``t``-th step of env ``n``. The observations and actions of a
    Dict or Tuple space are a dict or tuple with one array per leaf; a leaf without a fixed shape is
    an object array.

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
        extras: the extras of the policy, by name.
        next_infos: the info dicts that came with the rewards, at the end of an episode its last;
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
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    next_infos: NDArray[np.object_] | None = None

    def __repr__(self) -> str:
        ended = int(np.count_nonzero(self.terminated | self.truncated))
        num_steps, num_envs = self.terminated.shape
        return f"<Rollout of {num_envs} envs: {num_steps * num_envs} steps, {ended} episodes ended>"


class RolloutBuffer(OpenRows):
    """The steps of one rollout, each in a slot: ``t * N + n``.

    The last ``N`` slots are of the rows at which the envs stop. ``obs`` and ``action`` are layouts.
    """

    def __init__(
        self, num_envs: int, num_steps: int, obs: Any, action: Any, *, keeps_infos: bool
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be 1 or more, got {num_steps}")
        infos, starts = spaces.Leaf((), (), None), spaces.Leaf((), (), np.dtype(bool))
        seen = [*spaces.leaves(obs), infos, starts]
        super().__init__(num_envs, seen, spaces.leaves(action), num_steps + 1)
        self._num_steps, self._total = num_steps, num_envs * num_steps
        self._layouts, self._keeps_infos = (obs, action), keeps_infos
        self._sent = np.zeros(num_envs, np.int64)
        # terminated, truncated, env_error
        self._flags = np.zeros((3, self._total + num_envs), np.bool_)
        self._rewards: NDArray[np.float64] | None = None
        self._final: dict[int, list[Any]] = {}  # last observations per leaf, by slot

    def open(self, ids: NDArray[np.intp], seen: Sequence[Any]) -> NDArray[np.bool_]:
        """Begin the next step of each of these envs; return which have one to make: ``(k,)``.

        ``seen``: the leaves of observations, infos, and whether they are the first of episodes.
        """
        self._row[ids] = slots = self._sent[ids] * self._num_envs + ids
        acting: NDArray[np.bool_] = slots < self._total
        self._sent[ids] += acting
        self.add(ids, seen)
        return acting

    def close(self, batch: Any) -> None:
        """End the steps whose rows a batch of the collector has."""
        steps = ~batch.begins
        slots, ends = self._row[batch.ids[steps]], batch.ends[steps]
        rewards = batch.rewards[steps]
        if self._rewards is None:
            self._rewards = np.zeros((self._flags.shape[1], *rewards.shape[1:]))
        if self._rewards.ndim < rewards.ndim:
            self._rewards = widened(self._rewards, rewards.shape[1:])
        self._rewards[slots] = rewards
        lost = batch.failed[steps]
        self._flags[:, slots] = batch.terminated[steps] & ends, batch.truncated[steps] & ends, lost
        if self._keeps_infos:
            self._seen[-2].put(slots, batch.seen[-1][steps])
        for k in np.flatnonzero(batch.ends).tolist():
            self._final[int(self._row[batch.ids[k]])] = [part[k] for part in batch.seen]

    def held(self) -> list[Any]:
        """What the next rollout opens with for all envs."""
        return [column.block[self._total :].copy() for column in self._seen]

    def finish(self) -> Rollout:
        assert self._rewards is not None  # noqa: S101 - each rollout has a step

        def shaped(column: NDArray[Any]) -> Any:
            shape = self._num_steps, self._num_envs, *column.shape[1:]
            return column[: self._total].reshape(shape)

        def joined(layout: Any, columns: Sequence[Any]) -> Any:
            return stacked(layout, spaces.join(layout, columns))

        def tree(layout: Any, columns: Sequence[Any]) -> Any:
            rows = [each.block[: self._total] for each in columns]
            return spaces.map_tree(shaped, joined(layout, rows))

        *obs, infos, starts = self._seen
        terminated, truncated, env_error = map(shaped, self._flags)
        finals = [self._final[slot] for slot in sorted(self._final)]
        of_obs, of_action = self._layouts
        return Rollout(
            obs=tree(of_obs, obs),
            actions=tree(of_action, self._actions),
            rewards=shaped(self._rewards),
            terminated=terminated,
            truncated=truncated,
            env_error=env_error,
            episode_starts=shaped(starts.block),
            final_obs=joined(of_obs, [[final[n] for final in finals] for n in range(len(obs))]),
            next_obs=joined(of_obs, self.held()),
            extras={name: shaped(each.block) for name, each in (self._extras or {}).items()},
            next_infos=shaped(infos.block) if self._keeps_infos else None,
        )
