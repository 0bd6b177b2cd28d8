"""check_env raises and warns where Stable-Baselines3's does, and nowhere else."""

import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.envs import BitFlippingEnv

import envpool_py.sb3 as own
from envpool_py.sb3.common.env_checker import EnvCheckError, check_env
from tests.sb3.envs import WalkEnv
from tests.support.checked import Good, changed, raises
from tests.support.envs import draw

BOX = Good.observation_space
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
ZERO = np.zeros(3, np.float32)
ROW = (ZERO, 1.0, False, False, {})


def env(space=BOX, *value, **other):
    """An env that observes this value, or else what it draws from its space."""
    obs = (lambda _: value[0]) if value else (lambda self: draw(space, self.np_random))
    return changed(observation_space=space, obs=obs, **other)


def giving(*result):
    return lambda *_, **__: result


def box(shape, low=-1, high=1, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def goal(compute_reward):
    return type("Goal", (BitFlippingEnv,), {"compute_reward": compute_reward})


class Late(Good):
    """Its fourth reward is no number."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, np.nan if self.t == 4 else reward, *rest)


UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
FAR = np.array([0, 5, -7], np.float32)
PLACES = r"2 invalid indices: .*-1.0 <= obs\[1\] <= 1.0, actual value: 5.0; .*obs\[2\] .*: -7.0"
SQUARE = spaces.MultiDiscrete([[3, 4], [5, 6]])
FROM_2 = spaces.MultiDiscrete([3, 3], start=[0, 2])
SEQUENCE = spaces.Sequence(BOX)
HELD = np.zeros(3, np.float32)

CASES = [
    # Errors.
    (object, "must inherit from gymnasium.Env, got object"),
    (changed(observation_space=[1, 2]), r"observation_space: it must be one of .*, got \[1, 2\]"),
    (env(action_space=4), "action_space: .* got 4"),
    (env(action_space=UNBOUNDED), "action_space: .* unbounded"),
    (env(reset=giving(ZERO, {}, 1)), r"reset\(\) must return a tuple \(obs, info\), got 3 values"),
    (env(reset=giving(ZERO, [])), "info dict, got list"),
    (env(BOX, (ZERO,)), "must be a single value, got a tuple"),
    (env(spaces.Discrete(3), 1.0), "must be an int, got float"),
    (env(BOX, [0.0] * 3), "must be an array, got list"),
    (env(BOX, np.zeros((2, 3), np.float32)), r"Expected: \(3,\), actual shape: \(2, 3\)"),
    (env(BOX, np.zeros(3)), "Expected: float32, actual dtype: float64"),
    (env(BOX, FAR), PLACES),
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
    (env(spaces.Discrete(3, start=1)), "observation_space: Discrete starts at 1"),
    (env(spaces.Dict({"k": FROM_2})), r"\['k'\]: MultiDiscrete starts at \[0 2\]"),
    (env(action_space=spaces.Discrete(3, start=1)), "action_space: Discrete starts at 1"),
    (env(spaces.Dict({"in": DICT})), "Nested observation spaces are not supported"),
    (env(SQUARE), r"observation_space: MultiDiscrete of shape \(2, 2\)"),
    (env(spaces.Tuple((box((2, 2)), FROM_2))), "observation_space: Tuple is not supported"),
    (env(spaces.OneOf((BOX, spaces.Discrete(2)))), "OneOf is not supported"),
    (env(spaces.Dict({"s": SEQUENCE})), "Sequence is not supported"),
    (env(action_space=SQUARE), r"action_space: MultiDiscrete of shape \(2, 2\)"),
    (env(action_space=DICT), "action_space: Dict is not supported"),
    (env(box((64, 64, 3), 0, 255)), r"shape \(64, 64, 3\) is .*an image, but dtype is float32"),
    (env(box((64, 64, 3), 0, 200, np.uint8)), "its bounds are not 0 and 255"),
    (env(box((20, 64, 3), 0, 255, np.uint8)), "it is smaller than 36x36"),
    (env(box((64, 3, 64), 0, 255, np.uint8)), "the second dimension is the smallest"),
    (env(box((2, 2))), r"shape \(2, 2\) is neither that of a vector nor that of an image"),
    (env(action_space=box((2,), low=-2)), "from -2 to 1, but policies learn best from -1 to 1"),
    (env(action_space=box((2,), dtype=np.float64)), "action_space: dtype is float64"),
    (Late, "the env returned a NaN or an infinity"),
    (Good, ""),
    (env(action_space=box((2, 2))), ""),
    (WalkEnv, ""),
    (BitFlippingEnv, ""),
    (lambda: gym.make("FrozenLake-v1"), ""),
    (lambda: own.Monitor(gym.make("CartPole-v1")), ""),
    # Finding 18: Stable-Baselines3 does not look at seeds, options and buffers.
    (changed(obs=lambda _: HELD), ""),
    (changed(reset=lambda self, seed=3: Good.reset(self)), ""),  # noqa: ARG005
]


def outcome(check, env, **kwargs):
    """What a check raises, and its warnings."""
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check(env, **kwargs)
        except Exception as raised:  # noqa: BLE001 - the tests look at it
            error = raised
    assert check is not check_env or all(each.filename == __file__ for each in caught)
    return error, [str(each.message) for each in caught]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_errors_and_warnings(make, text):
    error, ours = outcome(check_env, make())
    their_error, theirs = outcome(sb3_check_env, make())
    if error is None:
        assert their_error is None
        assert len(ours) == len(theirs)
        assert outcome(check_env, make(), warn=False) == (None, ours if make is Late else [])
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
        assert "render" in text
        assert error is None
    assert len(closed) == 2


def test_masks_are_heeded():
    """Stable-Baselines3's raises if the env refuses an action that its mask forbids."""

    class Strict(InvalidActionEnvDiscrete):
        def step(self, action):
            assert action == self.state
            return super().step(action)

    assert outcome(check_env, Strict(3, 8, n_invalid_actions=2)) == (None, [])
