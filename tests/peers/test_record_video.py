"""Grids show the frames of the envs; videos are whole, whatever happens meanwhile."""

import os
import re
import subprocess
import sys

import cv2
import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import DummyVecEnv, ShmemVecEnv, VecVideoRecorder
from tests.faults.helpers import kill
from tests.support.envs import CountEnv
from tests.support.helpers import ROOT


class Painted(CountEnv):
    """Shows its tag and its step as the two colours of a frame, of 32 x 48 or of another size."""

    def __init__(self, tag, mode="rgb_array", size=(32, 48)):
        super().__init__(tag, 4, mode)
        self.size = size

    def render(self):
        frame = np.zeros((*self.size, 3), np.uint8)
        frame[..., 0], frame[..., 2] = 40 * self.tag, 40 * self.t
        return frame if self.render_mode else None


def fns(count=3):
    return [lambda i=i: Painted(i) for i in range(count)]


def colours(image, count, columns=2):
    """Return the tag and the step that each tile shows."""
    found = []
    for place in range(count):
        row, column = divmod(place, columns)
        red, _, blue = image[32 * row + 16, 48 * column + 24]
        found.append((round(red / 40), round(blue / 40)))
    return found


def recorded(venv, folder):
    return VecVideoRecorder(venv, str(folder), lambda _: True, 9)


def frames(path):
    file = cv2.VideoCapture(str(path))
    count = int(file.get(cv2.CAP_PROP_FRAME_COUNT))
    return [file.read()[1][..., ::-1].astype(int) for _ in range(count)]


def test_a_grid_tiles_the_frames_of_all_or_some():
    with DummyVectorEnv([*fns(2), lambda: Painted(2, size=(8, 8))]) as pool:
        pool.reset()
        pool.step([0, 0], [0, 2])
        image = pool.render_grid()
        assert (image.shape, image.dtype) == ((64, 96, 3), np.uint8)
        assert colours(image, 2) == [(0, 1), (1, 0)]
        assert (image[32:40, :8] == [80, 0, 40]).all()  # a smaller frame is padded
        assert not image[40:].any()
        assert not image[32:, 8:].any()
        assert colours(pool.render_grid([0]), 1) == [(0, 1)]


def test_a_grid_needs_frames():
    with DummyVectorEnv([lambda: Painted(0), lambda: Painted(1, mode=None)]) as pool:
        pool.reset()
        with pytest.raises(ValueError, match="env 1: render returned NoneType.*rgb_array"):
            pool.render_grid()


@pytest.mark.parametrize("how", ["restart", "another pool"])
def test_a_video_ends_though_a_process_was_started_meanwhile(how, tmp_path, beside):
    venv = ShmemVecEnv(fns(2), start_method="fork")
    envs = recorded(venv, tmp_path)
    envs.reset()
    other = venv
    if how == "restart":
        kill(venv.pool, 1)
        venv.reset()
    else:
        other = ShmemVectorEnv(fns(1), context="fork")
    closing = beside(envs.close)
    closing.join(60)
    has_ended = not closing.is_alive()
    venv.close()  # else an encoder that waits for the end of these processes would never end
    other.close()
    assert has_ended
    assert len(frames(envs.video_path)) == 1


INTERRUPTED = """
import os, signal
from tests.peers.test_record_video import DummyVecEnv, fns, frames, recorded
envs = recorded(DummyVecEnv(fns(1)), ".")
envs.reset()
try:
    os.killpg(0, signal.SIGINT)  # as the terminal does
    envs.step([0])
except KeyboardInterrupt:
    envs.step([0])
envs.close()
assert len(frames(envs.video_path)) == 2
"""


def test_ctrl_c_does_not_end_a_video(tmp_path):
    program = [sys.executable, "-c", INTERRUPTED]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(program, cwd=tmp_path, env=environ, check=True, start_new_session=True)


def test_a_video_that_cannot_be_written(tmp_path):
    path = tmp_path / "rl-video-step-0-to-step-9.mp4"
    path.mkdir()
    envs = recorded(DummyVecEnv(fns(1)), tmp_path)
    envs.reset()
    with pytest.raises(OSError, match=f"{re.escape(str(path))}: .*[Dd]irectory"):
        envs.close()


def test_a_video_that_close_did_not_finish_warns(tmp_path):
    venv = DummyVecEnv(fns(1))
    envs = recorded(venv, tmp_path)
    envs.reset()
    path = envs.video_path
    with pytest.warns(ResourceWarning, match=re.escape(f"{path} was not ended")):
        del envs
    venv.close()
    assert len(frames(path)) == 1


class Faulty(Painted):
    """Raises in its third step, and when it is rendered before a reset."""

    def step(self, action):
        row = super().step(action)
        if self.t == 3 and self.tag == 1:
            raise RuntimeError("boom")
        return row

    def render(self):
        if self.episode < 0:
            raise gym.error.ResetNeeded("reset before render")
        return super().render()


def test_a_vector_env_renders_the_last_frame_of_an_env_that_was_recreated():
    """Gymnasium's own videos are made of these frames."""
    for calls in (True, False):
        envs = VectorEnv([lambda i=i: Faulty(i) for i in range(2)], on_error="restart")
        envs.reset(seed=0)
        for t in range(3):
            envs.step([0, 0])
            if calls or t == 2:
                shown = envs.render()
        assert shown[0][0, 0].tolist() == [0, 0, 120]
        assert shown[1][0, 0].tolist() == ([40, 0, 80] if calls else [0, 0, 0])
        envs.step([0, 0])
        assert envs.render()[1][0, 0].tolist() == [40, 0, 0]
        envs.close()
