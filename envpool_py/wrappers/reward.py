"""Normalise the rewards of a pool by the variance of the returns."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from envpool_py.pool.base import BaseVectorEnv
from envpool_py.wrappers import statistics
from envpool_py.wrappers.running_mean_std import RunningMeanStd
from envpool_py.wrappers.vector import VectorEnvWrapper


class NormalizeReward(VectorEnvWrapper):
    """Divides rewards by the standard deviation of the discounted returns, for partial batches too.

    Each env has its own return, ``return * gamma + reward``, which starts at 0 in each episode. The
    rows of a batch first update the statistics, then each reward is ``reward / sqrt(var +
    epsilon)``. On whole batches the result is that of Stable-Baselines3's ``VecNormalize`` without
    its limit: ``np.clip(reward, -10, 10)`` adds that. Rows of resets do not count. Of rewards that
    are vectors each component has its own statistics.

    Args:
        venv: the pool to wrap.
        gamma: the discount of the returns, from 0 to 1.
        epsilon: added to the variance, above 0.

    Attributes:
        return_rms: the statistics of the returns, a ``RunningMeanStd``.
        update_running_mean: whether steps update the statistics; may be set at any time.

    Raises:
        ValueError: ``gamma`` or ``epsilon`` is out of range.
    """

    def __init__(self, venv: BaseVectorEnv, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        super().__init__(venv)
        if not (0 <= gamma <= 1 and epsilon > 0):
            text = f"got {gamma} and {epsilon}"
            raise ValueError(f"gamma must be from 0 to 1 and epsilon above 0, {text}")
        self.gamma = gamma
        # As Stable-Baselines3's and Gymnasium's, it begins with a variance of 1 of little weight.
        self.return_rms = RunningMeanStd(clip_max=None, epsilon=epsilon, count=1e-4)
        self.update_running_mean = True
        self._returns = np.zeros(len(venv))

    def seed(self, seed: Any = None) -> list[list[int | None]]:
        """Seed and reset every env, as of the pool; the discounted returns begin at 0."""
        seeds = self.venv.seed(seed)
        self._returns[:] = 0
        return seeds

    def _returned(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        ids = self.venv.batch_ids
        if len(batch) == 2:  # of ``reset``: the episodes that these envs were in do not count
            self._returns[ids] = 0
            return batch
        obs, reward, terminated, truncated, infos = batch
        if (shape := reward.shape[1:]) != self._returns.shape[1:]:  # the first vectors
            self._returns = np.zeros((len(self._returns), *shape))
            rms = self.return_rms
            rms.mean, rms.var = np.full(shape, rms.mean), np.full(shape, rms.var)
        # An env may have such an info, too.
        told = [info.get("is_reset") is True for info in infos]
        is_reset = np.array(told, np.bool_) & (reward == 0).all(tuple(range(1, reward.ndim)))
        self._returns[ids[is_reset]] = 0
        stepped = ids[~is_reset]
        self._returns[stepped] = self._returns[stepped] * self.gamma + reward[~is_reset]
        if self.update_running_mean:
            self.return_rms.update(self._returns[stepped])
        self._returns[ids[terminated | truncated]] = 0
        reward = reward / np.sqrt(self.return_rms.var + self.return_rms.eps)
        return obs, reward, terminated, truncated, infos

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to an .npz file of plain arrays; OSError if that is impossible."""
        statistics.save(self.return_rms, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read statistics that ``save`` wrote; OSError, or ValueError for another file."""
        statistics.load(self.return_rms, None, path)
