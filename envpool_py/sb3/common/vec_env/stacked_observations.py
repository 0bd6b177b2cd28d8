"""``StackedObservations``: the last observations of every env in one array."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.sb3.common.preprocessing import is_image_space, is_image_space_channels_first
from envpool_py.sb3.common.vec_env.base_vec_env import require

ChannelsOrder = Literal["first", "last"] | None
ChannelsOrders = ChannelsOrder | Mapping[str, ChannelsOrder]


class StackedObservations:
    """Keeps the last ``n_stack`` observations of every env; a new episode starts on zeros.

    The observation space is a Box, or a Dict of Boxes; ``stacked_observation_space`` is that of the
    arrays that ``reset`` and ``update`` return. The newest observation is the last. They are
    stacked along the ``"first"`` or the ``"last"`` dimension, or, if ``channels_order`` is None,
    along the channels of images, else the last. For a Dict it may be a mapping from its keys.
    TypeError for another space, or a mapping for a Box; UnsuitableEnvError for another order.
    """

    def __init__(
        self,
        num_envs: int,
        n_stack: int,
        observation_space: gym.Space[Any],
        channels_order: ChannelsOrders = None,
    ) -> None:
        self.num_envs = num_envs
        self.n_stack = n_stack
        self.observation_space = space = observation_space
        self.stacked_observation_space: gym.Space[Any]
        self.sub_stacked_observations: dict[str, StackedObservations] = {}
        if isinstance(space, gym.spaces.Dict):
            orders = channels_order
            if not isinstance(orders, Mapping):
                orders = dict.fromkeys(space.spaces, orders)
            self.sub_stacked_observations = parts = {
                key: StackedObservations(num_envs, n_stack, part, orders[key])
                for key, part in space.items()
            }
            stacked = {key: part.stacked_observation_space for key, part in parts.items()}
            self.stacked_observation_space = gym.spaces.Dict(stacked)
            return
        if not isinstance(space, gym.spaces.Box):
            raise TypeError(f"observation_space is {space}, but frames are stacked of Box and Dict")
        if isinstance(channels_order, Mapping):
            raise TypeError("channels_order is a mapping, but the observation space is a Box")
        self.channels_first, self.stack_dimension, self.stacked_shape, self.repeat_axis = (
            self.compute_stacking(n_stack, space, channels_order)
        )
        low, high = (np.repeat(x, n_stack, self.repeat_axis) for x in (space.low, space.high))
        self.stacked_observation_space = gym.spaces.Box(low, high, dtype=space.dtype)
        self.stacked_obs = np.zeros((num_envs, *self.stacked_shape), space.dtype)

    @staticmethod
    def compute_stacking(
        n_stack: int, observation_space: gym.spaces.Box, channels_order: ChannelsOrder = None
    ) -> tuple[bool, int, tuple[int, ...], int]:
        """The dimension to stack along, with the arguments of the class.

        Return whether the channels come first, the dimension in a batch, the shape of the stack,
        and the dimension in one observation.
        """
        text = f"channels_order must be 'first', 'last' or None, got {channels_order!r}"
        require(channels_order in (None, "first", "last"), text)
        first = channels_order == "first"
        if channels_order is None and is_image_space(observation_space):
            first = is_image_space_channels_first(observation_space)
        axis = 0 if first else -1
        shape = list(observation_space.shape)
        shape[axis] *= n_stack
        return first, 1 if first else -1, tuple(shape), axis

    def reset(self, observation: Any) -> Any:
        """Start new stacks with the first observations, on zeros; the caller owns the result."""
        return self._push(observation, list(range(self.num_envs)))

    def update(
        self, observations: Any, dones: NDArray[np.bool_], infos: list[dict[str, Any]]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Add observations ``(num_envs, *shape)``, or a dict of such arrays.

        The stacks of envs that are done start again. In ``infos`` each ``terminal_observation`` is
        replaced by the last stack of its episode; one that is missing is warned of. Return the
        stacks, which the caller owns, and ``infos``.
        """
        done = np.flatnonzero(dones).tolist()
        for i in done:
            if "terminal_observation" in infos[i]:
                final = infos[i]["terminal_observation"]
                infos[i]["terminal_observation"] = self._last_stack(i, final)
            else:
                text = f"env {i}: done, but its info has no terminal_observation to stack"
                warnings.warn(text, stacklevel=3)
        return self._push(observations, done), infos

    def _last_stack(self, i: int, final: Any) -> Any:
        """The stack of env ``i`` with its last observation; nothing is pushed."""
        if parts := self.sub_stacked_observations:
            return {key: part._last_stack(i, final[key]) for key, part in parts.items()}  # noqa: SLF001
        return _appended(self.stacked_obs[i], final, self.repeat_axis)

    def _push(self, observations: Any, done: list[int]) -> Any:
        """Push observations onto the stacks, those of ``done`` on zeros; return copies."""
        if parts := self.sub_stacked_observations:
            return {key: part._push(observations[key], done) for key, part in parts.items()}  # noqa: SLF001
        self.stacked_obs[done] = 0
        stacks = _appended(self.stacked_obs, observations, self.stack_dimension)
        self.stacked_obs = stacks.astype(self.stacked_obs.dtype, copy=False)
        return self.stacked_obs.copy()


def _appended(stacks: NDArray[Any], newest: NDArray[Any], axis: int) -> NDArray[Any]:
    """The newest observations behind the stacks without the oldest ones."""
    older = np.split(stacks, [newest.shape[axis]], axis)[1]
    return np.concatenate((older, newest), axis)
