"""``VecVideoRecorder``: videos of all envs, tiled, as MP4 files. Needs imageio-ffmpeg."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import video_encoder
from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper, require
from envpool_py.video_encoder import VideoFileMixin


class VecVideoRecorder(VideoFileMixin, ResultWrapper):
    """Records ``video_length`` steps when the trigger returns True.

    The trigger gets the number of steps made, at resets and after steps without a recording. A file
    is ``{name_prefix}-step-{first}-to-step-{first + video_length}.mp4`` in ``video_folder``, and
    begins with the frame before its first step. Frames are written at once; ``close`` ends a
    recording. Videos have the envs' ``render_fps``, else 30 frames per second. The attribute
    ``video_path`` is the file of the latest recording, which has ``num_frames``. UnsuitableEnvError
    if the render mode is not ``"rgb_array"``, MissingPackageError without imageio-ffmpeg.
    """

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
        video_encoder.ffmpeg()
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
        self._record()
        return obs

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self.step_id += 1
        self._record()
        if self.num_frames > self.video_length:
            self._stop()
        return obs, rewards, dones, infos

    @property
    def recording(self) -> bool:
        """Whether a recording has begun and not ended."""
        return self._encoder is not None

    def _record(self) -> None:
        """Write a frame of the recording, or of one that begins now."""
        if not self.recording:
            if not self.record_video_trigger(self.step_id):
                return
            last = self.step_id + self.video_length
            self.video_name = f"{self.name_prefix}-step-{self.step_id}-to-step-{last}.mp4"
            self.video_path = str(Path(self.video_folder) / self.video_name)
            self.num_frames = 0
        frame = self.venv.render()
        if not isinstance(frame, np.ndarray):
            text = f"render returned a {type(frame).__name__}, no array; the recording ends here"
            warnings.warn(f"{self.video_name}: {text}", stacklevel=4)
            self._stop()
            return
        self._write(frame, self.frames_per_sec)
        self.num_frames += 1
