"""``VecVideoRecorder``: videos of all envs, tiled, as mp4 files. Needs moviepy."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvObs,
    VecEnvStepReturn,
    VecEnvWrapper,
)


class VecVideoRecorder(VecEnvWrapper):
    """Records ``video_length`` steps whenever the trigger says so.

    A file is ``{name_prefix}-step-{first}-to-step-{first + video_length}.mp4`` and begins with the
    frame before its first step. Frames are written as they come; ``close`` ends a recording that is
    going on.

    Args:
        venv: a VecEnv whose render mode is ``"rgb_array"``.
        video_folder: where to; made if it is not there.
        record_video_trigger: told the number of steps made; returns whether to begin a recording.
            It is asked at resets and after steps while none is going on.
        video_length: how many steps.
        name_prefix: how file names begin.

    Attributes:
        video_path: the file of the latest recording.
        num_frames: of the latest recording.
        frames_per_sec: of the videos, the envs' ``render_fps``, else 30.

    Raises:
        UnsuitableEnvError: another render mode.
        ValueError: ``video_length`` is below 1.
        DependencyNotInstalled: moviepy is not there.
    """

    def __init__(
        self,
        venv: Any,
        video_folder: str,
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
    ) -> None:
        self._writer: Any = None
        super().__init__(venv)
        if venv.render_mode != "rgb_array":
            raise UnsuitableEnvError(
                f"VecVideoRecorder: render_mode is {venv.render_mode!r}, but 'rgb_array' is needed"
            )
        if video_length < 1:
            raise ValueError(f"video_length must be 1 or more, got {video_length}")
        _writer_class()
        with contextlib.suppress(AttributeError):
            self.metadata = venv.get_attr("metadata", [0])[0]
        self.frames_per_sec = self.metadata.get("render_fps", 30)
        self.record_video_trigger = record_video_trigger
        self.video_folder = str(Path(video_folder).resolve())
        Path(video_folder).mkdir(parents=True, exist_ok=True)
        self.video_length = video_length
        self.name_prefix = name_prefix
        self.step_id = 0
        self.num_frames = 0
        self.video_name = ""
        self.video_path = ""

    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations."""
        obs = self.venv.reset()
        if self.recording:
            self._capture()
        elif self.record_video_trigger(self.step_id):
            self._start()
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step begun; return ``obs, rewards, dones, infos``."""
        result: VecEnvStepReturn = self.venv.step_wait()
        self.step_id += 1
        if self.recording:
            self._capture()
            if self.num_frames > self.video_length:
                self._stop()
        elif self.record_video_trigger(self.step_id):
            self._start()
        return result

    def close(self) -> None:
        """End a recording that is going on, and close what is wrapped."""
        try:
            self._stop()
        finally:
            self.venv.close()

    @property
    def recording(self) -> bool:
        """Whether a recording is going on."""
        return self._writer is not None

    def _start(self) -> None:
        last = self.step_id + self.video_length
        self.video_name = f"{self.name_prefix}-step-{self.step_id}-to-step-{last}.mp4"
        self.video_path = str(Path(self.video_folder) / self.video_name)
        self.num_frames = 0
        self._capture()

    def _capture(self) -> None:
        frame = self.venv.render()
        if not isinstance(frame, np.ndarray):
            warnings.warn(
                f"{self.video_name}: render returned a {type(frame).__name__}, no array; the"
                " recording ends here",
                stacklevel=4,
            )
            self._stop()
            return
        if self._writer is None:
            height, width = frame.shape[:2]
            self._writer = _writer_class()(self.video_path, (width, height), self.frames_per_sec)
        self._writer.write_frame(np.ascontiguousarray(frame))
        self.num_frames += 1

    def _stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def __del__(self) -> None:
        if vars(self).get("_writer") is not None:
            warnings.warn(
                f"{self.video_name} was not ended by close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            self._stop()


def _writer_class() -> Any:
    try:
        module = importlib.import_module("moviepy.video.io.ffmpeg_writer")
    except ImportError as error:
        raise gym.error.DependencyNotInstalled(
            "VecVideoRecorder needs moviepy; pip install moviepy"
        ) from error
    return module.FFMPEG_VideoWriter
