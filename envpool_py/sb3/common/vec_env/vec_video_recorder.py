"""``VecVideoRecorder``: videos of all envs, tiled, as MP4 files. Needs imageio-ffmpeg."""

from __future__ import annotations

import contextlib
import subprocess
import warnings
from collections.abc import Callable
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import extras
from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper, require


class VecVideoRecorder(ResultWrapper):
    """Records ``video_length`` steps when the trigger returns True.

    The trigger gets the number of steps made, at resets and after steps without a recording; at a
    reset it ends a recording and begins another. A file is
    ``{name_prefix}-step-{first}-to-step-{first + video_length}.mp4`` in ``video_folder``, and
    begins with the frame before its first step. Frames are written at once; ``close`` ends a
    recording. Videos have the envs' ``render_fps``, else 30 frames per second. The attribute
    ``video_path`` is the file of the latest recording, which has ``num_frames``. UnsuitableEnvError
    if the render mode is not ``"rgb_array"``, MissingPackageError without imageio-ffmpeg.
    """

    _encoder: Any = None

    def __init__(
        self,
        venv: Any,
        video_folder: str,
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
    ) -> None:
        super().__init__(venv)
        text = f"VecVideoRecorder: render_mode is {venv.render_mode!r}, but 'rgb_array' is needed"
        require(venv.render_mode == "rgb_array", text)
        self._ffmpeg_path()
        with contextlib.suppress(AttributeError):
            self.metadata = venv.get_attr("metadata", [0])[0]
        self.frames_per_sec = self.metadata.get("render_fps", 30)
        self.record_video_trigger = record_video_trigger
        self.video_folder = str(Path(video_folder).resolve())
        Path(video_folder).mkdir(parents=True, exist_ok=True)
        self.video_length = video_length
        self.name_prefix = name_prefix
        self.step_id = self.num_frames = 0
        self.video_name = self.video_path = ""

    def _after_reset(self, obs: Any) -> Any:
        if self.record_video_trigger(self.step_id):
            self._stop()
            self._begin()
        return obs

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self.step_id += 1
        if self.recording:
            self._record()
        elif self.record_video_trigger(self.step_id):
            self._begin()
        if self.num_frames > self.video_length:
            self._stop()
        return obs, rewards, dones, infos

    @property
    def recording(self) -> bool:
        """Whether a recording has begun and not ended."""
        return self._encoder is not None

    def _begin(self) -> None:
        """Begin a recording with the frame before its first step."""
        last = self.step_id + self.video_length
        self.video_name = f"{self.name_prefix}-step-{self.step_id}-to-step-{last}.mp4"
        self.video_path = str(Path(self.video_folder) / self.video_name)
        self.num_frames = 0
        self._record()

    def _record(self) -> None:
        frame = self.venv.render()
        if not isinstance(frame, np.ndarray):
            text = f"render returned a {type(frame).__name__}, no array; the recording ends here"
            warnings.warn(f"{self.video_name}: {text}", stacklevel=5)
            self._stop()
            return
        if self._encoder is None:
            self._encoder = self._start_encoder(*frame.shape[:2])
            # It ends when no process has the pipe open: worker processes forked later close theirs.
            register_after_fork(self._encoder, lambda encoder: encoder.stdin.raw.close())
        with contextlib.suppress(BrokenPipeError):  # ``_stop`` says why the encoder has ended
            self._encoder.stdin.write(np.ascontiguousarray(frame))
        self.num_frames += 1

    def _start_encoder(self, height: int, width: int) -> Any:
        colours = "yuv420p" if width % 2 == height % 2 == 0 else "yuv444p"
        options = (
            f"-y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height}"
            f" -r {self.frames_per_sec} -i - -c:v libx264 -pix_fmt {colours}"
        )
        return subprocess.Popen(  # noqa: S603 - these options
            [self._ffmpeg_path(), *options.split(), f"file:{self.video_path}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C does not end it
        )

    @staticmethod
    def _ffmpeg_path() -> Any:
        needed = f"videos need imageio-ffmpeg; {extras.hint('video')}"
        return extras.load("imageio_ffmpeg", needed).get_ffmpeg_exe()

    def _stop(self) -> None:
        """Finish the file, if there is one; OSError with the reason if it cannot be written."""
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            _, reason = encoder.communicate()
            if encoder.returncode:
                raise OSError(f"{self.video_path}: {reason.decode()}")

    def close(self) -> None:
        """Finish the video, and close what is wrapped."""
        with contextlib.closing(self.venv):
            self._stop()

    def __del__(self) -> None:
        if self._encoder is not None:
            text = f"{self.video_path} was not ended by close()"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            self._stop()
