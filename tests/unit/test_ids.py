"""Ids: the forms in which they may be written, and what is refused."""

import numpy as np
import pytest

from envpool_py import env_ids

# What a user may write for four envs, and the ids it means, in order; `tests/support/session.py`
# writes them in the usual forms.
FORMS = [
    (None, [0, 1, 2, 3]),
    (2, [2]),
    ([np.int64(1), np.int16(0)], [1, 0]),
    (range(1, 3), [1, 2]),
    (np.array([3, 1], np.uint8), [3, 1]),
    (np.array([2, 1]), [2, 1]),
    (np.array([True, False, False, True]), [0, 3]),
    (slice(None, None, -2), [3, 1]),
    (slice(2, 99), [2, 3]),
    ([], []),
]
# For three envs, the error and its text.
WRONG = [
    ([0, 7], IndexError, "env id 7 is out of range: this pool has envs 0 to 2"),
    (-1, IndexError, "env id -1 is out of range"),
    (np.array([2, 0, 2], np.int8), ValueError, "env id 2 is given twice"),
    ([1, np.int64(1)], ValueError, "env id 1 is given twice"),
    ("1", TypeError, "must be integers, got '1'"),
    (np.array([0.5]), TypeError, r"must be integers, got array\(\[0\.5"),
    (True, TypeError, "must be integers, got True"),
    ([[0], [1]], TypeError, r"must be one-dimensional, got shape \(2, 1\)"),
    (np.ones(4, bool), IndexError, "mask has 4 entries, but the pool has 3 envs"),
]


@pytest.mark.parametrize(("written", "meant"), FORMS)
def test_forms(written, meant):
    found = env_ids.resolve(written, 4)
    assert found.dtype == np.intp
    assert found.tolist() == meant
    assert not np.shares_memory(found, written), "it is the caller's to change"


@pytest.mark.parametrize(("written", "error", "text"), WRONG)
def test_wrong_ids(written, error, text):
    with pytest.raises(error, match=text):
        env_ids.resolve(written, 3)
