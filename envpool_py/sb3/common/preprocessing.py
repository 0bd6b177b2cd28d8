"""Which observation spaces are images, and where their channels are."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np


def parts_of(space: gym.Space[Any]) -> dict[Any, Any]:
    """The parts of a Dict or Tuple space by key; none of another space."""
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, gym.spaces.Tuple) else {}


def is_image_space(
    observation_space: gym.Space[Any], check_channels: bool = False, normalized_image: bool = False
) -> bool:
    """Whether a space is certainly one of images: a Box of three dimensions, uint8, 0 to 255.

    ``check_channels`` requires 1, 3 or 4 channels, ``normalized_image`` no dtype and no bounds.
    """
    space = observation_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
        return False
    pixels = space.dtype == np.uint8 and (space.low == 0).all() and (space.high == 255).all()
    if not normalized_image and not pixels:
        return False
    channels = 0 if check_channels and is_image_space_channels_first(space) else -1
    return not check_channels or space.shape[channels] in (1, 3, 4)


def is_image_space_channels_first(observation_space: gym.spaces.Box) -> bool:
    """Whether the channels, taken to be the smallest of three dimensions, come first.

    It warns if the second dimension is the smallest, and takes the last one then.
    """
    shape = observation_space.shape
    smallest = shape.index(min(shape))
    if smallest == 1:
        text = "the second dimension is the smallest; the channels are taken to be the last"
        warnings.warn(f"images of shape {shape}: {text}", stacklevel=2)
    return smallest == 0
