"""Functions and wrappers of single envs, and check_env, against Stable-Baselines3's."""

import csv
import json
import re
import sys
import types

import ale_py  # noqa: F401 - registers the games
import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import stable_baselines3.common.atari_wrappers as sb3_atari
import stable_baselines3.common.env_util as sb3_env_util
import stable_baselines3.common.monitor as sb3_monitor
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.envs import BitFlippingEnv

import envpool_py.sb3 as own
from envpool_py.sb3.common import atari_wrappers, env_util, monitor
from envpool_py.sb3.common.env_checker import EnvCheckError, check_env
from tests.sb3.envs import WalkEnv
from tests.sb3.reference import assert_same, outcome, walk_together
from tests.support.checked import Good, changed, raises
from tests.support.envs import draw

gym.register("EnvpoolPyTests/Plain-v0", lambda: WalkEnv("box"))  # takes no render mode

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


def test_start_index_shifts_what_it_shifts_there(tmp_path):
    venvs = [
        package.make_vec_env(WalkEnv, 2, seed=3, start_index=2, monitor_dir=str(tmp_path / name))
        for name, package in (("ours", env_util), ("theirs", sb3_env_util))
    ]
    assert_same(*[venv.reset() for venv in venvs])
    assert venvs[0].get_attr("log") == venvs[1].get_attr("log") == [[(3, None)], [(4, None)]]
    drawn = [[space.sample() for space in venv.get_attr("action_space")] for venv in venvs]
    np.testing.assert_array_equal(*drawn)
    for venv in venvs:
        venv.close()
    files = [{file.name for file in path.iterdir()} for path in sorted(tmp_path.iterdir())]
    assert files == [{"2.monitor.csv", "3.monitor.csv"}] * 2


def test_a_spawned_process_registers_the_games(monkeypatch):
    options = {"vec_env_cls": own.SubprocVecEnv, "vec_env_kwargs": {"start_method": "spawn"}}
    venv = env_util.make_atari_env("PongNoFrameskip-v4", **options)
    assert venv.reset().shape == (1, 84, 84, 1)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"ale_py.*\[atari\]"):
        env_util.make_atari_env("PongNoFrameskip-v4")


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
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"\[atari\]"):
        atari_wrappers.WarpFrame(Lives())


MONITORS = (monitor, sb3_monitor)


def test_the_monitor(tmp_path):
    runs = []
    for package in MONITORS:
        path = tmp_path / f"{package.__name__}.monitor.csv"
        env = package.Monitor(Lives(), str(path), True, ("options",), ("left",))
        infos = []
        for seed in range(6):
            env.reset(seed=seed, options={"level": seed})
            while not env.needs_reset:
                info = env.step(1)[-1]
            infos.append(info)
        env.close()
        header, *rows = path.read_text().splitlines()
        runs.append([infos, json.loads(header[1:]).keys(), [*csv.DictReader(rows)]])
        runs[-1] += [env.get_episode_rewards(), env.get_episode_lengths(), env.get_total_steps()]
        assert len(env.get_episode_times()) == 6
        assert env_util.is_wrapped(TransformReward(env, abs), monitor.Monitor)
        assert env_util.unwrap_wrapper(TransformReward(env, abs), sb3_monitor.Monitor) is env
        assert env_util.unwrap_wrapper(env, TimeLimit) is None
    assert_same(*runs)


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


def test_the_files_are_read_by_pandas_and_by_stable_baselines(tmp_path):
    monitor.ResultsWriter(str(tmp_path), {"t_start": 1e9}).close()
    for name, override in (("a", True), ("b", False), ("b", False), ("a", True)):
        env = monitor.Monitor(Lives(), str(tmp_path / name), True, (), ("left",), override)
        walk(env)
        env.close()
    names = ("monitor.csv", "a.monitor.csv", "b.monitor.csv")
    files = [pd.read_csv(tmp_path / name, skiprows=1) for name in names]
    count = len(env.get_episode_lengths())
    assert [len(file) for file in files] == [0, count, 2 * count]  # the first "a" was replaced
    found = sb3_monitor.load_results(str(tmp_path))
    assert sorted(found["left"]) == sorted([*files[1]["left"], *files[2]["left"]])
    assert {path.name for path in tmp_path.iterdir()} == {*names}


# ---------------------------------------------------------------------------------- check_env

OBS = Good.observation_space
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
ZERO = np.zeros(3, np.float32)
ROW = (ZERO, 1.0, False, False, {})


def env(space=OBS, *value, **other):
    """An env that observes this value, or else what it draws from its space."""
    obs = (lambda _: value[0]) if value else (lambda self: draw(space, self.np_random))
    return changed(observation_space=space, obs=obs, **other)


def giving(*result):
    return lambda *_, **__: result


