"""Tile the frames of many envs into one image, and write images to a video file."""

from __future__ import annotations

import contextlib
import math
import subprocess
import warnings
from collections.abc import Sequence
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py import ids as ids_
from envpool_py import packages
from envpool_py.env.spaces import Array
from envpool_py.ids import Ids


def render_grid(pool: Any, id: Ids = None, **kwargs: Any) -> NDArray[np.uint8]:  # noqa: A002
    """Return the frames of these envs as one image, tiled in rows.

    The image is uint8 ``(rows * height, columns * width, 3)``, as near to a square as the number of
    envs allows; a smaller frame is padded with 0. ``**kwargs`` are those of ``render``.

    Raises:
        ValueError: a frame is not an image ``(height, width, 3)``; the envs need
            ``render_mode="rgb_array"``.
    """
    env_ids = ids_.resolve(id, len(pool))
    return tile(pool.render(env_ids, **kwargs), env_ids)


def tile(frames: Sequence[Any], env_ids: Sequence[int] | Array) -> NDArray[np.uint8]:
    """Tile the frames of these envs in one image, as ``render_grid`` does."""
    if not len(frames):
        raise ValueError("render: got no env ids; an image needs at least one env")
    for env_id, frame in zip(env_ids, frames, strict=True):
        if getattr(frame, "ndim", 0) != 3 or frame.shape[2] != 3:
            what = getattr(frame, "shape", None) or type(frame).__name__
            raise ValueError(
                f"env {env_id}: render returned {what}, but an image (height, width, 3) is needed;"
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


def ffmpeg() -> Any:
    """Return the path of ffmpeg; MissingPackageError without imageio-ffmpeg."""
    needed = "videos need imageio-ffmpeg; pip install envpool-py[video]"
    return packages.load("imageio_ffmpeg", needed).get_ffmpeg_exe()


class VideoWrapper:
    """What wrappers share that write a video of a pool or of a VecEnv; a mixin."""

    venv: Any
    video_path: Any
    _encoder: Any = None

    def close(self) -> None:
        """Finish the video, and close what is wrapped."""
        with contextlib.closing(self.venv):
            self._stop()

    def _write(self, frame: NDArray[np.uint8], fps: float) -> None:
        """Add a frame, uint8 ``(height, width, 3)``; the first one begins the file."""
        if self._encoder is None:
            self._encoder = _start_encoder(self.video_path, fps, *frame.shape[:2])
            # It ends when no process has the pipe open: worker processes forked later close theirs.
            register_after_fork(self._encoder, lambda encoder: encoder.stdin.raw.close())
        with contextlib.suppress(BrokenPipeError):  # ``_stop`` says why the encoder has ended
            self._encoder.stdin.write(np.ascontiguousarray(frame))

    def _stop(self) -> None:
        """Finish the file, if there is one; OSError with the reason if it cannot be written."""
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            _, reason = encoder.communicate()
            if encoder.returncode:
                raise OSError(f"{self.video_path}: {reason.decode()}")

    def __del__(self) -> None:
        if self._encoder is not None:
            text = f"{self.video_path} was not ended by close()"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._stop()


def _start_encoder(path: str | Path, fps: float, height: int, width: int) -> Any:
    colours = "yuv420p" if width % 2 == height % 2 == 0 else "yuv444p"
    options = (
        f"-y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -"
        f" -c:v libx264 -pix_fmt {colours}"
    )
    return subprocess.Popen(  # noqa: S603 - these options
        [ffmpeg(), *options.split(), f"file:{path}"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C does not end it
    )
