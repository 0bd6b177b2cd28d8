"""The wrappers: attributes of what they hold, and what each does besides its equality to theirs."""

from __future__ import annotations

import csv
import functools
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from imageio_ffmpeg import get_ffmpeg_exe
from stable_baselines3.common.monitor import Monitor as Sb3Monitor
from stable_baselines3.common.monitor import load_results

import envpool_py.sb3 as own
from envpool_py.sb3.common.monitor import Monitor, ResultsWriter
from tests.sb3.envs import RGB, WalkEnv, walkers

IDLE = np.zeros(3, int)


class Pass(own.VecEnvWrapper):
    """Changes nothing; has an attribute."""

    name = "outer"

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class Inner(Pass):
    depth = 1


def test_everything_is_handed_on() -> None:
    base = own.DummyVecEnv([RGB] * 3)
    venv = Pass(Inner(base))
    assert venv.seed(5) == [5, 6, 7]
    venv.set_options({"a": 1})
    assert venv.reset().shape == (3, 3)
    assert [log[0] for log in venv.get_attr("log")] == [(5, {"a": 1}), (6, {"a": 1}), (7, {"a": 1})]
    venv.set_attr("tag", 4, 1)
    assert venv.env_method("add", 1, times=2, indices=[1]) == [6]
    assert venv.has_attr("tag")
    assert not venv.has_attr("nothing")
    assert venv.env_is_wrapped(Monitor) == [False] * 3
    assert venv.get_images()[1][0, 0, 0] == 40
    assert venv.render().shape == (8, 12, 3)
    assert venv.render_mode == "rgb_array"
    assert venv.unwrapped is base
    assert venv.metadata == {"render_modes": ["human", "rgb_array"]}
    venv.close()
    assert base.pool.is_closed


@pytest.mark.parametrize("package", [own, sb3])
def test_reset_infos_are_seen_through_wrappers(package: Any) -> None:
    base = package.DummyVecEnv([WalkEnv] * 3)
    venv = Pass(Inner(base))
    venv.reset()
    assert [set(info) for info in venv.reset_infos] == [{"task", "options", "from"}] * 3
    while not venv.step(IDLE)[2].any():
        continue
    assert venv.reset_infos == base.reset_infos
    venv.reset_infos = [{"n": i} for i in range(3)]
    assert base.reset_infos == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.parametrize("order", [(own, own, own), (own, sb3, own), (sb3, own, sb3)])
def test_attributes_of_what_they_hold(order: tuple) -> None:
    base = own.DummyVecEnv([WalkEnv])
    base.only_base = 1
    venv = order[0].VecCheckNan(order[1].VecMonitor(order[2].VecNormalize(base)))
    assert venv.episode_count == 0
    assert venv.clip_obs == 10.0
    assert venv.only_base == 1
    assert venv.pool is base.pool
    assert not hasattr(venv, "nothing")
    # An attribute of two inner layers: which is meant?
    base.clip_obs = 3
    with pytest.raises(AttributeError, match="clip_obs.*hides .*DummyVecEnv"):
        _ = venv.clip_obs
    assert venv.venv.venv.clip_obs == 10.0


def test_stacks_are_the_callers_own() -> None:
    venv = own.VecFrameStack(own.DummyVecEnv([WalkEnv] * 3), 2)
    first = venv.reset()
    kept = first.copy()
    second = venv.step(IDLE)[0]
    second[:] = 99
    np.testing.assert_array_equal(first, kept)
    assert not (venv.step(IDLE)[0] == 99).any()
    venv.reset()
    np.testing.assert_array_equal(first, kept)


def walker(**kwargs: Any) -> Any:
    return own.DummyVecEnv(walkers(1, **kwargs))


REFUSED = [
    (lambda: own.VecFrameStack(walker(obs="discrete"), 2), ValueError, "VecFrameStack: .*Discrete"),
    (lambda: own.VecFrameStack(walker(obs="dict"), 2), TypeError, "stacked of Box and Dict"),
    (lambda: own.VecFrameStack(walker(), 2, {"z": "first"}), TypeError, "is a mapping"),
    # Finding 16: also the type of Stable-Baselines3.
    (lambda: own.VecFrameStack(walker(), 2, "middle"), AssertionError, "or None, got 'middle'"),
    (lambda: own.VecTransposeImage(walker()), AssertionError, "Box.*, but images or a Dict"),
    (
        lambda: own.VecTransposeImage(own.VecTransposeImage(walker(obs="image"))),
        AssertionError,
        r"shape \(3, 12, 10\) have their channels first",
    ),
    (
        lambda: own.VecTransposeImage.transpose_space(spaces.Box(0, 1, (2, 2, 3)), "k"),
        AssertionError,
        "observation space k: .* is not one of images",
    ),
    (lambda: own.VecExtractDictObs(walker(), "z"), AssertionError, "but a Dict is needed"),
    (lambda: own.VecExtractDictObs(walker(obs="dict"), "q"), KeyError, "q"),
    (lambda: own.VecVideoRecorder(walker(), "", bool), AssertionError, "is None, but 'rgb_array'"),
]


