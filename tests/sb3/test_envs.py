"""make_vec_env, Atari wrappers, monitors and old gym envs, against Stable-Baselines3's."""

import csv
import json
import sys
import types
from pathlib import Path

import ale_py  # noqa: F401 - registers the games
import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.atari_wrappers as sb3_atari
import stable_baselines3.common.env_util as sb3_env_util
import stable_baselines3.common.monitor as sb3_monitor
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward
from pandas.testing import assert_frame_equal

import envpool_py.sb3 as own
from envpool_py.sb3.common import atari_wrappers, env_util, monitor
from envpool_py.sb3.common.vec_env.patch_gym import _convert_space, _patch_env
from tests.sb3.envs import BOX, WalkEnv
from tests.sb3.reference import assert_same, walk_together


def plain():
    """An env that takes no render mode."""
    return WalkEnv()


gym.register("EnvpoolPyTests/Plain-v0", plain)


WRAPPED = {"env_id": WalkEnv, "n_envs": 2, "env_kwargs": {"obs": "dict"}}
WRAPPED |= {"wrapper_class": TransformReward, "wrapper_kwargs": {"func": abs}}
WRAPPED |= {"monitor_kwargs": {"info_keywords": ("left",)}}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"env_id": "CartPole-v1", "n_envs": 3, "env_kwargs": {"max_episode_steps": 9}},
        {"env_id": "EnvpoolPyTests/Plain-v0"},
        WRAPPED,
        {"env_id": "PongNoFrameskip-v4", "wrapper_kwargs": {"screen_size": 20}},
    ],
)
def test_make_vec_env(kwargs):
    name = "make_atari_env" if kwargs["env_id"] == "PongNoFrameskip-v4" else "make_vec_env"
    venvs = [getattr(package, name)(seed=7, **kwargs) for package in (env_util, sb3_env_util)]
    actions = [[venv.action_space.sample() for _ in range(5)] for venv in venvs]  # seeded alike
    np.testing.assert_array_equal(*actions)
    assert_same(*[venv.reset() for venv in venvs])
    assert walk_together(*venvs) > 1 or name == "make_atari_env"
    venvs[1].close()


def test_the_first_reset_is_seeded_and_start_index_counts(tmp_path):
    """Theirs takes no notice of start_index in the envs' seeds."""
    whole = own.make_vec_env(WalkEnv, 4, seed=3)
    folder = tmp_path / "deep" / "logs"
    part = own.make_vec_env(WalkEnv, 2, seed=3, start_index=2, monitor_dir=str(folder))
    np.testing.assert_array_equal(whole.reset()[2:], part.reset())
    assert part.get_attr("log")[0] == [(5, None)]
    part.close()
    assert {file.name for file in folder.iterdir()} == {"2.monitor.csv", "3.monitor.csv"}


def test_envs_that_can_not_be_made(monkeypatch):
    with pytest.raises(gym.error.NameNotFound, match="env 0: env_fn raised"):
        own.make_vec_env("Nothing-v0")
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"ale_py.*envpool-py\[atari\]"):
        env_util.make_atari_env("PongNoFrameskip-v4")


def test_a_spawned_process_registers_the_games():
    options = {"vec_env_cls": own.SubprocVecEnv, "vec_env_kwargs": {"start_method": "spawn"}}
    venv = env_util.make_atari_env("PongNoFrameskip-v4", **options)
    assert venv.reset().shape == (1, 84, 84, 1)


class Lives(WalkEnv):
    """Like an Atari game: it loses lives, and goes on for a frame without any."""

    def __init__(self, *meanings):
        super().__init__("image")
        self.action_space = spaces.Discrete(4)
        self.meanings = list(meanings) or ["NOOP", "FIRE", "UP", "DOWN"]
        self.ale = types.SimpleNamespace(lives=lambda: self.left // 2)

    def get_action_meanings(self):
        return self.meanings


def walk(env):
    """Everything that the env returns in many episodes."""
    rng = np.random.default_rng(0)
    rows = [env.reset(seed=5)]
    for _ in range(100):
        obs, *rest = env.step(int(rng.integers(4)))
        rows.append([np.asarray(obs), *rest])
        if rest[1] or rest[2]:
            rows.append(env.reset())
    return rows


OTHER = {"noop_max": 0, "frame_skip": 1, "screen_size": 8, "terminal_on_life_loss": False}
OTHER |= {"clip_reward": False, "action_repeat_probability": 0.25}


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("StickyActionEnv", {"action_repeat_probability": 0.4}),
        ("NoopResetEnv", {"noop_max": 9}),
        ("FireResetEnv", {}),
        ("EpisodicLifeEnv", {}),
        ("MaxAndSkipEnv", {}),
        ("MaxAndSkipEnv", {"skip": 1}),
        ("WarpFrame", {"width": 8, "height": 6}),
        ("AtariWrapper", {}),
        ("AtariWrapper", OTHER),
    ],
)
def test_atari_wrappers(name, kwargs):
    ours, theirs = (getattr(lib, name)(Lives(), **kwargs) for lib in (atari_wrappers, sb3_atari))
    assert ours.observation_space == theirs.observation_space
    assert_same(walk(ours), walk(theirs))


