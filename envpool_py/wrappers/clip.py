"""Clip the rewards of a pool, or the actions that it is given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from envpool_py.env.block import StepResult
from envpool_py.env_ids import Ids
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.wrappers.vector import VectorEnvWrapper, of_reset


class ClipReward(VectorEnvWrapper):
    """Clips rewards to ``min_reward`` and ``max_reward``.

    Each is a number, or one for each component; None: no limit. ValueError if both are None, or
    ``min_reward`` is above ``max_reward``.
    """

    def __init__(
        self,
        venv: BaseVectorEnv,
        min_reward: ArrayLike | None = None,
        max_reward: ArrayLike | None = None,
    ) -> None:
        super().__init__(venv)
        self._low: NDArray[Any] = np.asarray(-np.inf if min_reward is None else min_reward)
        self._high: NDArray[Any] = np.asarray(np.inf if max_reward is None else max_reward)
        if (min_reward is None and max_reward is None) or (self._low > self._high).any():
            raise ValueError(
                f"got min_reward={min_reward!r} and max_reward={max_reward!r}; pass at least one of"
                " them, and no min_reward above max_reward"
            )

    def _returned(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        if of_reset(batch):
            return batch
        return batch[0], np.clip(batch[1], self._low, self._high), *batch[2:]


class ClipAction(VectorEnvWrapper):
    """Clips actions to the bounds of a Box action space before the envs get them.

    ``action_space`` is then without bounds. TypeError if the action space of the pool is no Box,
    ValueError if two envs have different ones.
    """

    def __init__(self, venv: BaseVectorEnv) -> None:
        super().__init__(venv)
        space = venv.single_action_space
        if not isinstance(space, gym.spaces.Box):
            raise TypeError(f"action_space: got {space}, but ClipAction needs a Box")
        self._low, self._high = space.low, space.high
        free = gym.spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)
        self.action_space = [free] * len(venv)

    def step(self, action: Any, id: Ids = None, *, env_id: Ids = None) -> StepResult:  # noqa: A002
        """Step as ``BaseVectorEnv.step`` does, with the actions clipped."""
        return super().step(self._clipped(action), id, env_id=env_id)

    def send(self, action: Any, id: Ids = None, *, env_id: Ids = None) -> None:  # noqa: A002
        """Send as ``BaseVectorEnv.send`` does, with the actions clipped."""
        super().send(self._clipped(action), id, env_id=env_id)

    def _clipped(self, action: Any) -> Any:
        """Return the actions clipped; what are no actions unchanged, for the pool to refuse."""
        if isinstance(action, (list, tuple)) and any(one is None for one in action):
            return [one if one is None else np.clip(one, self._low, self._high) for one in action]
        try:
            array = np.asarray(action)
        except ValueError:  # rows of different lengths
            return action
        if array.dtype.kind not in "iuf" or array.shape[1:] != self._low.shape:
            return action
        return np.clip(array, self._low, self._high)
