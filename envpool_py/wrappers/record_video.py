"""Record videos of the envs of a pool, tiled into one image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import env_ids as ids_
from envpool_py import video_encoder
from envpool_py.env.spaces import Array
from envpool_py.env_ids import Ids
from envpool_py.pool import frame_grid
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.video_encoder import VideoFileMixin
from envpool_py.wrappers.vector import VectorEnvWrapper, is_last


class RecordVideo(VideoFileMixin, VectorEnvWrapper):
    """Write MP4 files with the frames of some envs, tiled into one image.

    The envs' ``render_mode`` is ``"rgb_array"``. A video begins with the row for which a trigger
    returns True, and ends with the episode of the first recorded env, which a reset of that env
    ends too, after ``video_length`` frames, or with ``close``. Each batch adds one frame; with
    partial batches the envs that are not in the batch keep their last image. Needs imageio-ffmpeg.

    Args:
        venv: the pool to wrap.
        video_folder: the directory of the files; it is made if it is missing.
        episode_trigger: ``f(episode)``, called when an episode of the first recorded env begins;
            the files are ``{name_prefix}-episode-{episode}.mp4``. Without any trigger: every
            episode.
        step_trigger: ``f(step)``, called after each batch; ``step`` counts the batches. The files
            are ``{name_prefix}-step-{step}.mp4``.
        video_length: the number of frames; 0: until the episode ends.
        name_prefix: the beginning of file names.
        fps: frames per second; None: the envs' ``render_fps``, else 30.
        env_ids: the envs to record; None: all.

    Attributes:
        video_path: the latest file, or None.

    Raises:
        ValueError: the render mode of an env is another; both triggers are given.
        IndexError, TypeError: wrong ids.
        DependencyNotInstalled: imageio-ffmpeg is not installed.
    """

    def __init__(
        self,
        venv: BaseVectorEnv,
        video_folder: str,
        episode_trigger: Callable[[int], bool] | None = None,
        step_trigger: Callable[[int], bool] | None = None,
        video_length: int = 0,
        name_prefix: str = "rl-video",
        fps: float | None = None,
        env_ids: Ids = None,
    ) -> None:
        self._name: str | None = None
        super().__init__(venv)
        if episode_trigger is not None and step_trigger is not None:
            raise ValueError("RecordVideo: pass episode_trigger or step_trigger, not both")
        ids = ids_.resolve(env_ids, len(venv))
        for env_id, mode in zip(ids, venv.get_env_attr("render_mode", ids), strict=True):
            if mode != "rgb_array":
                raise ValueError(
                    f"env {env_id}: render_mode is {mode!r}; a video needs an env that is made with"
                    ' render_mode="rgb_array"'
                )
        video_encoder.ffmpeg()
        self.video_path: Path | None = None
        self._folder = Path(video_folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        every_episode = step_trigger is None
        self._episode_trigger = episode_trigger or (lambda _: every_episode)
        self._step_trigger = step_trigger or (lambda _: False)
        self._video_length, self._name_prefix = video_length, name_prefix
        self._fps = fps or venv.metadata[ids[0]].get("render_fps", 30)
        blank = np.zeros((1, 1, 3), np.uint8)  # of an env whose first row is not there yet
        self._frames: dict[int, Any] = dict.fromkeys(ids.tolist(), blank)
        self._first = int(ids[0])
        self._steps = self._num_frames = 0
        self._episode = -1

    @property
    def recording(self) -> bool:
        """Whether a video has begun and not ended."""
        return self._name is not None

    def _returned(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(batch) == 2:  # of ``reset``
            if self._first in self.venv.batch_ids:
                self._begin_episode()
            self._record(batch[-1])
        else:
            self._stepped(*batch[2:])
        return batch

    def _stepped(self, terminated: Array, truncated: Array, infos: Array) -> None:
        self._steps += 1
        ended = False
        for row in np.flatnonzero(self.venv.batch_ids == self._first):
            # After an automatic reset the frame shows the next episode already.
            if is_last(infos[row]) or "is_reset" in infos[row]:
                self._begin_episode()
            else:
                ended = bool(terminated[row] or truncated[row])
        if not self.recording and self._step_trigger(self._steps):
            self._name = f"step-{self._steps}"
        self._record(infos)
        if ended and not self._video_length:
            self._stop()

    def _begin_episode(self) -> None:
        self._episode += 1
        if not self._video_length:
            self._stop()
        if not self.recording and self._episode_trigger(self._episode):
            self._name = f"episode-{self._episode}"

    def _record(self, infos: Array) -> None:
        rows = zip(self.venv.batch_ids.tolist(), infos, strict=True)
        # An env that was recreated and not reset yet has no frame, so its last image stays.
        ids = [
            i
            for i, info in rows
            if i in self._frames and ("env_error" not in info or is_last(info))
        ]
        if not self.recording or not ids:
            return
        frames = self._frames | dict(zip(ids, self.venv.render(ids), strict=True))
        image = frame_grid.tile([*frames.values()], [*frames])
        if self._encoder is None:
            self.video_path = self._folder / f"{self._name_prefix}-{self._name}.mp4"
            self._num_frames = 0
        self._frames = frames
        self._write(image, self._fps)
        self._num_frames += 1
        if self._num_frames == self._video_length:
            self._stop()

    def _stop(self) -> None:
        self._name = None
        super()._stop()
