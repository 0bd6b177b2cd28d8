"""Stack the last observations of each env."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.env import spaces
from envpool_py.env.spaces import Array
from envpool_py.env_ids import IdArray
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.wrappers.vector import (
    VectorEnvWrapper,
    first_rows,
    is_last,
    map_columns,
    of_reset,
)


class FrameStackObservation(VectorEnvWrapper):
    """Observations are the last ``stack_size`` ones of the env, the newest last.

    Each env has its own stack, so partial batches are right too. A stack begins again with each
    episode, and ``final_obs`` of an automatic reset is the last stack of its episode. For Dict and
    Tuple spaces each Box is stacked. ``observation_space`` is that of the stacks.

    Args:
        venv: the pool to wrap.
        stack_size: the number of observations in a stack, 1 or more.
        padding_type: what precedes the first observation of an episode: ``"reset"``, that
            observation; ``"zero"``, zeros.
        axis: None: stacks have a new first axis, as with Gymnasium's wrapper of this name; else the
            axis of an observation along which they are joined, as with Stable-Baselines3's
            ``VecFrameStack``: -1 for images with their channels last, 0 for channels first.

    Raises:
        TypeError: an observation space has a part that is no Box.
        ValueError: ``stack_size`` is below 1, ``padding_type`` is another, or there is no such
            axis.
    """

    def __init__(
        self,
        venv: BaseVectorEnv,
        stack_size: int,
        *,
        padding_type: str = "reset",
        axis: int | None = None,
    ) -> None:
        super().__init__(venv)
        if stack_size < 1 or padding_type not in ("reset", "zero"):
            raise ValueError(
                f"got stack_size={stack_size} and padding_type={padding_type!r}; pass 1 or more,"
                " and 'reset' or 'zero'"
            )
        self._size, self._pads, self._axis = int(stack_size), padding_type == "reset", axis
        self._layout = spaces.layout_of(venv.single_observation_space)
        self.observation_space = [
            spaces.space_of(spaces.map_tree(self._stacked, spaces.parts_of(space)))
            for space in venv.observation_space
        ]
        self._stacks = spaces.map_tree(
            lambda leaf: np.zeros((len(venv), self._size, *leaf.shape), leaf.dtype), self._layout
        )
        self._seeded = np.zeros(len(venv), np.bool_)  # was reset, and its observation dropped

    def _stacked(self, space: Any) -> Any:
        if not isinstance(space, gym.spaces.Box):
            raise TypeError(f"observation_space: got {space}, but frames are stacked of a Box")
        if self._axis is not None and not -len(space.shape) <= self._axis < len(space.shape):
            raise ValueError(f"axis: got {self._axis}, but observations have shape {space.shape}")
        low, high = (
            self._joined(np.stack([x] * self._size)[None]) for x in (space.low, space.high)
        )
        return gym.spaces.Box(low[0], high[0], dtype=space.dtype.type)

    def seed(self, seed: Any = None) -> list[list[int | None]]:
        """Seed and reset every env; the next observation of each begins a stack."""
        self._seeded[:] = True
        return self.venv.seed(seed)

    def _returned(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        obs, *others, infos = batch
        ids = self.venv.batch_ids
        first = np.ones(len(ids), np.bool_) if of_reset(batch) else first_rows(infos)
        first |= self._seeded[ids]
        self._seeded[ids] = False
        for i, info in zip(ids.tolist(), infos, strict=True):
            if is_last(info):
                push = functools.partial(self._pushed, np.array([i]))
                final = spaces.map_tree(lambda value: np.asarray(value)[None], info["final_obs"])
                stack = spaces.map_tree(push, self._stacks, final)
                info["final_obs"] = spaces.take(spaces.map_tree(self._joined, stack), 0)

        def push_rows(newest: Array, stacks: Array) -> Array:
            stacks[ids[first]] = newest[first, None] if self._pads else 0
            stacks[ids] = pushed = self._pushed(ids, stacks, newest)
            return self._joined(pushed)

        return map_columns(push_rows, self._layout, obs, self._stacks), *others, infos

    @staticmethod
    def _pushed(ids: IdArray, stacks: Array, newest: Array) -> Array:
        """Return the stacks of these envs with the newest observation in the last place."""
        return np.concatenate((stacks[ids, 1:], newest[:, None]), axis=1)

    def _joined(self, stacks: Array) -> Array:
        """Return stacks ``(k, stack_size, ...)`` as the caller gets them."""
        if self._axis is None:
            return stacks
        axis = self._axis if self._axis < 0 else self._axis + 1
        return np.concatenate(list(stacks.swapaxes(0, 1)), axis=axis)
