"""One whole episode of one env."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class Episode:
    """One whole episode, from the observation of its reset to its end.

    ``L`` is the number of steps. The observations and actions of a Dict or Tuple space are a dict
    or tuple with one array per leaf; a leaf without a fixed shape is an object array.

    Attributes:
        env_id: which env of the pool.
        episode_id: 0 for the env's first episode, then 1, 2, ...; one that was left unfinished, by
            a loop left early or an error, has its number too.
        seed: the seed of the env's first episode. Later ones go on with the env's own stream.
        observations: ``(L + 1, ...)``: that of the reset, then of each step, the last included.
        actions: ``(L, ...)``, what the policy chose, in the dtype of the action space.
        rewards: ``(L,)`` float64; ``(L, m)`` where the env's reward is a vector.
        terminated: ``(L,)`` bool; False but for the last.
        truncated: ``(L,)`` bool; False but for the last.
        infos: the ``L + 1`` info dicts, that of the reset first; empty unless they were asked for.
    """

    env_id: int
    episode_id: int
    seed: int | None
    observations: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: tuple[dict[str, Any], ...] = ()

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
