"""check_env raises and warns where Stable-Baselines3's does, and nowhere else."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import envpool_py.sb3 as own
from envpool_py.sb3.common.env_checker import EnvCheckError, check_env
from tests.sb3.envs import GoalEnv, MaskedEnv, WalkEnv
from tests.support.checked import Good, changed, raises
from tests.support.envs import BufferEnv

BOX = Good.observation_space
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
ZERO = np.zeros(3, np.float32)


def drawn(self: Any) -> Any:
    self.observation_space.seed(int(self.np_random.integers(1 << 30)))
    return self.observation_space.sample()


def observing(space: Any) -> type[gym.Env]:
    """An env that draws from this space."""
    return changed(observation_space=space, obs=drawn)


def acting(space: Any) -> type[gym.Env]:
    return changed(action_space=space)


def returning(obs: Any, space: Any = BOX) -> type[gym.Env]:
    """An env that observes this value."""
    return changed(observation_space=space, obs=lambda _: obs)


def stepping(**other: Any) -> type[gym.Env]:
    """An env with another reward, terminated, truncated or info."""

    def step(self: Any, _: Any) -> Any:
        usual = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        return (self.obs(), *(usual | other).values())

    return changed(step=step)


def resetting(result: Any) -> type[gym.Env]:
    def reset(self: Any, *, seed: Any = None, options: Any = None) -> Any:
        Good.reset(self, seed=seed, options=options)
        return result

    return changed(reset=reset)


class OtherReward(GoalEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, -3.0, *rest)


class OneGoal(GoalEnv):
    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return -np.float64(np.linalg.norm(achieved - desired) > 0.2)


GOAL = {"compute_reward": lambda *_: 1.0}
DICT_GOAL = {**GOAL, "observation_space": DICT, "obs": lambda _: {"a": ZERO[:2], "b": 0}}
FOUR_VALUES = {"step": lambda self, _: (self.obs(), 1.0, False, {})}
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
FAR = np.array([0, 5, -7], np.float32)
PLACES = r"2 invalid indices: .*-1.0 <= obs\[1\] <= 1.0, actual value: 5.0; .*obs\[2\] .*: -7.0"

# Of each thing that Stable-Baselines3 checks.
ERRORS: list[tuple[Callable[[], Any], str]] = [
    (object, "must inherit from gymnasium.Env, got object"),
    (changed(observation_space=None), "observation_space: .* got None"),
    (changed(action_space=None), "action_space: .* got None"),
    (changed(observation_space=[1, 2]), r"observation_space: it must be one of .*, got \[1, 2\]"),
    (changed(action_space=4), "action_space: .* got 4"),
    (acting(UNBOUNDED), "action_space: .* unbounded"),
    (resetting(ZERO), r"reset\(\) must return a tuple \(obs, info\), got ndarray"),
    (resetting((ZERO, {}, 1)), "got 3 values"),
    (resetting((ZERO, [])), "info dict, got list"),
    (returning((ZERO,)), "must be a single value, got a tuple"),
    (returning(1.0, spaces.Discrete(3)), "must be an int, got float"),
    (returning([0.0] * 3), "must be an array, got list"),
    (returning(np.zeros((2, 3), np.float32)), r"Expected: \(3,\), actual shape: \(2, 3\)"),
    (returning(np.zeros(3)), "Expected: float32, actual dtype: float64"),
    (returning(FAR), PLACES),
    (returning(9, spaces.Discrete(3)), "is not in observation_space"),
    (returning(ZERO, DICT), "must be a dict, got ndarray"),
    (returning({"a": 0, "c": 0}, DICT), r"has the keys \['a', 'c'\], but needs \['a', 'b'\]"),
    (returning({"a": ZERO, "b": 0}, DICT), r"key=a: .*Expected: \(2,\), actual shape: \(3,\)"),
    (changed(**FOUR_VALUES), r"step\(\) must return a tuple \(obs, reward, .*\), got 4 values"),
    (stepping(reward=np.float32(1)), "the reward must be a float, got float32"),
    (stepping(terminated=np.False_), "terminated must be a bool, got bool"),
    (stepping(truncated=0), "truncated must .*got int"),
    (stepping(info=None), "the info must be a dict"),
    (changed(**GOAL), "observation_space: a goal env needs a Dict"),
    (changed(**DICT_GOAL), r"needs the keys \['achieved_goal', 'desired_goal', 'observation'\]"),
    (OtherReward, r"step\(\) returned the reward -3.0, but compute_reward\(\) "),
    (OneGoal, r"compute_reward\(\) of 2 goals has shape \(\), not \(2,\)"),
]


def raised(check: Callable[..., None], env: Any) -> BaseException:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - the other check says which
            check(env)
    return caught.value


@pytest.mark.parametrize(("make", "text"), ERRORS)
def test_the_same_errors(make: Callable[[], Any], text: str) -> None:
    assert isinstance(raised(sb3_check_env, make()), (AssertionError, TypeError))
    error = raised(check_env, make())
    assert isinstance(error, EnvCheckError)
    assert isinstance(error, AssertionError)
    assert re.search(text, str(error))


NO_SEED = changed(reset=lambda self: (self.obs(), {}))


@pytest.mark.parametrize("make", [NO_SEED, changed(reset=raises), changed(step=raises)])
def test_errors_of_the_same_type(make: Callable[[], Any]) -> None:
    ours, theirs = raised(check_env, make()), raised(sb3_check_env, make())
    assert type(ours) is type(theirs) in (TypeError, ValueError)
    assert type(ours.__cause__) is type(theirs.__cause__)


def image(shape: tuple = (64, 64, 3), high: int = 255, dtype: Any = np.uint8) -> type[gym.Env]:
    return observing(spaces.Box(0, high, shape, dtype))


def box(shape: tuple, low: float = -1, dtype: Any = np.float32) -> Any:
    return spaces.Box(low, 1, shape, dtype)


SQUARE = spaces.MultiDiscrete([[3, 4], [5, 6]])
FROM_2 = spaces.MultiDiscrete([3, 3], start=[0, 2])
SEQUENCE = spaces.Sequence(BOX)
GRAPH = spaces.Graph(box((2,)), spaces.Discrete(2))

WARNINGS: list[tuple[Callable[[], Any], str]] = [
    (observing(spaces.Discrete(3, start=1)), "observation_space: Discrete starts at 1"),
    (observing(spaces.Dict({"k": FROM_2})), r"\['k'\]: MultiDiscrete starts at \[0 2\]"),
    (acting(spaces.Discrete(3, start=1)), "action_space: Discrete starts at 1"),
    (observing(spaces.Dict({"in": DICT})), "Nested observation spaces are not supported"),
    (observing(SQUARE), r"observation_space: MultiDiscrete of shape \(2, 2\)"),
    (observing(spaces.Tuple((box((2, 2)), FROM_2))), "observation_space: Tuple is not supported"),
    (observing(spaces.OneOf((BOX, spaces.Discrete(2)))), "OneOf is not supported"),
    (observing(SEQUENCE), "Sequence is not supported"),
    (observing(spaces.Dict({"s": SEQUENCE})), "Sequence is not supported"),
    (observing(GRAPH), "Graph is not supported"),
    (acting(SQUARE), r"action_space: MultiDiscrete of shape \(2, 2\)"),
    (acting(DICT), "action_space: Dict is not supported"),
    (image(dtype=np.float32), r"shape \(64, 64, 3\) is that of an image, but dtype is float32"),
    (image(high=200), "its bounds are not 0 and 255"),
    (image((20, 64, 3)), "it is smaller than 36x36"),
    (image((64, 3, 64)), "the second dimension is the smallest"),
    (observing(box((2, 2))), r"shape \(2, 2\) is neither that of a vector nor that of an image"),
    (acting(box((2,), low=-2)), "from -2 to 1, but policies learn best from -1 to 1"),
    (acting(box((2,), dtype=np.float64)), "action_space: dtype is float64"),
]


def warned(check: Callable[..., None], env: Any, **kwargs: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(env, **kwargs)
    assert check is not check_env or all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(("make", "text"), WARNINGS)
def test_the_same_number_of_warnings(make: Callable[[], Any], text: str) -> None:
    ours = warned(check_env, make())
    assert len(ours) == len(warned(sb3_check_env, make())) > 0
    assert [message for message in ours if re.search(text, message)]
    assert warned(check_env, make(), warn=False) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_warned_of_once(value: float) -> None:
    def step(self: Any, action: Any) -> Any:
        obs, reward, *rest = Good.step(self, action)
        return (obs, value if self.t == 4 else reward, *rest)

    late = changed(step=step)
    assert len(warned(sb3_check_env, late())) == 1
    assert warned(check_env, late()) == ["the env returned a NaN or an infinity"]


def test_rendering_is_checked_if_asked_for() -> None:
    closed = []
    env = changed(close=lambda _: closed.append(1), metadata={})()
    check_env(env)
    assert not closed
    for check in (sb3_check_env, check_env):
        [text] = warned(check, env, skip_render_check=False)
        assert "render" in text
    assert len(closed) == 2


def unseeded(self: Any, *, seed: int | None = None, options: dict | None = None) -> Any:
    del seed, options
    self.t = 0
    return self.obs(), {}


QUIET: list[Callable[[], gym.Env]] = [
    Good,
    acting(box((2, 2))),
    WalkEnv,
    GoalEnv,
    lambda: gym.make("FrozenLake-v1"),
    lambda: gym.make("CliffWalking-v1"),  # without chance, and without an end
    lambda: own.Monitor(gym.make("CartPole-v1")),
    # Finding 18: Stable-Baselines3 does not look at seeds, options and buffers.
    changed(obs=lambda self: np.full(3, self.t % 2, np.float32)),
    lambda: BufferEnv(0),
    changed(reset=unseeded),
    changed(reset=lambda self, seed=3: Good.reset(self, seed=seed)),
]


@pytest.mark.parametrize("make", QUIET)
def test_the_same_envs_pass_without_a_warning(make: Callable[[], gym.Env]) -> None:
    assert warned(sb3_check_env, make()) == warned(check_env, make()) == []


def test_masks_are_heeded() -> None:
    """Stable-Baselines3's raises if the env refuses an action that its mask forbids."""
    assert warned(check_env, MaskedEnv()) == []
