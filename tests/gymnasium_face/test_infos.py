"""Infos as arrays with masks: nothing is lost, whatever the envs return."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.gymnasium.infos import combine
from tests.gymnasium_face.envs import equal


def by_gymnasium(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine as Gymnasium does."""
    envs = gym.vector.VectorEnv()
    envs.num_envs = len(infos)
    combined: dict[str, Any] = {}
    for i, info in enumerate(infos):
        combined = envs._add_info(combined, info, i)
    return combined


EQUAL = {
    "nothing": [{}, {}],
    "ints": [{"a": 1}, {"a": 2}],
    "some": [{"a": 1}, {}, {"b": 2.5}],
    "bools": [{"a": True}, {"a": False}],
    "numpy": [{"a": np.float32(0.1)}, {"a": np.float32(0.2)}],
    "numpy bools": [{"a": np.bool_(True)}, {}],
    "complex": [{"a": 1j}, {"a": np.complex64(2)}],
    "text": [{"a": "x"}, {"a": np.str_("y")}],
    "lists": [{"a": [1, 2]}, {"a": (3,)}],
    "arrays": [{"a": np.arange(3)}, {}, {"a": np.arange(3, 6)}],
    "scalar arrays": [{"a": np.array(1.5)}, {"a": np.array(2.5)}],
    "objects": [{"a": np.array([None, "x"])}, {}],
    "dicts": [{"a": {"x": 1, "y": {"z": "q"}}}, {"a": {"x": 2}}],
    "empty dicts": [{"a": {}}, {"b": {}}],
    "final": [{"final_obs": 3, "final_info": {}}, {}, {"final_obs": 4, "final_info": {"r": 1}}],
    "final arrays": [{"final_obs": np.zeros(2), "final_info": {"final_obs": 1}}, {}],
    "number keys": [{3: 1}, {3: 2}],
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_gymnasium(name: str) -> None:
    infos = EQUAL[name]
    assert equal(combine(dict(enumerate(infos)), len(infos)), by_gymnasium(infos))


BIG = 2**53 + 1
PROMOTED: dict[str, tuple[list[Any], np.ndarray]] = {
    # name               values                        array
    "int, float": ([1, 0.5], np.array([1.0, 0.5])),
    "float, int": ([0.5, 1], np.array([0.5, 1.0])),
    "bool, int": ([True, 5], np.array([1, 5])),
    "float32, float": ([np.float32(0.5), 0.1], np.array([0.5, 0.1])),
    "int8, int": ([np.int8(1), 1000], np.array([1, 1000])),
    "int, too large for float": ([BIG, 0.5], np.array([BIG, 0.5], object)),
    "int of many bits": ([2**70, 1], np.array([2**70, 1], object)),
    "uint64, int64": (
        [np.uint64(2**63 + 1), np.int64(-1)],
        np.array([np.uint64(2**63 + 1), np.int64(-1)], object),
    ),
    "int, None": ([1, None], np.array([1, None], object)),
    "None, int": ([None, 1], np.array([None, 1], object)),
    "int, text": ([1, "x"], np.array([1, "x"], object)),
    "NaN": ([float("nan"), 1], np.array([np.nan, 1.0])),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_numbers_of_several_types(name: str) -> None:
    values, expected = PROMOTED[name]
    got = combine({i: {"a": value} for i, value in enumerate(values)}, 2)
    assert got["a"].dtype == expected.dtype
    np.testing.assert_array_equal(got["a"], expected)
    assert got["_a"].tolist() == [True, True]


def test_arrays_of_several_shapes_and_dtypes() -> None:
    short, long, fine = np.arange(2), np.arange(3), np.array([0.5, 1.5])
    got = combine({0: {"a": short, "b": short}, 2: {"a": long, "b": fine}}, 3)
    assert got["a"].dtype == object
    assert got["a"][0] is short
    assert got["a"][1] is None
    assert got["a"][2] is long
    assert equal(got["b"], np.array([[0.0, 1.0], [0.0, 0.0], [0.5, 1.5]]))
    words = combine({0: {"a": np.array(["ab"])}, 1: {"a": np.array(["abcd"])}}, 2)
    assert words["a"].tolist() == [["ab"], ["abcd"]]
    mixed = combine({0: {"a": short}, 1: {"a": {"x": 1}}}, 2)
    assert mixed["a"][0] is short
    assert mixed["a"][1] == {"x": 1}
    dates = combine({0: {"a": np.array(["2020"], "M8[Y]")}, 1: {"a": short[:1]}}, 2)
    assert dates["a"].dtype == object
