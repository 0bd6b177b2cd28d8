"""The wrappers: equal to Stable-Baselines3's, and what each does besides."""

import itertools
import re
import subprocess
import sys
import warnings
from functools import partial
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from imageio_ffmpeg import get_ffmpeg_exe
from stable_baselines3.common.monitor import Monitor as Sb3Monitor
from stable_baselines3.common.monitor import load_results

import envpool_py.sb3 as own
from tests.sb3.envs import RGB, WalkEnv, walkers
from tests.sb3.reference import assert_same, walk_together

IDLE = np.zeros(3, int)
CASES = {
    "VecNormalize": ({}, "box"),
    "VecNormalize-dict": ({"norm_obs_keys": ["z", "image"]}, "dict"),
    "VecNormalize-all-keys": ({}, "vectors"),
    "VecNormalize-images": ({"norm_reward": False, "clip_obs": 2.0}, "image"),
    "VecNormalize-rewards": ({"norm_obs": False, "clip_reward": 0.5, "gamma": 0.5}, "discrete"),
    "VecNormalize-still": ({"training": False}, "box"),
    "VecFrameStack": ({"n_stack": 3}, "box"),
    "VecFrameStack-images": ({"n_stack": 2}, "image"),
    "VecFrameStack-first": ({"n_stack": 2, "channels_order": "first"}, "double"),
    "VecFrameStack-last": ({"n_stack": 2, "channels_order": "last"}, "double"),
    "VecFrameStack-keys": ({"n_stack": 4, "channels_order": {"z": "first", "b": None}}, "vectors"),
    "VecMonitor": ({"info_keywords": ("left",)}, "box"),
    "VecTransposeImage": ({}, "image"),
    "VecTransposeImage-dict": ({}, "dict"),
    "VecTransposeImage-skip": ({"skip": True}, "image"),
    "VecCheckNan": ({}, "box"),
    "VecExtractDictObs": ({"key": "z"}, "dict"),
}
MIXED = [case for case in CASES if "-" not in case or case == "VecNormalize-dict"]


@pytest.mark.parametrize(
    ("around", "case"),
    [*itertools.product(["own"], CASES), *itertools.product(["mixed", "theirs"], MIXED)],
)
def test_many_episodes(around, case):
    """Ours around our VecEnv and around theirs, and theirs around ours: all like theirs alone."""
    kwargs, obs = CASES[case]
    name = case.split("-", maxsplit=1)[0]
    env_fns = walkers(obs=obs, render_mode="rgb_array")
    venv = (sb3 if around == "mixed" else own).DummyVecEnv(env_fns)
    tested = getattr(sb3 if around == "theirs" else own, name)(venv, **kwargs)
    reference = getattr(sb3, name)(sb3.DummyVecEnv(env_fns), **kwargs)
    assert walk_together(tested, reference) > 30
    if name == "VecNormalize":
        assert_same(*(normalized(venv) for venv in (tested, reference)))
    tested.close()
    assert around == "mixed" or venv.pool.is_closed


def normalized(venv):
    """What the functions of a VecNormalize make of its latest observations and rewards."""
    answers = []
    for name in ("obs", "reward"):
        original = getattr(venv, f"get_original_{name}")()
        once = getattr(venv, f"normalize_{name}")(original)
        answers += [original, once, getattr(venv, f"unnormalize_{name}")(once)]
    return [dict(answer) if isinstance(answer, dict) else answer for answer in answers]


