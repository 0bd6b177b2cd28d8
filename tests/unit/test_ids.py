"""Ids: every form in which they may be written, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envpool_py import ids

# What a user may write for four envs, and the ids it means, in order.
FORMS: dict[str, tuple[Any, list[int]]] = {
    "none": (None, [0, 1, 2, 3]),
    "int": (2, [2]),
    "numpy int": (np.int32(3), [3]),
    "list": ([3, 0, 2], [3, 0, 2]),
    "list of numpy ints": ([np.int64(1), np.int16(0)], [1, 0]),
    "tuple": ((1, 3), [1, 3]),
    "range": (range(1, 3), [1, 2]),
    "array": (np.array([2, 1]), [2, 1]),
    "array of bytes": (np.array([3, 1], np.uint8), [3, 1]),
    "mask": (np.array([True, False, False, True]), [0, 3]),
    "slice": (slice(1, 3), [1, 2]),
    "slice with a step": (slice(None, None, 2), [0, 2]),
    "slice backwards": (slice(None, None, -1), [3, 2, 1, 0]),
    "slice past the end": (slice(2, 99), [2, 3]),
    "empty list": ([], []),
    "empty array": (np.array([], np.int64), []),
    "empty slice": (slice(2, 2), []),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    written, meant = FORMS[form]
    found = ids.resolve(written, 4)
    assert found.dtype == np.intp
    assert found.tolist() == meant


def test_ids_are_the_callers_to_change() -> None:
    written = np.array([2, 1])
    found = ids.resolve(written, 4)
    written[:] = 0
    assert found.tolist() == [2, 1]


def test_many_ids_are_checked_like_few() -> None:
    many = np.random.default_rng(0).permutation(3000)
    assert ids.resolve(many, 3000).tolist() == many.tolist()
    with pytest.raises(ValueError, match="env id 7 is given twice"):
        ids.resolve([*range(2000), 7], 3000)
    with pytest.raises(IndexError, match="env id 3000 is out of range"):
        ids.resolve(many + 1, 3000)


WRONG = {
    "too high": (3, IndexError, r"env id 3 is out of range: this pool has envs 0 to 2"),
    "too high in a list": ([0, 7], IndexError, r"env id 7 is out of range"),
    "negative": (-1, IndexError, r"-1"),
    "negative in a list": ([1, -2], IndexError, r"-2"),
    "negative in an array": (np.array([-3, 0]), IndexError, r"-3"),
    "twice": ([1, 1], ValueError, r"1"),
    "twice in an array": (np.array([2, 0, 2]), ValueError, r"2"),
    "twice as other types": ([1, np.int64(1)], ValueError, r"1"),
    "float": (1.0, TypeError, r"1\.0"),
    "float array": (np.array([0.5]), TypeError, r"0\.5|float"),
    "text": ("1", TypeError, r"'1'"),
    "bool": (True, TypeError, r"True"),
    "None in a list": ([None], TypeError, r"None"),
    "nested": ([[0], [1]], TypeError, r"\[\[0\]|shape \(2, 1\)"),
    "dict": ({0: 1}, TypeError, r"dict|\{0: 1\}"),
    "short mask": (np.array([True, False]), IndexError, r"2.*3"),
    "long mask": (np.ones(4, bool), IndexError, r"4.*3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ids(name: str) -> None:
    written, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        ids.resolve(written, 3)
