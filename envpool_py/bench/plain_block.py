"""Memory for actions and rows, and the least that can be done with it; see ``drivers.ceiling``."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from envpool_py.ids import IdArray
from envpool_py.obs_writer import view
from envpool_py.spaces import Array

#: Observations, rewards, terminated, truncated, infos.
Rows: TypeAlias = tuple[Array, Array, Array, Array, Array]


class PlainBlock:
    """Actions and rows of all envs in shared memory.

    Raises:
        TypeError: observations or actions are not arrays.
    """

    def __init__(self, env_fns: list[Any], batches: list[Any]) -> None:
        env = env_fns[0]()
        space = env.observation_space
        env.close()
        if not isinstance(space, gym.spaces.Box) or not isinstance(batches[0], np.ndarray):
            raise TypeError("this one has memory for observations and actions that are arrays")
        num_envs = len(env_fns)
        self.actions = _shared(batches[0].shape, batches[0].dtype)
        self._obs = _shared((num_envs, *space.shape), space.dtype)
        self._rewards = _shared((num_envs,), np.dtype(np.float64))
        self._flags = _shared((num_envs,), np.dtype(np.int64))

    def stepping(self, share: Sequence[int], envs: Sequence[Any]) -> Callable[[Any], object]:
        """Steps all of a share by the actions that lie here, and keeps their rows."""
        step = self.stepping_some(share, envs)
        return lambda _: step(share)

    def stepping_some(
        self, share: Sequence[int], envs: Sequence[Any]
    ) -> Callable[[Sequence[int]], None]:
        """Steps those of a share whose ids it is told."""
        flat = self._obs.ndim == 2
        places = {i: view(self._obs[i]) if flat else self._obs[i] for i in share}
        whole: Any = slice(None) if flat else ...
        env_of = dict(zip(share, envs, strict=True))
        actions, rewards, flags = self.actions, view(self._rewards), view(self._flags)

        def step(ids: Sequence[int]) -> None:
            for i in ids:
                obs, reward, terminated, truncated, _ = env_of[i].step(actions[i])
                flags[i] = terminated + 2 * truncated
                if terminated or truncated:
                    obs, _ = env_of[i].reset()
                places[i][whole] = obs
                rewards[i] = reward

        return step

    def batch(self, *, copy: bool) -> Rows:
        """The rows of all envs, as a pool hands them out."""
        obs, rewards = self._obs, self._rewards
        if copy:
            obs, rewards = obs.copy(), rewards.copy()
        return obs, rewards, *_ends(self._flags), _infos(range(len(rewards)))

    def some(self, ids: IdArray) -> Rows:
        """A copy of some rows."""
        obs, rewards = self._obs.take(ids, 0), self._rewards[ids]
        return obs, rewards, *_ends(self._flags[ids]), _infos(ids.tolist())


def _ends(flags: Array) -> tuple[Array, Array]:
    return flags & 1 != 0, flags & 2 != 0


def _infos(ids: Sequence[int]) -> Array:
    return np.fromiter([{"env_id": i} for i in ids], dtype=object, count=len(ids))


def _shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.ndarray(shape, dtype, buffer=mmap.mmap(-1, max(size, 1)))
