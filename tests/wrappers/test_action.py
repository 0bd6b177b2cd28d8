"""The action wrappers against values worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.wrappers import ContinuousToDiscrete, MultiDiscreteToDiscrete


class Echo(gym.Env):
    """Observes nothing, and gives back the action it got in the info."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.observation_space = spaces.Discrete(1)
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        return 0, {}

    def step(self, action: Any) -> tuple:
        return 0, 0.0, False, False, {"action": action}


def plane(low: Any = (-1.0, 0.0), high: Any = (1.0, 10.0), dtype: type = np.float32) -> Echo:
    return Echo(spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype))


# ------------------------------------------------------------------------ ContinuousToDiscrete


@pytest.mark.parametrize("choices", [[3, 5], (3, 5), np.array([3, 5])])
def test_points_of_a_box(choices: Any) -> None:
    env = ContinuousToDiscrete(plane(), choices)
    assert env.action_space == spaces.MultiDiscrete([3, 5])
    points = [[-1.0, 0.0, 1.0], [0.0, 2.5, 5.0, 7.5, 10.0]]
    for i, j in itertools.product(range(3), range(5)):
        action = env.action(np.array([i, j]))
        assert action.dtype == np.float32
        assert action.tolist() == [points[0][i], points[1][j]]
    assert [mesh.tolist() for mesh in env.mesh] == points


@pytest.mark.parametrize("choices", [4, np.int64(4)])
def test_one_number_for_all_dimensions(choices: Any) -> None:
    env = ContinuousToDiscrete(plane(), choices)
    assert env.action_space == spaces.MultiDiscrete([4, 4])
    np.testing.assert_array_equal(env.action([3, 3]), np.array([1, 10], np.float32))


def test_a_batch_of_actions() -> None:
    env = ContinuousToDiscrete(plane(), [3, 5])
    batch = env.action(np.array([[0, 0], [1, 1], [2, 4]]))
    assert batch.dtype == np.float32
    assert batch.tolist() == [[-1.0, 0.0], [0.0, 2.5], [1.0, 10.0]]
    assert env.action(np.empty((0, 2), int)).shape == (0, 2)


def test_a_single_choice_is_low() -> None:
    assert ContinuousToDiscrete(plane(), [1, 2]).action([0, 1]).tolist() == [-1.0, 10.0]


def test_a_box_of_integers() -> None:
    env = ContinuousToDiscrete(plane((-3, 0), (3, 10), np.int64), [3, 4])
    assert [mesh.tolist() for mesh in env.mesh] == [[-3, 0, 3], [0, 3, 7, 10]]
    assert env.action([1, 2]).dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_action_is_in_the_box(dtype: type) -> None:
    box = plane((-1 / 3, 0.1), (0.7, 1e6), dtype)
    env = ContinuousToDiscrete(box, [7, 1001])
    for choice in ([0, 0], [3, 500], [6, 1000]):
        assert box.action_space.contains(env.action(choice))
    np.testing.assert_array_equal(env.action([6, 1000]), box.action_space.high)


def test_step_passes_the_point_on() -> None:
    env = ContinuousToDiscrete(plane(), [3, 5])
    env.reset()
    assert env.step(np.array([2, 1]))[4]["action"].tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("space", "choices", "error", "message"),
    [
        (spaces.Discrete(3), 2, TypeError, r"action_space: got Discrete\(3\), but .* needs a Box"),
        (spaces.Box(0, 1, (2, 3)), 2, ValueError, r"has shape \(2, 3\), but needs one dimension"),
        (spaces.Box(0, 1, ()), 2, ValueError, r"has shape \(\), but needs one dimension"),
        (spaces.Box(0, np.inf, (2,)), 2, ValueError, "has no finite bounds"),
        (spaces.Box(0, 1, (2,)), [2, 2, 2], ValueError, r"has shape \(3,\), but .* has \(2,\)"),
        (spaces.Box(0, 1, (2,)), [[2, 2]], ValueError, r"action_per_dim: has shape \(1, 2\)"),
        (spaces.Box(0, 1, (2,)), [2, 0], ValueError, "action_per_dim: got 0, but .* 1 or more"),
        (spaces.Box(0, 1, (2,)), -3, ValueError, "action_per_dim: got -3"),
        (
            spaces.Box(0, 1, (2,)),
            2.0,
            TypeError,
            "action_per_dim: got 2.0, but it must be integers",
        ),
        (spaces.Box(0, 1, (2,)), "2", TypeError, "action_per_dim: got '2'"),
    ],
)
def test_a_wrong_space_or_number_of_choices(
    space: spaces.Space, choices: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ContinuousToDiscrete(Echo(space), choices)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ([0, 5], ValueError, "action: got 5 in dimension 1, but it has choices 0 to 4"),
        ([[0, 0], [3, 0]], ValueError, "action: got 3 in dimension 0, but it has choices 0 to 2"),
        ([-1, 0], ValueError, "action: got -1 in dimension 0"),
        ([0, 0, 0], ValueError, r"action: has shape \(3,\), but action_space has \(2,\)"),
        (1, ValueError, r"action: has shape \(\)"),
        ([[[0, 0]]], ValueError, r"action: has shape \(1, 1, 2\)"),
        ([0.0, 1.0], TypeError, r"action: got \[0.0, 1.0\], but it must be integers"),
    ],
)
def test_a_wrong_choice(action: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ContinuousToDiscrete(plane(), [3, 5]).action(action)


# --------------------------------------------------------------------- MultiDiscreteToDiscrete


def test_combinations_count_up_with_the_last_dimension_fastest() -> None:
    env = MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([2, 3, 2])))
    assert env.action_space == spaces.Discrete(12)
    for number, combination in enumerate(itertools.product(range(2), range(3), range(2))):
        assert tuple(env.action(number)) == combination
        assert tuple(env.action(np.array(number))) == combination
        assert env.env.action_space.contains(env.action(np.int64(number)))


