"""The wrappers: equal to Stable-Baselines3's, and what each does besides; VecNormalize's files."""

import collections
import copy
import copyreg
import itertools
import pickle
import re
import sys
import zipfile
from functools import partial
from unittest.mock import Mock

import cv2
import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.running_mean_std as sb3_rms
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor as Sb3Monitor
from stable_baselines3.common.monitor import load_results

import envpool_py.sb3 as own
from envpool_py import DummyVectorEnv
from envpool_py.sb3.common import running_mean_std
from tests.sb3.envs import RGB, WalkEnv, walkers
from tests.sb3.reference import assert_same, outcome, walk_together

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
    "VecFrameStack-normalized": ({"n_stack": 2}, spaces.Box(-9, 9, (3,), np.int8)),
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
    [
        *(("own", case) for case in CASES),
        *(("mixed", case) for case in MIXED),
        *(("theirs", case) for case in ("VecNormalize-dict", "VecMonitor")),
    ],
)
def test_many_episodes(around, case):
    """Ours around our VecEnv and around theirs, and theirs around ours: all like theirs alone."""
    kwargs, obs = CASES[case]
    name = case.split("-", maxsplit=1)[0]
    env_fns = walkers(obs=obs, render_mode="rgb_array")
    venv = (sb3 if around == "mixed" else own).DummyVecEnv(env_fns)
    inner = sb3.DummyVecEnv(env_fns)
    if case.endswith("normalized"):
        venv, inner = own.VecNormalize(venv), sb3.VecNormalize(inner)
    tested = getattr(sb3 if around == "theirs" else own, name)(venv, **kwargs)
    reference = getattr(sb3, name)(inner, **kwargs)
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
# The class, observations, arguments; where theirs is an assertion, ours is one too.
REFUSED = [
    ("VecFrameStack", "discrete", (2,), AssertionError, "VecFrameStack: .*Discrete"),
    ("VecFrameStack", "dict", (2,), TypeError, "stacked of Box and Dict"),
    ("VecFrameStack", "box", (2, {"z": "first"}), TypeError, "is a mapping"),
    ("VecFrameStack", "box", (2, "middle"), AssertionError, "or None, got 'middle'"),
    ("VecTransposeImage", "box", (), AssertionError, "Box.*, but images or a Dict"),
    ("VecTransposeImage", FIRST, (), AssertionError, r"\(3, 12, 10\) have their channels first"),
    ("VecExtractDictObs", "box", ("z",), AssertionError, "but a Dict is needed"),
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


@pytest.mark.parametrize("package", [own, sb3])
def test_stacks_are_the_callers_own_and_reset_infos_those_of_the_envs(package):
    base = package.DummyVecEnv([WalkEnv] * 3)
    venv = own.VecFrameStack(own.VecCheckNan(base), 2)
    first = venv.reset()
    kept = first.copy()
    assert [set(info) for info in venv.reset_infos] == [{"task", "options", "from"}] * 3
    venv.reset_infos = [{"n": i} for i in range(3)]
    assert base.reset_infos == [{"n": 0}, {"n": 1}, {"n": 2}]
    for _ in range(2):
        stacks = venv.step(IDLE)[0]
        assert not (stacks == 99).any()
        stacks[:] = 99
    np.testing.assert_array_equal(first, kept)
    with pytest.warns(UserWarning, match="env 1: done, but its info has no terminal_observation"):
        venv.stacked_obs.update(np.zeros((3, 3)), np.array([False, True, False]), [{}] * 3)


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


@pytest.mark.parametrize("settings", [*itertools.product([False, True], repeat=3)])
def test_nan_is_traced_to_its_env(settings):
    """The errors and warnings of theirs."""
    both = [(package, package.DummyVecEnv(walkers(obs="dict"))) for package in (sb3, own)]
    venvs = [package.VecCheckNan(base, *settings) for package, base in both]
    for name, row, value, text in STEPS:
        obs = {"z": np.zeros((3, 3)), "image": np.zeros((3, 1), np.uint8), "a": IDLE}
        arrays = {"z": obs["z"], "rewards": np.zeros(3), "actions": np.zeros((3, 1))}
        arrays[name][row] = value
        step = Mock(return_value=(obs, arrays["rewards"], IDLE > 0, [{}] * 3))
        answers = []
        for venv in venvs:
            vars(venv.venv).update(step_async=Mock(), step_wait=step, reset=Mock(return_value=obs))
            calls = [outcome(venv.step, arrays["actions"]), outcome(venv.reset)]
            answers.append([(type(result), len(told)) for result, told in calls])
            answers[-1].append(venv.check_array_value("x", arrays[name]))
        assert answers[0] == answers[1]
        result, told = calls[0]
        told += [str(result)] if isinstance(result, ValueError) else []
        assert all(re.search(text, message) for message in told)
    base = venvs[1].venv
    base.action_space = base.observation_space
    with pytest.raises(NotImplementedError, match="dicts"):
        own.VecCheckNan(base)


def test_the_file_of_vec_monitor(tmp_path):
    make = partial(gym.make, "CartPole-v1", max_episode_steps=5)
    keywords = ("TimeLimit.truncated",)
    venv = own.VecMonitor(own.DummyVecEnv([make] * 3), str(tmp_path / "run"), keywords)
    venv.reset()
    infos = [info for _ in range(40) for info in venv.step(IDLE)[3]]
    venv.close()
    assert '"env_id": "CartPole-v1"' in (tmp_path / "run.monitor.csv").read_text()
    frame = load_results(str(tmp_path))
    episodes = [info["episode"] for info in infos if "episode" in info]
    assert venv.episode_count == len(frame) == len(episodes) > 10
    for key in ("r", "l", *keywords):
        assert frame[key].tolist() == [episode[key] for episode in episodes]
    for monitor in (own.Monitor, Sb3Monitor):
        with pytest.warns(UserWarning, match="the envs have a Monitor already"):
            own.VecMonitor(own.DummyVecEnv([lambda cls=monitor: cls(WalkEnv())]))


class Big(WalkEnv):
    """Shows how often it was reset."""

    def render(self):
        return np.full((32, 48, 3), 40 * (len(self.log) % 5) + 40, np.uint8)


def test_vec_monitor_counts_steps_without_infos():
    """A VecEnv of another library may give infos only where an env is done."""
    found = []
    for package in (own, sb3):
        venv = package.VecMonitor(package.DummyVecEnv(walkers()))
        venv.reset()
        row = np.zeros((3, 3), np.float32), np.ones(3, np.float32), np.zeros(3, np.bool_), []
        venv.venv = Mock(step_wait=lambda row=row: row)
        venv.step_wait()
        found.append([venv.episode_returns, venv.episode_lengths])
    assert_same(*found)


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
        for step in range(12):
            if step in (0, 2, 10):  # before the first step, within a recording, and before one
                venv.reset()
            seen.append((venv.recording, venv.video_name))
            venv.step(np.zeros(2, int))
        venv.close()  # writes what there is
        paths = [str(folder / f"walk-step-{n}-to-step-{n + 4}.mp4") for n in (0, 10)]
        assert venv.video_path == paths[1]
        videos = [cv2.VideoCapture(path) for path in paths]
        shades = [[round(video.read()[1].mean() / 40) for _ in range(3)] for video in videos]
        runs.append([venv.frames_per_sec, seen, shades])
    assert_same(runs[1], runs[0])
    lengths = [int(video.get(cv2.CAP_PROP_FRAME_COUNT)) for video in videos]
    assert lengths == [5, 3]  # theirs lacks a frame
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'imageio-ffmpeg; pip install -e "\.\[video\]"'):
        own.VecVideoRecorder(own.DummyVecEnv([RGB]), str(tmp_path), bool)


