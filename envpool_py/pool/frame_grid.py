"""Tile the frames of many envs into one image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import Array
from envpool_py.env_ids import Ids, one_of, resolve


def render_grid(
    pool: Any, id: Ids = None, *, env_id: Ids = None, **kwargs: Any
) -> NDArray[np.uint8]:
    """Return the frames of these envs as one image, tiled in rows.

    The image is uint8 ``(rows * height, columns * width, 3)``, as near to a square as the number of
    envs allows; a smaller frame is padded with 0. ``**kwargs`` are those of ``render``.

    Raises:
        ValueError: a frame is not an image ``(height, width, 3)``; the envs need
            ``render_mode="rgb_array"``.
    """
    env_ids = resolve(one_of(id, env_id), len(pool))
    frames = pool.render(env_ids, **kwargs)
    if not len(frames):
        raise ValueError("render: got no env ids; an image needs at least one env")
    for i, frame in zip(env_ids, frames, strict=True):
        if getattr(frame, "ndim", 0) != 3 or frame.shape[2] != 3:
            what = getattr(frame, "shape", None) or type(frame).__name__
            raise ValueError(
                f"env {i}: render returned {what}, but an image (height, width, 3) is needed;"
                ' make the env with render_mode="rgb_array"'
            )
    return grid(frames).astype(np.uint8, copy=False)


def grid(frames: Sequence[Array] | Array) -> Array:
    """Tile frames ``(height, width, channels)`` in one image of the first one's dtype."""
    height, width, channels = np.max([frame.shape for frame in frames], axis=0).tolist()
    rows = math.ceil(math.sqrt(len(frames)))
    columns = math.ceil(len(frames) / rows)
    image = np.zeros((rows, height, columns, width, channels), frames[0].dtype)
    for place, frame in enumerate(frames):
        row, column = divmod(place, columns)
        image[row, : frame.shape[0], column, : frame.shape[1]] = frame
    return image.reshape(rows * height, columns * width, channels)
