"""``StackedObservations``: the last few observations of every env, as one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.sb3.common.preprocessing import is_image_space, is_image_space_channels_first

_ORDERS = ("first", "last")


class StackedObservations:
    """Keeps the last ``n_stack`` observations of every env, and begins anew where one is done.

    Args:
        num_envs: the number of envs.
        n_stack: how many observations are stacked, the newest last.
        observation_space: a Box, or a Dict of them.
        channels_order: ``"first"``: along the first dimension; ``"last"``: along the last; None:
            where the channels are, for images, else the last. For a Dict space also a mapping from
            its keys.

    Attributes:
        stacked_observation_space: of what ``reset`` and ``update`` return.

    Raises:
        TypeError: another space, or a mapping for a Box.
        ValueError: another order, or ``n_stack`` below 1.
    """

    def __init__(
        self,
        num_envs: int,
        n_stack: int,
        observation_space: gym.Space[Any],
        channels_order: str | Mapping[str, str | None] | None = None,
    ) -> None:
        self.n_stack = n_stack
        self.observation_space = observation_space
        self.sub_stacked_observations: dict[str, StackedObservations] = {}
        self.stacked_observation_space: gym.Space[Any]
        if isinstance(observation_space, gym.spaces.Dict):
            for key, part in observation_space.items():
                order = (
                    channels_order[key] if isinstance(channels_order, Mapping) else channels_order
                )
                self.sub_stacked_observations[key] = StackedObservations(
                    num_envs, n_stack, part, order
                )
            self.stacked_observation_space = gym.spaces.Dict(
                {
                    key: part.stacked_observation_space
                    for key, part in self.sub_stacked_observations.items()
                }
            )
            return
        if not isinstance(observation_space, gym.spaces.Box):
            raise TypeError(
                f"observation_space is {observation_space}, but frames are stacked of Box and Dict"
            )
        if isinstance(channels_order, Mapping):
            raise TypeError("channels_order is a mapping, but the observation space is a Box")
        self.channels_first, self.stack_dimension, self.stacked_shape, self.repeat_axis = (
            self.compute_stacking(n_stack, observation_space, channels_order)
        )
        self.stacked_observation_space = gym.spaces.Box(
            np.repeat(observation_space.low, n_stack, axis=self.repeat_axis),
            np.repeat(observation_space.high, n_stack, axis=self.repeat_axis),
            dtype=observation_space.dtype,
        )
        self.stacked_obs: NDArray[Any] = np.zeros(
            (num_envs, *self.stacked_shape), dtype=observation_space.dtype
        )

    @staticmethod
    def compute_stacking(
        n_stack: int, observation_space: gym.spaces.Box, channels_order: str | None = None
    ) -> tuple[bool, int, tuple[int, ...], int]:
        """Along which dimension to stack.

        Args:
            n_stack: how many observations are stacked.
            observation_space: of one.
            channels_order: ``"first"``, ``"last"`` or None.

        Returns:
            Whether the channels come first; the dimension in a batch; the shape of the stack; the
            dimension in one observation.

        Raises:
            ValueError: another order, or ``n_stack`` below 1.
        """
        if n_stack < 1:
            raise ValueError(f"n_stack must be 1 or more, got {n_stack}")
        if channels_order not in (None, *_ORDERS):
            raise ValueError(
                f"channels_order must be 'first', 'last' or None, got {channels_order!r}"
            )
        if channels_order is None:
            first = is_image_space(observation_space) and is_image_space_channels_first(
                observation_space
            )
        else:
            first = channels_order == "first"
        axis = 0 if first else -1
        shape = list(observation_space.shape)
        shape[axis] *= n_stack
        return first, 1 if first else -1, tuple(shape), axis

    def reset(self, observation: Any) -> Any:
        """Begin anew with the first observations.

        Args:
            observation: ``(num_envs, *shape)``, or a dict of such arrays.

        Returns:
            Stacks of zeros and the observation; the caller's own.
        """
        if self.sub_stacked_observations:
            return {
                key: part.reset(observation[key])
                for key, part in self.sub_stacked_observations.items()
            }
        self.stacked_obs = np.zeros_like(self.stacked_obs)
        return self._pushed(observation)

    def update(
        self, observations: Any, dones: NDArray[np.bool_], infos: list[dict[str, Any]]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Add the observations of a step.

        Args:
            observations: ``(num_envs, *shape)``, or a dict of such arrays.
            dones: which envs are done: their stacks begin anew.
            infos: ``terminal_observation`` is put on top of the stack of its episode.

        Returns:
            The stacks, the caller's own, and ``infos``.

        Warns:
            UserWarning: an env is done, and its info has no ``terminal_observation``.
        """
        done = np.flatnonzero(dones).tolist()
        finals: dict[int, Any] = {}
        for i in done:
            if "terminal_observation" in infos[i]:
                finals[i] = infos[i]["terminal_observation"]
            else:
                warnings.warn(
                    f"env {i}: done, but its info has no terminal_observation to stack",
                    stacklevel=3,
                )
        stacks, stacked_finals = self._update(observations, done, finals)
        for i, final in stacked_finals.items():
            infos[i]["terminal_observation"] = final
        return stacks, infos

    def _update(
        self, observations: Any, done: list[int], finals: dict[int, Any]
    ) -> tuple[Any, dict[int, Any]]:
        if self.sub_stacked_observations:
            stacks = {}
            tops: dict[int, dict[str, Any]] = {i: {} for i in finals}
            for key, part in self.sub_stacked_observations.items():
                stacks[key], own = part._update(  # noqa: SLF001 - of the same class
                    observations[key], done, {i: final[key] for i, final in finals.items()}
                )
                for i, top in own.items():
                    tops[i][key] = top
            return stacks, tops
        new = observations.shape[self.stack_dimension]
        stacked_finals = {
            i: np.concatenate((self._older(self.stacked_obs[i], new), final), self.repeat_axis)
            for i, final in finals.items()
        }
        self.stacked_obs[done] = 0
        return self._pushed(observations), stacked_finals

    def _pushed(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Push the newest observations onto the stacks; return a copy of these."""
        new = observations.shape[self.stack_dimension]
        self.stacked_obs = np.concatenate(
            (self._older(self.stacked_obs, new, batch=True), observations),
            axis=self.stack_dimension,
            dtype=self.stacked_obs.dtype,
            casting="unsafe",
        )
        return self.stacked_obs.copy()

    def _older(self, stack: NDArray[Any], new: int, *, batch: bool = False) -> NDArray[Any]:
        """What stays of a stack, or of a batch of them, when ``new`` channels are added."""
        if not self.channels_first:
            return stack[..., new:]
        return stack[:, new:] if batch else stack[new:]
