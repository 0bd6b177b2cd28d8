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
from tests.sb3.envs import GoalEnv, MaskedEnv, NoGenerator, ReuseEnv, WalkEnv


class Good(gym.Env):
    """Right in all; what is put in its place makes it wrong in one thing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def step(self, _: Any) -> Any:
        self.t += 1
        return self.obs(), 1.0, False, self.t >= 5, {}


def with_spaces(space: Any = Good.observation_space, action: Any = Good.action_space) -> gym.Env:
    """An env that draws from its spaces."""

    class Env(Good):
        observation_space = space
        action_space = action

        def obs(self) -> Any:
            self.observation_space.seed(int(self.np_random.integers(1 << 30)))
            return self.observation_space.sample()

    return Env()


def with_methods(**methods: Any) -> gym.Env:
    return type("Env", (Good,), methods)()


def steps(**changed: Any) -> Callable[..., Any]:
    """A step with another reward, terminated, truncated or info."""

    def step(self: Any, _: Any) -> Any:
        usual = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        return (self.obs(), *(usual | changed).values())

    return step


def resets(result: Any) -> Callable[..., Any]:
    def reset(self: Any, *, seed: Any = None, options: Any = None) -> Any:
        gym.Env.reset(self, seed=seed, options=options)
        self.t = 0
        return result

    return reset


def observes(value: Any, space: Any = None) -> gym.Env:
    return with_methods(
        obs=lambda _: value,
        observation_space=Good.observation_space if space is None else space,
    )


def no_seed(self: Any) -> Any:
    return self.obs(), {}


def raises(*_: Any, **__: Any) -> Any:
    raise ValueError("boom")


ZERO = np.zeros(3, np.float32)
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
BOX3 = Good.observation_space


class OtherReward(GoalEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, -3.0, *rest)


class OneGoal(GoalEnv):
    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return -np.float64(np.linalg.norm(achieved - desired) > 0.2)


class Spaceless(gym.Env):
    pass


class Actionless(gym.Env):
    observation_space = Good.observation_space


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "no env": (object, "must inherit from gymnasium.Env, got object"),
    "no observation space": (
        Spaceless,
        "observation_space: .* got None",
    ),
    "no action space": (
        Actionless,
        "action_space: .* got None",
    ),
    "a list for a space": (
        lambda: with_methods(observation_space=[1, 2]),
        r"observation_space: it must be one of gymnasium.spaces, got \[1, 2\]",
    ),
    "a number for a space": (lambda: with_methods(action_space=4), "action_space: .* got 4"),
    "unbounded actions": (
        lambda: with_spaces(action=spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        "action_space: .* unbounded",
    ),
    "reset of one value": (
        lambda: with_methods(reset=resets(ZERO)),
        r"reset\(\) must return a tuple \(obs, info\), got ndarray",
    ),
    "reset of three": (lambda: with_methods(reset=resets((ZERO, {}, 1))), "got 3 values"),
    "reset without dict": (lambda: with_methods(reset=resets((ZERO, []))), "info dict, got list"),
    "a tuple": (lambda: observes((ZERO,)), "must be a single value, got a tuple"),
    "no int": (lambda: observes(1.0, spaces.Discrete(3)), "must be an int, got float"),
    "a list": (lambda: observes([0.0] * 3), "must be an array, got list"),
    "another shape": (
        lambda: observes(np.zeros((2, 3), np.float32)),
        r"Expected: \(3,\), actual shape: \(2, 3\)",
    ),
    "another dtype": (
        lambda: observes(np.zeros(3)),
        "Expected: float32, actual dtype: float64",
    ),
    "out of bounds": (
        lambda: observes(np.array([0, 5, -7], np.float32)),
        r"2 invalid indices: .*-1.0 <= obs\[1\] <= 1.0, actual value: 5.0; .*obs\[2\] .*: -7.0",
    ),
    "out of a Discrete": (lambda: observes(9, spaces.Discrete(3)), "is not in observation_space"),
    "no dict": (lambda: observes(ZERO, DICT), "must be a dict, got ndarray"),
    "other keys": (
        lambda: observes({"a": ZERO[:2], "c": 0}, DICT),
        r"has the keys \['a', 'c'\], but needs \['a', 'b'\]",
    ),
    "within a dict": (
        lambda: observes({"a": ZERO, "b": 0}, DICT),
        r"key=a: .*Expected: \(2,\), actual shape: \(3,\)",
    ),
    "four values": (
        lambda: with_methods(step=lambda self, _: (self.obs(), 1.0, False, {})),
        r"step\(\) must return a tuple \(obs, reward, .*\), got 4 values",
    ),
    "a float32 reward": (
        lambda: with_methods(step=steps(reward=np.float32(1))),
        "the reward must be a float, got float32",
    ),
    "terminated": (
        lambda: with_methods(step=steps(terminated=np.False_)),
        r"terminated must be a bool, got bool",
    ),
    "truncated": (lambda: with_methods(step=steps(truncated=0)), "truncated must .*got int"),
    "no info": (lambda: with_methods(step=steps(info=None)), "the info must be a dict"),
    "a goal without Dict": (
        lambda: with_methods(compute_reward=lambda *_: 1.0),
        "observation_space: a goal env needs a Dict",
    ),
    "goal keys": (
        lambda: with_methods(
            compute_reward=lambda *_: 1.0,
            observation_space=DICT,
            obs=lambda _: {"a": ZERO[:2], "b": 0},
        ),
        r"needs the keys \['achieved_goal', 'desired_goal', 'observation'\]",
    ),
    "goal reward": (OtherReward, r"step\(\) returned the reward -3.0, but compute_reward\(\) "),
    "goals one by one": (OneGoal, r"compute_reward\(\) of 2 goals has shape \(\), not \(2,\)"),
}
"""Of each thing that Stable-Baselines3 checks."""


def raised(check: Callable[..., None], env: Any) -> BaseException:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - the other check says which
            check(env)
    return caught.value


@pytest.mark.parametrize("case", ERRORS)
def test_the_same_errors(case: str) -> None:
    make, text = ERRORS[case]
    assert isinstance(raised(sb3_check_env, make()), (AssertionError, TypeError))
    error = raised(check_env, make())
    assert isinstance(error, EnvCheckError)
    assert isinstance(error, AssertionError)
    assert re.search(text, str(error))


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_methods(reset=no_seed),
        lambda: with_methods(reset=raises),
        lambda: with_methods(step=raises),
    ],
)
def test_errors_of_the_same_type(make: Callable[[], Any]) -> None:
    ours, theirs = raised(check_env, make()), raised(sb3_check_env, make())
    assert type(ours) is type(theirs) in (TypeError, ValueError)
    assert type(ours.__cause__) is type(theirs.__cause__)


def image(shape: tuple = (64, 64, 3), low: int = 0, high: int = 255, dtype: Any = np.uint8) -> Any:
    return spaces.Box(low, high, shape, dtype)


WARNINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "an observation from 1": (
        lambda: with_spaces(spaces.Discrete(3, start=1)),
        "observation_space: Discrete starts at 1",
    ),
    "an entry from 2": (
        lambda: with_spaces(spaces.Dict({"k": spaces.MultiDiscrete([3, 3], start=[0, 2])})),
        r"observation_space\['k'\]: MultiDiscrete starts at \[0 2\]",
    ),
    "an action from 1": (
        lambda: with_spaces(action=spaces.Discrete(3, start=1)),
        "action_space: Discrete starts at 1",
    ),
    "a Dict within a Dict": (
        lambda: with_spaces(spaces.Dict({"in": DICT})),
        "Nested observation spaces are not supported",
    ),
    "two dimensions of MultiDiscrete": (
        lambda: with_spaces(spaces.MultiDiscrete([[3, 4], [5, 6]])),
        r"observation_space: MultiDiscrete of shape \(2, 2\)",
    ),
    "a Tuple": (
        lambda: with_spaces(spaces.Tuple((BOX3,))),
        "observation_space: Tuple is not supported",
    ),
    "a OneOf": (
        lambda: with_spaces(spaces.OneOf((BOX3, spaces.Discrete(2)))),
        "observation_space: OneOf is not supported",
    ),
    "a Sequence": (lambda: with_spaces(spaces.Sequence(BOX3)), "Sequence is not supported"),
    "a Sequence in a Dict": (
        lambda: with_spaces(spaces.Dict({"s": spaces.Sequence(BOX3)})),
        "Sequence is not supported",
    ),
    "a Graph": (
        lambda: with_spaces(spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))),
        "Graph is not supported",
    ),
    "two dimensions of action": (
        lambda: with_spaces(action=spaces.MultiDiscrete([[3, 4], [5, 6]])),
        r"action_space: MultiDiscrete of shape \(2, 2\)",
    ),
    "actions in a Dict": (lambda: with_spaces(action=DICT), "action_space: Dict is not supported"),
    "a float image": (
        lambda: with_spaces(image(dtype=np.float32)),
        r"shape \(64, 64, 3\) is that of an image, but dtype is float32",
    ),
    "image bounds": (lambda: with_spaces(image(high=200)), "its bounds are not 0 and 255"),
    "a small image": (lambda: with_spaces(image((20, 64, 3))), "it is smaller than 36x36"),
    "channels in between": (
        lambda: with_spaces(image((64, 3, 64))),
        "the second dimension is the smallest",
    ),
    "a matrix": (
        lambda: with_spaces(spaces.Box(-1, 1, (2, 2), np.float32)),
        r"shape \(2, 2\) is neither that of a vector nor that of an image",
    ),
    "wide actions": (
        lambda: with_spaces(action=spaces.Box(-2, 1, (2,), np.float32)),
        "action_space: from -2 to 1, but policies learn best from -1 to 1",
    ),
    "actions of double": (
        lambda: with_spaces(action=spaces.Box(-1, 1, (2,), np.float64)),
        "action_space: dtype is float64",
    ),
}


def warned(check: Callable[..., None], env: Any, **kwargs: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(env, **kwargs)
    assert check is not check_env or all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("case", WARNINGS)
def test_the_same_number_of_warnings(case: str) -> None:
    make, text = WARNINGS[case]
    ours = warned(check_env, make())
    assert len(ours) == len(warned(sb3_check_env, make())) > 0
    assert [message for message in ours if re.search(text, message)]
    assert warned(check_env, make(), warn=False) == []


def late(value: Any) -> Callable[[], gym.Env]:
    """An env whose fourth step returns ``value`` as a reward."""

    def step(self: Any, action: Any) -> Any:
        obs, reward, *rest = Good.step(self, action)
        return (obs, value if self.t == 4 else reward, *rest)

    return lambda: with_methods(step=step)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_warned_of_once(value: float) -> None:
    assert len(warned(sb3_check_env, late(value)())) == 1
    assert warned(check_env, late(value)()) == ["the env returned a NaN or an infinity"]


def test_rendering_is_checked_if_asked_for() -> None:
    closed = []
    env = with_methods(close=lambda _: closed.append(1), metadata={})
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
    WalkEnv,
    GoalEnv,
    lambda: gym.make("CartPole-v1"),
    lambda: gym.make("FrozenLake-v1"),
    lambda: gym.make("CliffWalking-v1"),  # without chance, and without an end
    lambda: own.Monitor(gym.make("CartPole-v1")),
    # Finding 18: Stable-Baselines3 does not look at seeds, options and buffers.
    NoGenerator,
    ReuseEnv,
    lambda: with_methods(reset=unseeded),
    lambda: with_methods(reset=lambda self, seed=3: Good.reset(self, seed=seed)),
]


@pytest.mark.parametrize("make", QUIET)
def test_the_same_envs_pass_without_a_warning(make: Callable[[], gym.Env]) -> None:
    assert warned(sb3_check_env, make()) == warned(check_env, make()) == []


def test_masks_are_heeded() -> None:
    """Stable-Baselines3's raises if the env refuses an action that its mask forbids."""
    assert warned(check_env, MaskedEnv()) == []
