"""Infos as arrays with masks: nothing is lost, whatever the envs return."""

import gymnasium as gym
import numpy as np

from envpool_py.gymnasium.infos import combine
from tests.support.reference import same

# What test_equal_to_sync.py has not.
EQUAL = [
    [{"a": 1j}, {"a": np.complex64(2)}],
    [{"a": np.array([None, "x"])}, {}],
    [{"a": {}}, {"b": {}}],
    [{"final_obs": 3, "final_info": {}}, {}, {"final_obs": 4, "final_info": {"r": 1}}],
    [{"final_obs": np.zeros(2), "final_info": {"final_obs": 1}}, {}],
    [{3: 1}, {3: 2}],
    # The mask of one key is the column of another.
    [{"_x": 1, "x": 2}, {"x": 3}],
    [{"x": 2, "_x": 1}, {"x": 3}],
    [{"x": 1}, {"_x": 0, "x": 4}],
    [{"_x": True}, {"x": 3, "_x": False}],
    [{"__x": 1, "_x": 2, "x": 3}, {"_x": 4}],
]


def test_equal_to_gymnasium():
    for infos in EQUAL:
        envs, combined = gym.vector.VectorEnv(), {}
        envs.num_envs = len(infos)
        for i, info in enumerate(infos):
            combined = envs._add_info(combined, info, i)
        assert same(combine(dict(enumerate(infos)), len(infos)), combined), infos


BIG = 2**53 + 1
PROMOTED = [
    ([1, 0.5], np.array([1.0, 0.5])),
    ([True, 5], np.array([1, 5])),
    ([np.float32(0.5), 0.1], np.array([0.5, 0.1])),
    ([float("nan"), 1], np.array([np.nan, 1.0])),
    # No dtype holds both.
    ([BIG, 0.5], np.array([BIG, 0.5], object)),
    ([2**70, 1], np.array([2**70, 1], object)),
    ([1, None], np.array([1, None], object)),
]


def test_numbers_of_several_types():
    for values, expected in PROMOTED:
        got = combine({i: {"a": value} for i, value in enumerate(values)}, 2)
        assert same(got, {"a": expected, "_a": np.array([True, True])}), values


def test_arrays_of_several_shapes_and_dtypes():
    short, long, fine = np.arange(2), np.arange(3), np.array([0.5, 1.5])
    got = combine({0: {"a": short, "b": short}, 2: {"a": long, "b": fine}}, 3)
    assert list(map(id, got["a"])) == [id(short), id(None), id(long)]
    assert same(got["b"], np.array([[0.0, 1.0], [0.0, 0.0], [0.5, 1.5]]))
    words = combine({0: {"a": np.array(["ab"])}, 1: {"a": np.array(["abcd"])}}, 2)
    assert words["a"].tolist() == [["ab"], ["abcd"]]
    for other in ({"x": 1}, np.array(["2020", "2021"], "M8[Y]")):
        mixed = combine({0: {"a": short}, 1: {"a": other}}, 2)["a"]
        assert list(map(id, mixed)) == [id(short), id(other)]