@pytest.mark.parametrize(("wrap", "error", "text"), REFUSED)
def test_what_can_not_be_wrapped(wrap: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        wrap()
    # Where theirs is an assertion, ours is a ValueError too.
    assert error is not AssertionError or isinstance(caught.value, ValueError)


def test_a_terminal_observation_that_is_missing() -> None:
    class Forgetful(Pass):
        def step_wait(self) -> Any:
            obs, rewards, _, _ = self.venv.step_wait()
            return obs, rewards, np.array([True]), [{}]

    venv = own.VecFrameStack(Forgetful(own.DummyVecEnv([WalkEnv])), 2)
    venv.reset()
    with pytest.warns(UserWarning, match="env 0: done, but its info has no terminal_observation"):
        venv.step(np.zeros(1, int))


SPECIAL = {9: np.nan, 8: np.inf}
ANY = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class NanEnv(gym.Env):
    """Observes, and is rewarded by, its action, in which 9 and 8 stand for NaN and infinity."""

    action_space = ANY

    def __init__(self, in_dict: bool = False) -> None:
        pair = spaces.Dict({"n": spaces.Discrete(2), "x": ANY})
        self.in_dict, self.observation_space = in_dict, pair if in_dict else ANY

    def reset(self, **_: Any) -> tuple:
        bad = {"n": 1, "x": np.array([0, np.nan], np.float32)}
        return bad if self.in_dict else np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple:
        obs, reward = (SPECIAL.get(float(part), 0.0) for part in action)
        return np.full(2, obs, np.float32), reward, False, False, {}


def nan_action(row: int, obs: float = 0, reward: float = 0) -> np.ndarray:
    actions = np.zeros((3, 2), np.float32)
    actions[row] = obs, reward
    return actions


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (nan_action(1, obs=9), "env 1: found nan in observations; it comes from the envs, whose"),
        (nan_action(2, obs=8), "env 2: found inf in observations"),
        (nan_action(0, reward=9), "env 0: found nan in rewards"),
        (nan_action(1, obs=np.nan), "env 1: found nan in actions; it comes from the model, whose"),
    ],
)
def test_nan_is_traced_to_its_env(actions: np.ndarray, text: str) -> None:
    base = own.DummyVecEnv([NanEnv] * 3)
    venv = own.VecCheckNan(base, raise_exception=True)
    venv.reset()
    venv.step(nan_action(0))
    with pytest.raises(ValueError, match=text):
        venv.step(actions)
    venv = own.VecCheckNan(base)
    venv.reset()
    with pytest.warns(UserWarning, match=text):
        venv.step(actions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        venv.step(actions)  # warned once


def test_nan_at_reset_and_in_dicts() -> None:
    venv = own.VecCheckNan(own.DummyVecEnv([NanEnv] * 3), check_inf=False, raise_exception=True)
    venv.reset()
    venv.step(nan_action(0, obs=8))  # infinities pass
    assert venv.check_array_value("x", np.array([np.inf, 0])) == []
    assert venv.check_array_value("x", np.array([np.nan])) == [("x", "nan")]
    base = own.DummyVecEnv([functools.partial(NanEnv, in_dict=True)])
    venv = own.VecCheckNan(base, raise_exception=True)
    with pytest.raises(ValueError, match=r"env 0: found nan in observations\['x'\]; .* at reset"):
        venv.reset()
    base.action_space = base.observation_space
    with pytest.raises(NotImplementedError, match="dicts"):
        own.VecCheckNan(base)


def read(path: Path) -> tuple[dict, list[dict]]:
    with path.open() as file:
        header = json.loads(file.readline()[1:])
        return header, list(csv.DictReader(file))


def test_the_file_of_vec_monitor(tmp_path: Path) -> None:
    make = functools.partial(gym.make, "CartPole-v1", max_episode_steps=5)
    base = own.DummyVecEnv([make] * 3)
    venv = own.VecMonitor(base, str(tmp_path / "run"), info_keywords=("TimeLimit.truncated",))
    venv.reset()
    infos = [info for _ in range(40) for info in venv.step(IDLE)[3]]
    episodes = [info["episode"] for info in infos if "episode" in info]
    venv.close()
    header, rows = read(tmp_path / "run.monitor.csv")
    assert header["env_id"] == "CartPole-v1"
    assert venv.episode_count == len(rows) == len(episodes) > 10
    frame = load_results(str(tmp_path))
    for key in ("r", "l", "TimeLimit.truncated"):
        assert frame[key].tolist() == [episode[key] for episode in episodes]


@pytest.mark.parametrize("monitor", [Monitor, Sb3Monitor])
def test_two_monitors_are_warned_of(monitor: Any) -> None:
    venv = own.DummyVecEnv([lambda: monitor(WalkEnv())])
    with pytest.warns(UserWarning, match="the envs have a Monitor already"):
        own.VecMonitor(venv)


def finished(env: gym.Env) -> dict:
    """Step an env to the end of its episode; return the last info."""
    while True:
        *_, terminated, truncated, info = env.step(1)
        if terminated or truncated:
            return info


def test_the_monitor_of_one_env_is_like_theirs(tmp_path: Path) -> None:
    found = []
    for cls in (Monitor, Sb3Monitor):
        path = tmp_path / f"{cls.__module__}.monitor.csv"
        env = cls(WalkEnv(), str(path), info_keywords=("left",))
        for episode in range(6):
            env.reset(seed=episode)
            assert "episode" in finished(env)
        env.close()
        header, rows = read(path)
        times = [row.pop("t") for row in rows]
        assert len(times) == len(env.get_episode_times()) == 6
        totals = env.get_episode_rewards(), env.get_episode_lengths(), env.get_total_steps()
        found.append((set(header), rows, totals))
    assert found[0] == found[1]


def test_the_rules_of_the_monitor() -> None:
    env = Monitor(WalkEnv(), allow_early_resets=False, reset_keywords=("options",))
    with pytest.raises(RuntimeError, match="was not reset"):
        env.step(0)
    with pytest.raises(ValueError, match="the argument 'options' is missing"):
        env.reset(seed=0)
    env.reset(seed=0, options={"a": 1})
    with pytest.raises(RuntimeError, match="the episode has not ended"):
        env.reset(options={"a": 1})
    assert finished(env)["episode"]["options"] == {"a": 1}
    with pytest.raises(RuntimeError, match="was not reset"):
        env.step(0)


def test_a_file_is_begun_anew_or_appended_to(tmp_path: Path) -> None:
    for override, rows in ((True, 1), (False, 2), (True, 1)):
        writer = ResultsWriter(str(tmp_path), {"n": 1}, override_existing=override)
        writer.write_row({"r": 1, "l": 2, "t": 3})
        writer.close()
        header, found = read(tmp_path / "monitor.csv")
        assert header == {"n": 1}
        assert len(found) == rows


def frames(path: Path, height: int, width: int) -> np.ndarray:
    """The frames of a video, by ffmpeg itself."""
    command = [get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


class Big(WalkEnv):
    """Shows how often it was reset."""

    def render(self) -> np.ndarray:
        return np.full((32, 48, 3), 40 * (len(self.log) % 5) + 40, np.uint8)


def big() -> gym.Env:
    return Big(render_mode="rgb_array")


def test_videos_are_recorded(tmp_path: Path) -> None:
    base = own.DummyVecEnv([big] * 2)
    venv = own.VecVideoRecorder(
        base, str(tmp_path), lambda step: step in (0, 10), video_length=4, name_prefix="walk"
    )
    assert venv.frames_per_sec == 7
    venv.reset()
    assert venv.recording
    for _ in range(4):
        venv.step(np.zeros(2, int))
    assert not venv.recording
    for _ in range(8):
        venv.step(np.zeros(2, int))
    assert venv.recording
    venv.close()  # writes what there is
    first, second = (tmp_path / f"walk-step-{a}-to-step-{a + 4}.mp4" for a in (0, 10))
    video = frames(first, 64, 48)  # two envs
    assert len(video) == 5  # the frame before the first step
    assert abs(int(video[0].mean()) - 80) < 12
    assert len(frames(second, 64, 48)) == 3
    assert venv.video_path == str(second)
    assert base.pool.is_closed


def test_their_recorder_around_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # a thread of its progress bar
    venv = sb3.VecVideoRecorder(own.DummyVecEnv([big]), str(tmp_path), lambda s: s == 0, 3)
    venv.reset()
    for _ in range(3):
        venv.step(np.zeros(1, int))
    venv.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_a_recording_that_nobody_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = own.VecVideoRecorder(own.DummyVecEnv([RGB]), str(tmp_path), lambda _: True, 9)
    venv.reset()
    with pytest.warns(ResourceWarning, match="rl-video-step-0-to-step-9.mp4 was not ended"):
        del venv
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ffmpeg_writer", None)
    with pytest.raises(ImportError, match=r"moviepy; pip install envpool-py\[video\]"):
        own.VecVideoRecorder(own.DummyVecEnv([RGB]), str(tmp_path), bool)


def test_a_frame_that_is_none(tmp_path: Path) -> None:
    base = own.DummyVecEnv([RGB])
    venv = own.VecVideoRecorder(base, str(tmp_path), lambda step: step == 0)
    base.render = lambda mode=None: None  # noqa: ARG005
    with pytest.warns(UserWarning, match="render returned a NoneType"):
        venv.reset()
    assert not venv.recording