def test_games_that_can_not_be_wrapped(monkeypatch):
    for name, args, meanings in (
        ("StickyActionEnv", (0.1,), ("FIRE", "NOOP")),
        ("NoopResetEnv", (), ("FIRE", "NOOP")),
        ("FireResetEnv", (), ("NOOP", "UP", "FIRE")),
        ("FireResetEnv", (), ("NOOP", "FIRE")),
    ):
        for package in (atari_wrappers, sb3_atari):
            with pytest.raises(AssertionError):
                getattr(package, name)(Lives(*meanings), *args)
    with pytest.raises(AssertionError, match="WarpFrame needs a Box, got Discrete"):
        atari_wrappers.WarpFrame(gym.make("FrozenLake-v1"))
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"envpool-py\[atari\]"):
        atari_wrappers.WarpFrame(Lives())


MONITORS = (monitor, sb3_monitor)


def test_the_monitor(tmp_path):
    runs = []
    for package in MONITORS:
        path = tmp_path / f"{package.__name__}.monitor.csv"
        env = package.Monitor(Lives(), str(path), True, ("options",), ("left",))
        for seed in range(6):
            env.reset(seed=seed, options={"level": seed})
            while not env.needs_reset:
                info = env.step(1)[-1]
            runs.append(info)
        env.close()
        header, *rows = path.read_text().splitlines()
        names = ("rewards", "lengths", "times")
        rewards, lengths, times = (getattr(env, f"get_episode_{name}")() for name in names)
        totals = [rewards, lengths, len(times), env.get_total_steps()]
        runs.append([json.loads(header[1:]).keys(), [*csv.DictReader(rows)], *totals])
        assert env_util.is_wrapped(TransformReward(env, abs), monitor.Monitor)
        assert env_util.unwrap_wrapper(TransformReward(env, abs), sb3_monitor.Monitor) is env
        assert env_util.unwrap_wrapper(env, TimeLimit) is None
    assert_same(runs[:7], runs[7:])


@pytest.mark.parametrize("package", MONITORS)
def test_the_rules_of_the_monitor(package):
    with pytest.raises(ValueError, match="argument '?options"):
        package.Monitor(WalkEnv(), None, False, ("options",)).reset(seed=0)
    env = package.Monitor(WalkEnv(), None, False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="step.* reset"):
            env.step(0)
        env.reset()
        with pytest.raises(RuntimeError, match="allow_early_resets"):
            env.reset()
        while not env.needs_reset:
            env.step(0)


def test_results_are_read_alike(tmp_path, monkeypatch):
    folder = str(tmp_path)
    for package in MONITORS:
        with pytest.raises(package.LoadMonitorResultsError):
            package.load_results(folder)
    monitor.ResultsWriter(folder, {"t_start": 1e9}).close()
    assert_frame_equal(monitor.load_results(folder), sb3_monitor.load_results(folder))
    for name, override in (("a", True), ("b", False), ("b", False), ("a", True)):
        env = monitor.Monitor(Lives(), str(tmp_path / name), True, (), ("left",), override)
        walk(env)
        env.close()
    found = monitor.load_results(folder)
    assert len(found) == 3 * len(env.get_episode_lengths()) > 9  # the first file was replaced
    assert_frame_equal(found, sb3_monitor.load_results(folder))
    files = monitor.get_monitor_files(folder)
    assert sorted(files) == sorted(sb3_monitor.get_monitor_files(folder))
    assert {Path(file).name for file in files} == {"monitor.csv", "a.monitor.csv", "b.monitor.csv"}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas.*envpool-py\[sb3\]"):
        monitor.load_results(folder)


def test_old_envs_are_converted_by_shimmy(monkeypatch):
    """Gym and Shimmy are not installed; here an env of gym is a SimpleNamespace, a space an int."""
    env, namespace = WalkEnv(), types.SimpleNamespace
    assert (_patch_env(env), _convert_space(BOX)) == (env, BOX)
    new = namespace(unwrapped=namespace(reset=lambda seed: seed))
    old = namespace(unwrapped=namespace(reset=lambda: None))
    for convert, value in ((_patch_env, new), (_convert_space, 3)):
        with pytest.raises(ValueError, match="but a gymnasium"):
            convert(value)
    monkeypatch.setitem(sys.modules, "gym", namespace(Env=namespace, Space=int))
    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ImportError, match="needs Shimmy"):
        _patch_env(old)
    shimmy = namespace(
        GymV26CompatibilityV0=lambda env: ("26", env),
        GymV21CompatibilityV0=lambda env: ("21", env),
        openai_gym_compatibility=namespace(_convert_space=str),
    )
    monkeypatch.setitem(sys.modules, "shimmy", shimmy)
    with pytest.warns(UserWarning, match="converted by Shimmy"):
        assert [_patch_env(new), _patch_env(old)] == [("26", new), ("21", old)]
    with pytest.warns(UserWarning, match="converted by Shimmy"):
        assert _convert_space(3) == "3"
