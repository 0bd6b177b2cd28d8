"""Casts that lose nothing, actions in every form, and copies that later changes do not reach."""

from __future__ import annotations

import collections
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from envpool_py import spaces
from tests.support import envs
from tests.support.reference import in_columns, same

# ----------------------------------------------------------------------------- observations

FLOATS = gym_spaces.Box(-np.inf, np.inf, (2,), np.float32)
BYTES = gym_spaces.Box(0, 255, (2,), np.uint8)
LONGS = gym_spaces.Box(-9, 9, (2,), np.int64)
BOOLS = gym_spaces.Box(0, 1, (2,), bool)
FIVE = gym_spaces.Discrete(5)
SCALAR = gym_spaces.Box(-1, 1, (), np.float32)

TAKEN = [
    (FLOATS, np.array([0.1, 0.2], np.float32).astype(np.float64)),
    (FLOATS, np.array([0.1, 0.2])),
    (FLOATS, np.array([3, -4])),
    (FLOATS, np.array([2**24, -(2**24)])),
    (FLOATS, np.array([1.25, 2.5], ">f4")),
    (FLOATS, np.array([np.nan, -np.inf], np.float32)),
    (BYTES, np.array([1.0, 255.0])),
    (BOOLS, np.array([1, 0])),
    (gym_spaces.MultiBinary(2), [True, False]),
    (FIVE, 3),
    (FIVE, np.int32(3)),
    (FIVE, 3.0),
    (SCALAR, 0.5),
]
REFUSED = [
    (FLOATS, np.array([2**24 + 1, 0])),
    (FLOATS, np.array([1e300, 0.0])),
    (FLOATS, "no"),
    (BYTES, np.array([1, 300])),
    (BYTES, np.array([1.0, 300.7])),
    (BYTES, b"ab"),
    (LONGS, np.array([1.5, 2.0])),
    (LONGS, np.array([1e30, 2.0])),
    (LONGS, np.array([2**64 - 1, 0], np.uint64)),
    (LONGS, np.array([1, 2]) + 1j),
    (gym_spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.array([-1, 0])),
    (BOOLS, np.array([2, 0])),
    (FIVE, 3.5),
    (FIVE, None),
    (FLOATS, [[1.0], [2.0, 3.0]]),
]


def fitted(space, value):
    return spaces.fit_tree(spaces.layout_of(space), value, "obs", "observation_space")


@pytest.mark.parametrize(("space", "value"), TAKEN, ids=lambda x: f"{x}"[:40])
def test_a_cast_that_loses_nothing_is_made(space, value):
    found = fitted(space, value)
    assert same(np.asarray(found), np.asarray(value).astype(space.dtype))
    assert type(found) is type(space.sample())


def test_one_element_stands_for_a_scalar():
    for value in (np.array([3]), np.array([[3]]), [3]):
        found = fitted(FIVE, value)
        assert (found, type(found)) == (3, np.int64)


@pytest.mark.parametrize(("space", "value"), REFUSED, ids=lambda x: f"{x}"[:40])
def test_a_cast_that_loses_something_is_refused(space, value):
    with pytest.raises((TypeError, ValueError), match=f"obs .*({space.dtype}|shape|array)"):
        fitted(space, value)


# ---------------------------------------------------------------------------------- actions

BOX = envs.box("float32")
NESTED = envs.SPACES["nested"]()
GOOD = envs.draw(NESTED, np.random.default_rng(0))
IDS = [4, 5, 6]


@pytest.mark.parametrize("name", envs.SPACES)
def test_values_are_split_and_actions_of_every_form_are_the_same(name):
    space = envs.SPACES[name]()
    layout = spaces.layout_of(space)
    rng = np.random.default_rng(1)
    actions = [envs.draw(space, rng) for _ in range(3)]
    parts = spaces.split(layout, actions[0], "obs")
    assert len(parts) == len(spaces.leaves(layout))
    assert same(spaces.join(layout, parts), actions[0])
    for form in (actions, tuple(actions)):
        assert all(map(same, spaces.list_actions(layout, form, IDS), actions))
    if not spaces.is_fixed(layout):
        return
    forms = [actions, tuple(actions), in_columns(space, actions)]
    if spaces.is_leaf(layout) and 0 not in space.shape:
        forms.append([action.tolist() for action in actions])
    for form in forms:
        columns = spaces.batch_actions(layout, form, IDS)
        assert all(map(same, spaces.join_rows(layout, columns, 3), actions))


def test_an_action_that_is_none_is_that_envs_action():
    layout = spaces.layout_of(FIVE)
    assert spaces.batch_actions(layout, [1, None, 2], IDS) is None
    assert spaces.list_actions(layout, [1, None, 2], IDS) == [1, None, 2]


WRONG_ACTIONS = [
    (FIVE, [1, 2], "got 2 actions for 3 envs"),
    (FIVE, np.zeros(4, np.int64), "got 4 actions for 3 envs"),
    (FIVE, 5, "actions: expected 3 actions, one per env; got int"),
    (FIVE, np.array(5), "one per env; got a scalar"),
    (FIVE, "abc", "one per env; got str"),
    (FIVE, {1: 2}, "one per env; got dict"),
    (FIVE, [1, 2.5, 1], "env 5: action"),
    (FIVE, [1, "left", 1], "env 5: action"),
    (FIVE, np.array([1.0, np.nan, 2.0]), "env 5: action"),
    (FIVE, [1, [1, 2], 1], "env 5: action"),
    (FIVE, np.zeros((3, 2), np.int64), "env 4: action"),
    (FIVE, [1, 2**70, 1], "env 5: action"),
    (FIVE, [object(), 1, 1], "env 4: action"),
    (BOX, [np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))], r"env 6: .* \(3, 2\).*\(2, 3\)"),
    (BOX, np.zeros((3, 1, 1), np.float32), r"shape \(1, 1\).*\(2, 3\)"),
    (BOX, np.zeros((3, 2, 3), np.complex64) + 1j, "complex"),
    # Another structure than the space has.
    (NESTED, [GOOD, {**GOOD, "more": 1}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {"b": GOOD["b"], "c": GOOD["c"]}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {**GOOD, "a": np.zeros(3, np.int64)}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {**GOOD, "b": 5}, GOOD], "env 5: action"),
    (NESTED, [GOOD, {**GOOD, "b": (*GOOD["b"], 1)}, GOOD], "env 5: action"),
    (NESTED, [GOOD, 7, GOOD], "env 5: action"),
]


@pytest.mark.parametrize(("space", "actions", "text"), WRONG_ACTIONS)
def test_wrong_actions(space, actions, text):
    for function in (spaces.batch_actions, spaces.list_actions):
        with pytest.raises((TypeError, ValueError), match=text):
            function(spaces.layout_of(space), actions, IDS)


# ----------------------------------------------------------------------------------- copies


class Point(NamedTuple):
    """A custom type of tuple."""

    x: Any
    y: Any


def test_a_snapshot_is_not_reached_by_later_changes():
    array, inner, queue = np.zeros(2), [1], collections.deque([1])
    lock, env = threading.Lock(), envs.CountEnv()
    value = {"array": array, "list": inner, "pair": Point(inner, env), "queue": queue, "n": lock}
    kept = spaces.snapshot(value)
    array[:] = 9
    inner.append(9)
    queue.append(9)
    value["new"] = 9
    assert type(kept["pair"]) is Point
    assert same(kept["array"], np.zeros(2))
    # Envs, and what refuses to be copied, are not copied.
    expected = {"list": [1], "pair": ([1], env), "queue": collections.deque([1]), "n": lock}
    assert {key: kept[key] for key in kept if key != "array"} == expected