NORMAL = (True, True, True, 10, 10, 0.99, 1e-8)
FIRST = spaces.Box(0, 255, (3, 12, 10), np.uint8)
# The class, observations, arguments; finding 16: where theirs is an assertion, ours is one too.
REFUSED = [
    ("VecFrameStack", "discrete", (2,), AssertionError, "VecFrameStack: .*Discrete"),
    ("VecFrameStack", "dict", (2,), TypeError, "stacked of Box and Dict"),
    ("VecFrameStack", "box", (2, {"z": "first"}), TypeError, "is a mapping"),
    ("VecFrameStack", "box", (2, "middle"), AssertionError, "or None, got 'middle'"),
    ("VecTransposeImage", "box", (), AssertionError, "Box.*, but images or a Dict"),
    ("VecTransposeImage", FIRST, (), AssertionError, r"\(3, 12, 10\) have their channels first"),
    ("VecTransposeImage", spaces.Dict({"k": FIRST}), (), AssertionError, "observation space k: "),
    ("VecExtractDictObs", "box", ("z",), AssertionError, "but a Dict is needed"),
    ("VecExtractDictObs", "dict", ("q",), KeyError, "q"),
    ("VecVideoRecorder", "box", ("", bool), AssertionError, "is None, but 'rgb_array'"),
    ("VecNormalize", "discrete", (), ValueError, r"Discrete\(7\): VecNormalize only supports Box"),
    ("VecNormalize", "dict", (), ValueError, r"observation_space\['a'\] is Discrete.*only .* Box"),
    ("VecNormalize", "dict", (*NORMAL, ["q"]), ValueError, r"norm_obs_keys is \['q'\], but .* has"),
    ("VecNormalize", "box", (*NORMAL, ["z"]), ValueError, "is applicable only to a Dict"),
]


@pytest.mark.parametrize(("name", "obs", "args", "error", "text"), REFUSED)
def test_what_can_not_be_wrapped(name, obs, args, error, text):
    venv = own.DummyVecEnv(walkers(1, obs=obs))
    with pytest.raises(error, match=text) as caught:
        getattr(own, name)(venv, *args)
    assert error is not AssertionError or isinstance(caught.value, ValueError)


class Pass(own.VecEnvWrapper):
    """Changes nothing; forgets terminal observations."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, _, _ = self.venv.step_wait()
        return obs, rewards, np.array([True, False, False]), [{}] * 3


@pytest.mark.parametrize("package", [own, sb3])
def test_a_wrapper_of_a_users_own(package):
    base = package.DummyVecEnv([WalkEnv] * 3)
    venv = own.VecFrameStack(Pass(Pass(base)), 2)
    first = venv.reset()
    kept = first.copy()
    assert [set(info) for info in venv.reset_infos] == [{"task", "options", "from"}] * 3
    venv.reset_infos = [{"n": i} for i in range(3)]
    assert base.reset_infos == [{"n": 0}, {"n": 1}, {"n": 2}]
    # Stacks are the caller's own.
    for _ in range(2):
        with pytest.warns(UserWarning, match="env 0: done, but its info has no terminal_obs"):
            stacks = venv.step(IDLE)[0]
        assert not (stacks == 99).any()
        stacks[:] = 99
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("order", [(own, own, own), (own, sb3, own), (sb3, own, sb3)])
def test_attributes_of_what_they_hold(order):
    base = own.DummyVecEnv([WalkEnv])
    base.only_base = 1
    venv = order[0].VecCheckNan(order[1].VecMonitor(order[2].VecNormalize(base)))
    assert (venv.episode_count, venv.clip_obs, venv.only_base) == (0, 10.0, 1)
    assert venv.pool is base.pool
    assert not hasattr(venv, "nothing")
    # An attribute of two inner layers: which is meant?
    base.clip_obs = 3
    with pytest.raises(AttributeError, match="clip_obs.*hides .*DummyVecEnv"):
        _ = venv.clip_obs
    assert venv.venv.venv.clip_obs == 10.0


STEPS = [
    ("z", 1, 0, ""),
    ("z", 1, np.nan, r"env 1: found nan in observations\['z'\]; it comes from the envs, whose"),
    ("z", 2, np.inf, "env 2: found inf in observations"),
    ("rewards", 0, np.nan, "env 0: found nan in rewards"),
    ("actions", 1, np.nan, "env 1: found nan in actions; it comes from the model, whose"),
]
"""Which row of what has a value, and what is said of it."""


def outcome(call, *args):
    """The error or the number of warnings of a call, and their text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call(*args)
        except ValueError as error:
            return ValueError, str(error)
    return len(caught), "".join(str(each.message) for each in caught)