def box(shape, low=-1, high=1, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def goal(compute_reward):
    return type("Goal", (BitFlippingEnv,), {"compute_reward": compute_reward})


SQUARE = spaces.MultiDiscrete([[3, 4], [5, 6]])
FROM_2 = spaces.MultiDiscrete([3, 3], start=[0, 2])

CASES = [
    # Errors.
    (object, "must inherit from gymnasium.Env, got object"),
    (changed(observation_space=[1, 2]), r"observation_space: it must be one of .*, got \[1, 2\]"),
    (env(action_space=box((2,), high=np.inf)), "action_space: .* unbounded"),
    (env(reset=giving(ZERO, {}, 1)), r"reset\(\) must return a tuple \(obs, info\), got 3 values"),
    (env(reset=giving(ZERO, [])), "info dict, got list"),
    (env(OBS, (ZERO,)), "must be a single value, got a tuple"),
    (env(spaces.Discrete(3), 1.0), "must be an int, got float"),
    (env(OBS, [0.0] * 3), "must be an array, got list"),
    (env(OBS, np.zeros((2, 3), np.float32)), r"Expected: \(3,\), actual shape: \(2, 3\)"),
    (env(OBS, np.zeros(3)), "Expected: float32, actual dtype: float64"),
    (env(OBS, ZERO + 5), r"3 invalid indices: .*; .*1.0 <= obs\[1\] <= 1.0, actual value: 5.0; "),
    (env(spaces.Discrete(3), 9), "is not in observation_space"),
    (env(DICT, ZERO), "must be a dict, got ndarray"),
    (env(DICT, {"a": 0, "c": 0}), r"has the keys \['a', 'c'\], but needs \['a', 'b'\]"),
    (env(DICT, {"a": ZERO, "b": 0}), r"key=a: .*Expected: \(2,\), actual shape: \(3,\)"),
    (env(step=giving(*ROW[:4])), r"step\(\) must return a tuple \(obs, reward, .*\), got 4 values"),
    (env(step=giving(ZERO, np.float32(1), *ROW[2:])), "the reward must be a float, got float32"),
    (env(step=giving(ZERO, 1.0, np.False_, False, {})), "terminated must be a bool, got bool"),
    (env(step=giving(ZERO, 1.0, False, 0, {})), "truncated must .*got int"),
    (env(step=giving(*ROW[:4], None)), "the info must be a dict"),
    (env(compute_reward=giving(1.0)), "observation_space: a goal env needs a Dict"),
    (env(DICT, compute_reward=giving(1.0)), r"keys \['achieved_goal', 'desired_goal', 'observ"),
    (goal(lambda *args: np.float32(-3 if args[-1] else -1)), r"reward -1.0, but .*\(\) -3.0"),
    (goal(lambda *_: np.float32(-1)), r"compute_reward\(\) of 2 goals has shape \(\), not \(2,\)"),
    # Warnings.
    (env(spaces.Dict({"k": FROM_2})), r"\['k'\]: MultiDiscrete starts at \[0 2\]"),
    (env(spaces.Dict({"in": DICT})), "Nested observation spaces are not supported"),
    (env(spaces.Tuple((box((2, 2)), FROM_2))), "observation_space: Tuple is not supported"),
    (env(spaces.OneOf((OBS, spaces.Discrete(2)))), "OneOf is not supported"),
    (env(spaces.Dict({"s": spaces.Sequence(OBS)})), "Sequence is not supported"),
    (env(action_space=SQUARE), r"action_space: MultiDiscrete of shape \(2, 2\)"),
    (env(action_space=DICT), "action_space: Dict is not supported"),
    (env(box((64, 64, 3), 0, 255)), r"shape \(64, 64, 3\) is .*an image, but dtype is float32"),
    (env(box((64, 64, 3), 0, 200, np.uint8)), "its bounds are not 0 and 255"),
    (env(box((20, 64, 3), 0, 255, np.uint8)), "it is smaller than 36x36"),
    (env(box((64, 3, 64), 0, 255, np.uint8)), "the second dimension is the smallest"),
    (env(box((2, 2))), r"shape \(2, 2\) is neither that of a vector nor that of an image"),
    (env(action_space=box((2,), low=-2)), "from -2 to 1, but policies learn best from -1 to 1"),
    (env(action_space=box((2,), dtype=np.float64)), "action_space: dtype is float64"),
    (env(step=giving(ZERO, np.nan, *ROW[2:])), "the env returned a NaN or an infinity"),
    (Good, ""),
    (BitFlippingEnv, ""),
    (lambda: own.Monitor(gym.make("CartPole-v1")), ""),
    # Stable-Baselines3 does not look at seeds, options and buffers.
    (changed(obs=lambda _: ZERO), ""),
    (changed(reset=lambda self, seed=3: Good.reset(self)), ""),  # noqa: ARG005
]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_errors_and_warnings(make, text):
    error, ours = outcome(check_env, make())
    their_error, theirs = outcome(sb3_check_env, make())
    if error is None:
        assert their_error is None
        assert len(ours) == len(theirs)
        of_values = [message for message in ours if "NaN" in message]
        assert outcome(check_env, make(), warn=False) == (None, of_values)
    else:
        assert isinstance(error, EnvCheckError)
        assert isinstance(error, AssertionError)
        assert isinstance(their_error, (AssertionError, TypeError))
        ours = [str(error)]
    assert bool(text) == any(re.search(text, message) for message in ours)


@pytest.mark.parametrize("attributes", [{"reset": Good.obs}, {"reset": raises}, {"step": raises}])
def test_errors_of_envs_are_not_changed(attributes):
    make = changed(**attributes)
    ours, theirs = (outcome(check, make())[0] for check in (check_env, sb3_check_env))
    assert type(ours) is type(theirs) in (TypeError, ValueError)
    assert type(ours.__cause__) is type(theirs.__cause__)


def test_rendering_is_checked_if_asked_for():
    closed = []
    env = changed(close=lambda _: closed.append(1), metadata={})()
    check_env(env)
    assert not closed
    for check in (sb3_check_env, check_env):
        error, [text] = outcome(check, env, skip_render_check=False)
        assert (error, "render" in text) == (None, True)
    assert len(closed) == 2


def test_only_actions_that_the_mask_allows_are_used():
    """Stable-Baselines3's raises if the env refuses an action that its mask forbids."""

    class Strict(InvalidActionEnvDiscrete):
        def step(self, action):
            assert action == self.state
            return super().step(action)

    assert outcome(check_env, Strict(3, 8, n_invalid_actions=2)) == (None, [])
