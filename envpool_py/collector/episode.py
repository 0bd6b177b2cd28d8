"""The results of the collector: whole episodes, and batches of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import map_tree
from envpool_py.options import INTEGER


@dataclass(frozen=True, eq=False, slots=True)
class Episode:
    """One whole episode, from the observation of its reset to its end.

    ``L`` is the number of steps. The observations and actions of a Dict or Tuple space are a dict
    or tuple with one array per leaf; a leaf without a fixed shape is an object array.

    Attributes:
        env_id: the id of the env.
        episode_id: 0 for the env's first episode, then 1, 2, ...; an episode that was not finished,
            because a loop was left early or an env failed, counts too.
        env_seed: the seed of the env's first episode here; with the pool's ``episode_seeds``, the
            seed from which the seeds of all its episodes are computed. None: no seed was given.
        seed: the seed of this episode's reset; None: no seed, the episode continues the env's own
            random stream.
        obs: ``(L + 1, ...)``: of the reset, then of each step, the last one included.
        actions: ``(L, ...)``, the actions of the policy, in the dtype of the action space.
        rewards: ``(L,)`` float64; ``(L, m)`` where the env's reward is a vector.
        terminated: ``(L,)`` bool; False but for the last.
        truncated: ``(L,)`` bool; False but for the last.
        extras: the extras of the policy, by name: arrays ``(L, ...)``.
        infos: the ``L + 1`` info dicts, that of the reset first; empty without ``keep_infos``.
        failed: whether the env failed in the last step, and the pool restarted it.
    """

    env_id: int
    episode_id: int
    env_seed: int | None
    seed: int | None
    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    infos: tuple[dict[str, Any], ...] = ()
    failed: bool = False

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def total_reward(self) -> Any:
        """The sum of the rewards (not discounted): a float, or ``(m,)`` for vector rewards."""
        total = self.rewards.sum(axis=0)
        return total if total.ndim else float(total)

    def __repr__(self) -> str:
        return (
            f"Episode(env_id={self.env_id}, episode_id={self.episode_id}, seed={self.seed},"
            f" length={len(self)}, total_reward={self.total_reward})"
        )


@dataclass(frozen=True, eq=False, slots=True)
class Transitions:
    """``T`` transitions; observations and actions have the form of those of an ``Episode``.

    The rows of one env are in the order of its steps. ``next_obs`` is the observation of the step:
    at the end of an episode its last one, never that of the next reset. ``len(batch)`` is
    ``T``; ``batch[rows]``, with a slice, an index array or a mask, is a batch of those rows.

    Attributes:
        obs: ``(T, ...)``, the observation that the policy got.
        actions: ``(T, ...)``, the action of the policy.
        rewards: ``(T,)`` float64; ``(T, m)`` where the env's reward is a vector.
        terminated: ``(T,)`` bool: no reward follows; do not bootstrap.
        truncated: ``(T,)`` bool: the episode was truncated; bootstrap from ``next_obs``.
        next_obs: ``(T, ...)``.
        env_id: ``(T,)`` int.
        episode_id: ``(T,)`` int, as that of an ``Episode``.
        extras: the extras of the policy, by name: arrays ``(T, ...)``.
        infos: ``(T,)`` info dicts that came with ``obs``; None unless infos are kept.
        next_infos: ``(T,)`` info dicts that came with ``next_obs``; None unless infos are kept.
    """

    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_obs: Any
    env_id: NDArray[np.int64]
    episode_id: NDArray[np.int64]
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    infos: NDArray[np.object_] | None = None
    next_infos: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def __getitem__(self, rows: Any) -> Transitions:
        if isinstance(rows, INTEGER):
            text = f"rows must be a slice, an index array or a mask, got {rows!r}"
            raise TypeError(f"{text}; [[{rows}]] is a batch of this one")
        return self._map(itemgetter(rows))

    def join(self, *others: Transitions) -> Transitions:
        """One batch of these transitions, followed by those of the others."""
        return self._map(lambda *parts: np.concatenate(parts), *others)

    def _map(self, function: Callable[..., Any], *others: Transitions) -> Transitions:
        columns: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            first, *rest = (getattr(one, name) for one in (self, *others))
            columns[name] = None if first is None else map_tree(function, first, *rest)
        return Transitions(**columns)

    def __repr__(self) -> str:
        return f"<{len(self)} transitions>"
