"""The wrappers of single envs against values worked out by hand."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.wrappers import (
    ContinuousToDiscrete,
    MultiDiscreteToDiscrete,
    TruncatedAsTerminated,
)


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


def combined(nvec: Any, **options: Any) -> MultiDiscreteToDiscrete:
    return MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete(nvec, **options)))


# ------------------------------------------------------------------------ ContinuousToDiscrete


def test_points_of_a_box() -> None:
    points = [[-1.0, 0.0, 1.0], [0.0, 2.5, 5.0, 7.5, 10.0]]
    for choices in ([3, 5], (3, 5), np.array([3, 5])):
        env = ContinuousToDiscrete(plane(), choices)
        assert env.action_space == spaces.MultiDiscrete([3, 5])
        assert [mesh.tolist() for mesh in env.mesh] == points
    for i, j in itertools.product(range(3), range(5)):
        action = env.action(np.array([i, j]))
        assert action.dtype == np.float32
        assert action.tolist() == [points[0][i], points[1][j]]
    batch = env.action(np.array([[0, 0], [1, 1], [2, 4]]))
    assert batch.dtype == np.float32
    assert batch.tolist() == [[-1.0, 0.0], [0.0, 2.5], [1.0, 10.0]]
    assert env.action(np.empty((0, 2), int)).shape == (0, 2)
    assert env.step(np.array([2, 1]))[4]["action"].tolist() == [1.0, 2.5]


def test_other_numbers_of_choices_and_a_box_of_integers() -> None:
    for choices in (4, np.int64(4)):
        env = ContinuousToDiscrete(plane(), choices)
        assert env.action_space == spaces.MultiDiscrete([4, 4])
        assert env.action([3, 3]).tolist() == [1.0, 10.0]
    assert ContinuousToDiscrete(plane(), [1, 2]).action([0, 1]).tolist() == [-1.0, 10.0]
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


# --------------------------------------------------------------------- MultiDiscreteToDiscrete


def test_combinations_count_up_with_the_last_dimension_fastest() -> None:
    env = combined([2, 3, 2])
    assert env.action_space == spaces.Discrete(12)
    combinations = list(itertools.product(range(2), range(3), range(2)))
    for number, combination in enumerate(combinations):
        assert tuple(env.action(number)) == combination
        assert env.env.action_space.contains(env.action(np.array(number)))
    batch = env.action(np.arange(12))
    assert batch.dtype == np.int64
    assert list(map(tuple, batch)) == combinations
    assert env.action(np.empty(0, int)).shape == (0, 3)


def test_start_and_dtype_of_the_multi_discrete() -> None:
    env = combined(np.array([2, 3], np.int32), dtype=np.int32, start=[5, -1])
    assert env.action(4).tolist() == [6, 0]
    assert env.action(4).dtype == np.int32


def test_numbers_up_to_the_limit() -> None:
    assert combined([2**31] * 2).action(2**62 - 1).tolist() == [2**31 - 1, 2**31 - 1]
    with pytest.raises(ValueError, match=f"has {2**93} combinations, more than an int64"):
        combined([2**31] * 3)


def test_continuous_to_one_discrete_and_made_again_from_its_spec() -> None:
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(plane(), [3, 5]))
    assert env.step(env.action_space.n - 1)[4]["action"].tolist() == [1.0, 10.0]
    assert env.step(6)[4]["action"].tolist() == [0.0, 2.5]
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(gym.make("Pendulum-v1"), [5]))
    again = gym.make(env.spec)
    assert again.action_space == spaces.Discrete(5)
    assert again.action(4).tolist() == env.action(4).tolist()


# ----------------------------------------------------------------------- TruncatedAsTerminated


def test_truncated_as_terminated() -> None:
    env = TruncatedAsTerminated(Echo(spaces.Discrete(2)))
    for terminated, truncated in itertools.product((False, True), repeat=2):
        env.env.step = lambda action, row=(7, 1.5, terminated, truncated, {}): row  # noqa: ARG005
        assert env.step(0) == (7, 1.5, terminated or truncated, truncated, {})
    env = TruncatedAsTerminated(gym.make("Pendulum-v1", max_episode_steps=2))
    env.reset(seed=0)
    flags = [env.step(env.action_space.sample())[2:4] for _ in range(2)]
    assert flags == [(False, False), (True, True)]
    assert gym.make(env.spec).spec == env.spec


# -------------------------------------------------------------------------------- what is refused

SQUARE = spaces.Box(0, 1, (2,))
WRONG: list[tuple[Any, type[Exception], str]] = [
    *(
        (lambda wrap=wrap: wrap("CartPole-v1"), TypeError, "env: got 'CartPole-v1', but the wrap")
        for wrap in (
            partial(ContinuousToDiscrete, action_per_dim=2),
            MultiDiscreteToDiscrete,
            TruncatedAsTerminated,
        )
    ),
    *(
        (lambda space=space, n=choices: ContinuousToDiscrete(Echo(space), n), error, text)
        for space, choices, error, text in [
            (spaces.Discrete(3), 2, TypeError, r"space: got Discrete\(3\), but .* needs a Box"),
            (spaces.Box(0, 1, (2, 3)), 2, ValueError, r"shape \(2, 3\), but needs one dimension"),
            (spaces.Box(0, np.inf, (2,)), 2, ValueError, "has no finite bounds"),
            (SQUARE, [2, 2, 2], ValueError, r"has shape \(3,\), but .* has \(2,\)"),
            (SQUARE, [[2, 2]], ValueError, r"action_per_dim: has shape \(1, 2\)"),
            (SQUARE, [2, 0], ValueError, "action_per_dim: got 0, but .* 1 or more"),
            (SQUARE, 2.0, TypeError, "action_per_dim: got 2.0, but it must be integers"),
        ]
    ),
    *(
        (lambda a=action: ContinuousToDiscrete(plane(), [3, 5]).action(a), error, text)
        for action, error, text in [
            ([0, 5], ValueError, "action: got 5 in dimension 1, but it has choices 0 to 4"),
            ([[0, 0], [3, 0]], ValueError, "got 3 in dimension 0, but it has choices 0 to 2"),
            ([-1, 0], ValueError, "action: got -1 in dimension 0"),
            ([0, 0, 0], ValueError, r"action: has shape \(3,\), but action_space has \(2,\)"),
            ([[[0, 0]]], ValueError, r"action: has shape \(1, 1, 2\)"),
            ([0.0, 1.0], TypeError, r"action: got \[0.0, 1.0\], but it must be integers"),
        ]
    ),
    *(
        (lambda space=space: MultiDiscreteToDiscrete(Echo(space)), error, text)
        for space, error, text in [
            (spaces.Discrete(3), TypeError, r"got Discrete\(3\), but .* needs a MultiDiscrete"),
            (spaces.MultiDiscrete([[2, 2]]), ValueError, r"shape \(1, 2\), but needs one dim"),
        ]
    ),
    *(
        (lambda a=action: combined([2, 3]).action(a), error, text)
        for action, error, text in [
            (-1, ValueError, "action: got -1, but action_space has actions 0 to 5"),
            ([0, 6], ValueError, "action: got 6, but action_space has actions 0 to 5"),
            ([[0]], ValueError, r"action: has shape \(1, 1\), but needs \(\) or \(k,\)"),
            (1.0, TypeError, "action: got 1.0, but it must be integers"),
        ]
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_wrong_arguments(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