# ---------------------------------------------------------------------------------- VecNormalize


def dummy(obs="box", n=3):
    return own.DummyVecEnv(walkers(n, obs=obs))


def trained(package, obs="box", **kwargs):
    """A VecNormalize that has seen some steps."""
    venv = package.VecNormalize(package.DummyVecEnv(walkers(obs=obs)), **kwargs)
    venv.seed(0)
    venv.reset()
    for _ in range(30):
        venv.step(np.zeros(3, int))
    return venv


NAMES = ["training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon"]
NAMES += ["norm_obs_keys", "obs_rms", "ret_rms", "observation_space"]


def kept(venv):
    """Settings and statistics."""
    return {name: getattr(venv, name) for name in NAMES if hasattr(venv, name)}


SETTINGS = [
    ("box", {"gamma": 0.9, "training": False}),
    ("dict", {"norm_obs_keys": ["z", "image"], "clip_obs": 3.0}),
    ("dict", {"norm_obs_keys": []}),
    ("image", {"norm_reward": False}),
    ("discrete", {"norm_obs": False, "clip_reward": 2.0, "epsilon": 1e-3}),
]
WAYS = [(own, own, "a.pkl"), (own, own, "a.npz"), (sb3, own, "a.pkl"), (own, sb3, "a.pkl")]