def test_a_batch_of_numbers() -> None:
    env = MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([2, 3])))
    batch = env.action(np.array([0, 4, 5]))
    assert batch.tolist() == [[0, 0], [1, 1], [1, 2]]
    assert batch.dtype == np.int64
    assert env.action(np.empty(0, int)).shape == (0, 2)


def test_start_and_dtype_of_the_multi_discrete() -> None:
    space = spaces.MultiDiscrete(np.array([2, 3], np.int32), dtype=np.int32, start=[5, -1])
    env = MultiDiscreteToDiscrete(Echo(space))
    assert env.action(4).tolist() == [6, 0]
    assert env.action(4).dtype == np.int32
    assert all(space.contains(env.action(number)) for number in range(6))


def test_one_dimension_of_one_choice() -> None:
    env = MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([1])))
    assert env.action_space == spaces.Discrete(1)
    assert env.action(0).tolist() == [0]


def test_numbers_up_to_the_limit() -> None:
    env = MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([2**31] * 2)))
    assert env.action(2**62 - 1).tolist() == [2**31 - 1, 2**31 - 1]
    with pytest.raises(ValueError, match=f"has {2**93} combinations, more than an int64"):
        MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([2**31] * 3)))


def test_continuous_to_one_discrete() -> None:
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(plane(), [3, 5]))
    env.reset()
    assert env.step(env.action_space.n - 1)[4]["action"].tolist() == [1.0, 10.0]
    assert env.step(6)[4]["action"].tolist() == [0.0, 2.5]


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (spaces.Discrete(3), TypeError, r"got Discrete\(3\), but .* needs a MultiDiscrete"),
        (
            spaces.MultiDiscrete([[2, 2]]),
            ValueError,
            r"has shape \(1, 2\), but needs one dimension",
        ),
    ],
)
def test_a_wrong_space(space: spaces.Space, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MultiDiscreteToDiscrete(Echo(space))


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (6, ValueError, "action: got 6, but action_space has actions 0 to 5"),
        (-1, ValueError, "action: got -1, but action_space has actions 0 to 5"),
        ([0, 9], ValueError, "action: got 9, but"),
        ([[0]], ValueError, r"action: has shape \(1, 1\), but needs \(\) or \(k,\)"),
        (1.0, TypeError, "action: got 1.0, but it must be integers"),
    ],
)
def test_a_wrong_number(action: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete([2, 3]))).action(action)


# -------------------------------------------------------------------------------------- both


@pytest.mark.parametrize(
    "wrap", [lambda env: ContinuousToDiscrete(env, 2), MultiDiscreteToDiscrete]
)
def test_what_is_no_env(wrap: Any) -> None:
    with pytest.raises(
        TypeError, match="env: got 'CartPole-v1', but the wrapper needs a gymnasium"
    ):
        wrap("CartPole-v1")


def test_a_spec_with_the_wrappers_makes_the_env_again() -> None:
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(gym.make("Pendulum-v1"), [5]))
    again = gym.make(env.spec)
    assert again.action_space == spaces.Discrete(5)
    assert again.action(4).tolist() == env.action(4).tolist()
