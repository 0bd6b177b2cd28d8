"""Encode images into a video file with ffmpeg, which imageio-ffmpeg installs."""

from __future__ import annotations

import contextlib
import subprocess
import warnings
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py import extras


def ffmpeg() -> Any:
    """Return the path of ffmpeg; MissingPackageError without imageio-ffmpeg."""
    needed = f"videos need imageio-ffmpeg; {extras.hint('video')}"
    return extras.load("imageio_ffmpeg", needed).get_ffmpeg_exe()


class VideoFileMixin:
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