@pytest.mark.parametrize("n", range(12))
def test_a_round_trip(n, tmp_path):
    (obs, kwargs), (writer, reader, name) = SETTINGS[n % 5], WAYS[n % 4]
    path = str(tmp_path / name)
    venv = trained(writer, obs, **kwargs)
    venv.save(path)
    other = reader.VecNormalize.load(path, dummy(obs, n=2))
    assert_same(kept(other), kept(venv))
    assert other.num_envs == 2
    other.training = False
    other.reset()
    original = other.get_original_obs()
    assert_same(other.normalize_obs(original), venv.normalize_obs(original))
    for wrong in ("image", "dict", "double") if obs == "box" and reader is own else ():
        with pytest.raises(ValueError, match="shape|statistics|Box"):
            own.VecNormalize.load(path, dummy(wrong))


class Bomb:
    """Does something when it is unpickled."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


class Subclass(own.VecNormalize):
    """A custom subclass."""


def test_a_file_of_something_else_runs_nothing(tmp_path):
    venv, path, refused = own.VecNormalize(dummy()), tmp_path / "a.npz", pickle.UnpicklingError
    # Protocol 4 can name an attribute of an attribute.
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0cf2py.os.name\x93."
    contents = [b"nonsense", dotted, pickle.dumps(3)]
    for payload in (Bomb(), collections.Counter()):
        for owner, name in ((venv, "gamma"), (venv.observation_space, "low")):
            setattr(owner, name, payload)
            contents.append(pickle.dumps(owner))
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(refused):
            own.VecNormalize.load(path, dummy())
    for settings in ("{}", np.array([Bomb()], dtype=object)):  # without statistics
        np.savez(path, settings=settings)
        with pytest.raises(ValueError, match="lacks statistics|dtype object is not sup"):
            own.VecNormalize.load(path, dummy())
    assert not Bomb.went_off
    Subclass(dummy()).save(tmp_path / "a.pkl")
    with pytest.raises(refused, match="names .*Subclass.*trusted=True"):
        own.VecNormalize.load(tmp_path / "a.pkl", dummy())
    assert type(own.VecNormalize.load(tmp_path / "a.pkl", dummy(), trusted=True)) is Subclass


RMS = b"cenvpool_py.sb3.common.running_mean_std\nRunningMeanStd\n"
SET = b"\x8c\x06updatecbuiltins\nset\n"


@pytest.mark.parametrize(
    "built",
    [
        RMS + b"N}" + SET + b"s\x86b.",  # the state of a class: an attribute of it
        RMS.replace(b"envpool_py.sb3", b"stable_baselines3") + b"N}" + SET + b"s\x86b.",
        b"cgymnasium.spaces.box\nBox\nN}" + SET + b"s\x86b.",
        b"cnumpy.random._pickle\n__generator_ctor\nN}\x8c\x0c__defaults__)s\x86b.",
        b"cnumpy._core.numeric\n_frombuffer\nN}\x8c\x0c__defaults__)s\x86b.",
        b"ccopyreg\n_reconstructor\nN}\x8c\x0c__defaults__)s\x86b.",
        b"cnumpy\ndtype\nN}" + SET + b"s\x86b.",
        b"(cnumpy\ndtype\n" + RMS + b"o}" + SET + b"sb.",  # of an instance
    ],
)
def test_a_refused_pickle_has_changed_nothing(built, tmp_path):
    changeable = [running_mean_std.RunningMeanStd, sb3_rms.RunningMeanStd, spaces.Box]
    changeable += [np.random._pickle.__generator_ctor, np._core.numeric._frombuffer]
    changeable += [copyreg._reconstructor]

    def state():
        return [(dict(vars(one)), getattr(one, "__defaults__", None)) for one in changeable]

    before = state()
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04" + built)
    with pytest.raises(pickle.UnpicklingError, match=r"a\.pkl"):
        own.VecNormalize.load(tmp_path / "a.pkl", dummy())
    assert state() == before


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("package", [own, sb3])
def test_pickles_of_every_protocol(package, protocol, tmp_path):
    venv = trained(package)
    venv.observation_space.seed(0)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(venv, protocol))
    assert_same(kept(own.VecNormalize.load(tmp_path / "a.pkl", dummy())), kept(venv))


@pytest.mark.parametrize("name", ["a.npz", "a.pkl", "a", "a.norm"])
def test_statistics_are_kept_while_they_are_not_used(name, tmp_path):
    """A training ends, ``norm_obs`` is switched off, and the file still has what it had learnt."""
    venv = trained(own)
    venv.norm_obs = venv.norm_reward = venv.training = False
    venv.save(tmp_path / name)
    assert zipfile.is_zipfile(tmp_path / name) == (name != "a.pkl")  # no pickle unless asked for
    other = own.VecNormalize.load(tmp_path / name, dummy())
    assert_same(kept(other), kept(venv))
    assert other.obs_rms.count > 90


def test_copies_and_pickles_have_no_vec_env_yet():
    venv = trained(own)
    for other in (copy.deepcopy(venv), pickle.loads(pickle.dumps(venv))):
        with pytest.raises(AttributeError):
            other.reset()
        assert_same(kept(other), kept(venv))
        other.set_venv(dummy())
        other.reset()
        with pytest.raises(ValueError, match="there is a VecEnv already"):
            other.set_venv(venv.venv)


def test_the_names_that_subclasses_of_vec_normalize_and_of_vec_envs_use():
    found = []
    for package in (own, sb3):
        venv = package.VecNormalize(package.DummyVecEnv([WalkEnv] * 2))
        venv.seed(3)
        venv.reset()
        obs, rms = venv.get_original_obs(), venv.obs_rms
        normal = venv._normalize_obs(obs, rms)
        assert venv._get_target_envs([1]) == venv.envs[1:]
        found.append([normal, venv._unnormalize_obs(normal, rms), venv.keys, dict(venv.buf_obs)])
    assert_same(*found)
    processes = own.SubprocVecEnv([WalkEnv] * 2, "fork")
    assert len(processes.remotes) == 2
    assert [one.process.pid for one in processes.remotes] == [p.pid for p in processes.processes]
    processes.close()


def test_running_averages():
    statistics = []
    for package in (running_mean_std, sb3_rms):
        one, other = package.RunningMeanStd(shape=(2,)), package.RunningMeanStd(shape=(2,))
        one.update(np.arange(10.0).reshape(5, 2))
        other.update(np.arange(10.0, 36.0).reshape(13, 2))
        statistics.append([one.copy(), one, other])
        one.combine(other)
    assert_same(*statistics)


@pytest.mark.parametrize("normalizes", [True, False])
def test_what_is_returned_is_the_callers_own(normalizes):
    inner = dummy("dict")
    before = copy.deepcopy(inner.observation_space)
    options = {"norm_obs": normalizes, "norm_reward": normalizes, "norm_obs_keys": ["z"]}
    venv = own.VecNormalize(inner, **options)
    with pytest.raises(ValueError, match="nothing was reset or stepped yet"):
        venv.get_original_obs()
    assert venv.get_original_reward().shape == (0,)
    venv.reset()
    obs, rewards, *_ = venv.step(np.zeros(3, int))
    for array in (obs["z"], obs["a"], rewards, venv.get_original_obs()["z"]):
        array[:] = 77
    originals = [*venv.get_original_obs().values(), venv.get_original_reward()]
    assert not any((array == 77).all() for array in originals)
    assert inner.observation_space == before


@pytest.mark.parametrize("pair", [(own, own), (own, sb3), (sb3, own)])
def test_sync(pair):
    venv, evaluated = (
        package.VecNormalize(package.VecMonitor(package.DummyVecEnv(walkers()))) for package in pair
    )
    venv.reset()
    own.sync_envs_normalization(venv, evaluated)
    before = copy.deepcopy([venv.obs_rms, venv.ret_rms])
    venv.step(np.zeros(3, int))
    assert_same([evaluated.obs_rms, evaluated.ret_rms], before)
    assert venv.obs_rms.count > before[0].count
    own.sync_envs_normalization(evaluated.venv, own.VecMonitor(evaluated.unwrapped))
    for other, found in ((evaluated.unwrapped, "missing"), (evaluated.venv, "VecMonitor")):
        text = f"number 1 of eval_env is {found}, but that of env is VecNormalize"
        with pytest.raises(AssertionError, match=text):
            own.sync_envs_normalization(venv, other)


def test_a_wrapper_has_what_every_vec_env_has():
    with DummyVectorEnv(walkers(2)) as pool, pytest.raises(TypeError, match=r"pass PoolVecEnv\("):
        own.VecNormalize(pool)
    with own.VecMonitor(own.VecNormalize(own.DummyVecEnv(walkers(2)))) as venv:
        assert (len(venv), venv.closed, venv.is_closed) == (2, False, False)
        assert repr(venv).startswith("VecMonitor(VecNormalize(DummyVecEnv(DummyVectorEnv(")
        assert venv.restarts.tolist() == [0, 0]
    assert venv.closed
