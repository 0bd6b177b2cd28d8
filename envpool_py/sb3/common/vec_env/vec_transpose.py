"""``VecTransposeImage``: images with their channels first, as torch's convolutions take them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import space_of
from envpool_py.sb3.common.preprocessing import is_image_space, is_image_space_channels_first
from envpool_py.sb3.common.vec_env.base_vec_env import ObservationWrapper, require


class VecTransposeImage(ObservationWrapper):
    """Images ``(height, width, channels)`` become ``(channels, height, width)``.

    In Dict observations only the entries that are images change. Terminal observations change too.
    With ``skip`` nothing changes. UnsuitableEnvError if the observations are no images, or have
    their channels first already.
    """

    def __init__(self, venv: Any, skip: bool = False) -> None:
        space = venv.observation_space
        text = f"VecTransposeImage: observation_space is {space}, but images or a Dict are needed"
        require(is_image_space(space) or isinstance(space, gym.spaces.Dict), text)
        self.skip = skip
        self.image_space_keys: list[str] = []
        if not skip and isinstance(space, gym.spaces.Dict):
            self.image_space_keys = [key for key, part in space.items() if is_image_space(part)]
            images = {key: self.transpose_space(space[key], key) for key in self.image_space_keys}
            space = space_of({**space.spaces, **images})  # in this order, by which models go
        elif not skip:
            space = self.transpose_space(space)
        super().__init__(venv, observation_space=space)

    @staticmethod
    def transpose_space(observation_space: Any, key: str = "") -> gym.spaces.Box:
        """The space of the images with their channels first; ``key`` names it in messages."""
        name = f"observation space {key}".rstrip()
        space = observation_space
        require(is_image_space(space), f"{name}: {space} is not one of images")
        text = f"{name}: images of shape {space.shape} have their channels first, not last"
        require(not is_image_space_channels_first(space), text)
        height, width, channels = space.shape
        return gym.spaces.Box(0, 255, (channels, height, width), space.dtype.type)

    @staticmethod
    def transpose_image(image: NDArray[Any]) -> NDArray[Any]:
        """A view ``(..., channels, height, width)`` of one image or many, channels last."""
        return np.moveaxis(image, -1, -3)

    def transpose_observations(self, observations: Any) -> Any:
        """One observation, or a batch, with its images transposed."""
        if isinstance(observations, dict):
            images = {key: self.transpose_image(observations[key]) for key in self.image_space_keys}
            return {**observations, **images}
        return observations if self.skip else self.transpose_image(observations)

    observations = transpose_observations