@pytest.mark.parametrize("settings", [*itertools.product([False, True], repeat=3)])
def test_nan_is_traced_to_its_env(settings):
    """The errors and warnings of theirs."""
    venvs = [
        package.VecCheckNan(package.DummyVecEnv(walkers(obs="dict")), *settings)
        for package in (own, sb3)
    ]
    for name, row, value, text in STEPS:
        obs = {"z": np.zeros((3, 3)), "image": np.zeros((3, 1), np.uint8), "a": IDLE}
        arrays = {"z": obs["z"], "rewards": np.zeros(3), "actions": np.zeros((3, 1))}
        arrays[name][row] = value
        answers = []
        for venv in venvs:
            step = Mock(return_value=(obs, arrays["rewards"], IDLE > 0, [{}] * 3))
            vars(venv.venv).update(step_async=Mock(), step_wait=step, reset=Mock(return_value=obs))
            answers.append([outcome(venv.step, arrays["actions"]), outcome(venv.reset)])
            answers[-1].append((venv.check_array_value("x", arrays[name]), ""))
        ours, theirs = answers
        assert [kind for kind, _ in ours] == [kind for kind, _ in theirs]
        assert not ours[0][0] or re.search(text, ours[0][1])
        assert not ours[1][0] or re.search(f"{text[:14]}.*at reset", ours[1][1])
    base = venvs[0].venv
    base.action_space = base.observation_space
    with pytest.raises(NotImplementedError, match="dicts"):
        own.VecCheckNan(base)


def test_the_file_of_vec_monitor(tmp_path):
    make = partial(gym.make, "CartPole-v1", max_episode_steps=5)
    keywords = ("TimeLimit.truncated",)
    venv = own.VecMonitor(own.DummyVecEnv([make] * 3), str(tmp_path / "run"), keywords)
    venv.reset()
    infos = [info for _ in range(40) for info in venv.step(IDLE)[3]]
    episodes = [info["episode"] for info in infos if "episode" in info]
    venv.close()
    assert '"env_id": "CartPole-v1"' in (tmp_path / "run.monitor.csv").read_text()
    frame = load_results(str(tmp_path))
    assert venv.episode_count == len(frame) == len(episodes) > 10
    for key in ("r", "l", *keywords):
        assert frame[key].tolist() == [episode[key] for episode in episodes]
    for monitor in (own.Monitor, Sb3Monitor):
        monitored = own.DummyVecEnv([lambda cls=monitor: cls(WalkEnv())])
        with pytest.warns(UserWarning, match="the envs have a Monitor already"):
            own.VecMonitor(monitored)


class Big(WalkEnv):
    """Shows how often it was reset."""

    def render(self):
        return np.full((32, 48, 3), 40 * (len(self.log) % 5) + 40, np.uint8)


def frames(path):
    """The frames of a video of two ``Big``, by ffmpeg itself."""
    command = [get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, 64, 48, 3)


def test_videos(tmp_path, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # a thread of their progress bar
    runs = []
    for package in (sb3, own):
        folder = tmp_path / package.__name__
        base = own.DummyVecEnv([partial(Big, render_mode="rgb_array")] * 2)
        venv = package.VecVideoRecorder(base, str(folder), lambda n: n in (0, 10), 4, "walk")
        venv.seed(0)
        venv.reset()
        seen = []
        for _ in range(12):
            seen.append((venv.recording, venv.video_name))
            venv.step(np.zeros(2, int))
        venv.close()  # writes what there is
        paths = [folder / f"walk-step-{n}-to-step-{n + 4}.mp4" for n in (0, 10)]
        assert venv.video_path == str(paths[1])
        videos = [frames(path) for path in paths]
        shades = [round(video[0].mean() / 40) for video in videos]
        runs.append([venv.frames_per_sec, seen, shades])
    assert_same(runs[1], runs[0])
    assert [len(video) for video in videos] == [5, 3]  # theirs lacks a frame


def test_a_recording_that_nobody_ended(tmp_path, monkeypatch):
    base = own.DummyVecEnv([RGB])
    venv = own.VecVideoRecorder(base, str(tmp_path), lambda _: True, 9)
    venv.reset()
    with pytest.warns(ResourceWarning, match="rl-video-step-0-to-step-9.mp4 was not ended"):
        del venv
    venv = own.VecVideoRecorder(base, str(tmp_path), lambda step: step == 0)
    base.render = lambda mode=None: None  # noqa: ARG005
    with pytest.warns(UserWarning, match="render returned a NoneType"):
        venv.reset()
    assert not venv.recording
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ffmpeg_writer", None)
    with pytest.raises(ImportError, match=r"moviepy; pip install envpool-py\[video\]"):
        own.VecVideoRecorder(base, str(tmp_path), bool)
