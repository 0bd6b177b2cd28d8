"""Casts that lose nothing, what `validate` finds, actions that are refused, and copies.

`tests/backends/test_matrix.py` has values and actions of every space.
"""

import collections
import threading
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from envpool_py.env import spaces, validation
from tests.support import envs

FLOATS = gym_spaces.Box(-np.inf, np.inf, (2,), np.float32)
BYTES = gym_spaces.Box(0, 255, (2,), np.uint8)
LONGS = gym_spaces.Box(-9, 9, (2,), np.int64)
BOOLS = gym_spaces.Box(0, 1, (2,), bool)
FIVE = gym_spaces.Discrete(5)

ACCEPTED = [
    (FLOATS, np.array([0.1, 0.2])),
    (FLOATS, np.array([2**24, -(2**24)])),
    (FLOATS, np.array([1.25, 2.5], ">f4")),
    (FLOATS, np.array([np.nan, -np.inf])),
    (BYTES, np.array([1.0, 255.0])),
    (BOOLS, np.array([1, 0])),
    (gym_spaces.MultiBinary(2), [True, False]),
    (FIVE, 3.0),
    (FIVE, np.array([[3]])),  # one element in place of a scalar
    (gym_spaces.Box(-1, 1, (), np.float32), 0.5),
]
REFUSED = [
    (FLOATS, np.array([2**24 + 1, 0])),
    (FLOATS, np.array([1e300, 0.0])),
    (FLOATS, [[1.0], [2.0, 3.0]]),
    (BYTES, np.array([1, 300])),
    (BYTES, np.array([1.0, 300.7])),
    (LONGS, np.array([1e30, 2.0])),
    (LONGS, np.array([2**64 - 1, 0], np.uint64)),
    (LONGS, np.array([1, 2]) + 1j),
    (gym_spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.array([-1, 0])),
    (BOOLS, np.array([2, 0])),
    (FIVE, 3.5),
    (FIVE, "3"),
]


def fitted(space, value):
    return spaces.fit_tree(spaces.layout_of(space), value, "obs", "observation_space")


@pytest.mark.parametrize(("space", "value"), ACCEPTED, ids=lambda x: f"{x}"[:40])
def test_a_cast_that_loses_nothing_is_made(space, value):
    found = fitted(space, value)
    np.testing.assert_array_equal(found, np.reshape(value, space.shape).astype(space.dtype))
    kind = np.ndarray if space.shape else space.dtype.type  # as an element of an array is
    assert (type(found), found.dtype) == (kind, space.dtype)


@pytest.mark.parametrize(("space", "value"), REFUSED, ids=lambda x: f"{x}"[:40])
def test_a_cast_that_loses_something_is_refused(space, value):
    with pytest.raises((TypeError, ValueError), match=f"obs .*({space.dtype}|shape|array)"):
        fitted(space, value)


BOX = envs.box("float32")
NESTED = envs.SPACES["nested"]()
GOOD = envs.draw(NESTED, np.random.default_rng(0))
WRONG_ACTIONS = [
    (FIVE, np.zeros(4, np.int64), "got 4 actions for 3 envs"),
    (FIVE, 5, "actions: expected 3 actions, one per env; got int"),
    (FIVE, np.array(5), "one per env; got a scalar"),
    (FIVE, "abc", "one per env; got str"),
    (FIVE, {1: 2}, "one per env; got dict"),
    (FIVE, [1, 2.5, 1], "env 5: action"),
    (FIVE, [1, [1, 2], 1], "env 5: action"),
    (FIVE, [1, 2**70, 0], r"env 5: action is \d+, which action_space"),
    (FIVE, np.zeros((3, 2), np.int64), "env 4: action"),
    (BOX, [np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))], r"env 6: .* \(3, 2\).*\(2, 3\)"),
    # Another structure than the space has.
    (NESTED, [GOOD, {**GOOD, "more": 1}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {**GOOD, "a": np.zeros(3, np.int64)}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {**GOOD, "b": (*GOOD["b"], 1)}, GOOD], "env 5: action"),
    (NESTED, [GOOD, 7, GOOD], "env 5: action"),
]


@pytest.mark.parametrize(("space", "actions", "text"), WRONG_ACTIONS)
def test_wrong_actions(space, actions, text):
    for function in (spaces.batch_actions, spaces.list_actions):
        with pytest.raises((TypeError, ValueError), match=text):
            function(spaces.layout_of(space), actions, [4, 5, 6])


class Point(NamedTuple):
    x: list
    y: object


class Twice(Point):
    """Its constructor takes other arguments than its fields."""

    def __new__(cls, both):
        return super().__new__(cls, both, both)


class ByName(dict):
    """Its keys are its attributes as well."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.__dict__ = self


class Frozen(dict):
    """Forbids changes, those of `copy.copy` included."""

    def __setitem__(self, key, value):
        raise TypeError("frozen")

    def __reduce__(self):
        return Frozen, (dict(self),)


ALIKE = {
    "a structured scalar": (lambda array: array.view([("a", float)])[0], lambda kept: kept["a"]),
    "another constructor": (Twice, lambda kept: kept.y[0]),
    "keys as attributes": (lambda array: ByName(a=array), lambda kept: kept.a[0]),
    "no changes": (lambda array: Frozen(a=array), lambda kept: kept["a"][0]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_snapshot_of_an_odd_class_is_not_reached_by_later_changes(name):
    make, read = ALIKE[name]
    array = np.ones(2)
    value = make(array)
    kept = spaces.snapshot({"odd": value})["odd"]
    array[:] = 9
    assert (type(kept), read(kept), read(value)) == (type(value), 1, 9)


def test_a_snapshot_is_not_reached_by_later_changes():
    array, inner, queue = np.zeros(2), [1], collections.deque([1])
    lock, env = threading.Lock(), envs.CountEnv()
    value = {"list": inner, "pair": Point(inner, env), "queue": queue, "n": lock, "array": array}
    kept = spaces.snapshot(value)
    array[:] = 9
    inner.append(9)
    queue.append(9)
    value["new"] = 9
    assert kept.pop("array").tolist() == [0, 0]
    # Envs, and objects that cannot be copied, are not copied.
    pair = Point([1], env)
    assert kept == {"list": [1], "pair": pair, "queue": collections.deque([1]), "n": lock}
    assert type(kept["pair"]) is Point


# --------------------------------------------------------------------- what `validate` finds


class Loose(gym_spaces.Box):
    """Contains all that has its shape."""

    def contains(self, x):
        return np.shape(x) == self.shape


UNIT = gym_spaces.Box(0, 1, (2, 2), np.float32)
HIGH = np.array([[0, 0], [0, 1.5]], np.float32)
# Beside those of `tests/pool/test_warnings.py`.
WRONG = [
    (gym_spaces.Box(-np.inf, np.inf, (2,)), np.array([0, np.nan], np.float32), "obs[1] is nan"),
    (Loose(0, 1, (2,)), np.array([9, np.nan], np.float32), "obs[1] is nan"),
    (UNIT, HIGH, "obs[1, 1] is 1.5, but observation_space has 0.0 to 1.0"),
    (UNIT, -HIGH, "obs[1, 1] is -1.5, but observation_space has 0.0 to 1.0"),
    (gym_spaces.Discrete(3), 3, "which is not in observation_space Discrete(3)"),
    (gym_spaces.MultiBinary(2), np.array([0, 2], np.int8), "which is not in"),
    (envs.Cards(3), envs.Card("hearts", 9), "which is not in"),
]
RIGHT = [
    (UNIT, np.full((2, 2), 0.1)),  # float64
    (UNIT, [[0, 1], [1, 0.5]]),
    (gym_spaces.Box(-np.inf, np.inf, (2,)), np.array([np.inf, -np.inf], np.float32)),
    (gym_spaces.Discrete(3), np.int32(2)),
    (gym_spaces.Box(0.1, 0.3, (1,), np.float32), np.array([0.3], np.float32)),
    (Loose(0, 1, (2,)), np.array([9, 0], np.float32)),
    (UNIT, np.zeros(3)),  # of another shape, which is an error elsewhere
    *((make(), envs.draw(make(), np.random.default_rng(0))) for make in envs.SPACES.values()),
]


@pytest.mark.parametrize(("space", "obs", "text"), WRONG)
def test_what_is_wrong_is_named(space, obs, text):
    assert text in validation.complaint(space, obs)


def test_what_fits_is_right(recwarn):
    for space, obs in RIGHT:
        assert validation.complaint(space, obs) is None, (space, obs)
    assert not recwarn.list


def test_rewards():
    assert validation.reward_complaint(np.array([0.0, np.nan])) == "reward is [ 0. nan]"
    for fine in (0.0, float("inf"), 3, True, "text", None, [1.0, [2.0]]):
        assert validation.reward_complaint(fine) is None
