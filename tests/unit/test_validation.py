"""What `validate` finds wrong with an observation or a reward."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.env import validation
from tests.support import envs


class Loose(spaces.Box):
    """Contains all that has its shape."""

    def contains(self, x):
        return np.shape(x) == self.shape


BOX = spaces.Box(0, 1, (2, 2), np.float32)
HIGH = np.array([[0, 0], [0, 1.5]], np.float32)
# Beside those of `tests/pool/test_warnings.py`.
WRONG = [
    (spaces.Box(-np.inf, np.inf, (2,)), np.array([0, np.nan], np.float32), "obs[1] is nan"),
    (Loose(0, 1, (2,)), np.array([9, np.nan], np.float32), "obs[1] is nan"),
    (BOX, HIGH, "obs[1, 1] is 1.5, but observation_space has 0.0 to 1.0"),
    (BOX, -HIGH, "obs[1, 1] is -1.5, but observation_space has 0.0 to 1.0"),
    (spaces.Discrete(3), 3, "which is not in observation_space Discrete(3)"),
    (spaces.MultiBinary(2), np.array([0, 2], np.int8), "which is not in"),
    (envs.Cards(3), envs.Card("hearts", 9), "which is not in"),
]
RIGHT = [
    (BOX, np.full((2, 2), 0.1)),  # float64
    (BOX, [[0, 1], [1, 0.5]]),
    (spaces.Box(-np.inf, np.inf, (2,)), np.array([np.inf, -np.inf], np.float32)),
    (spaces.Discrete(3), np.int32(2)),
    (spaces.Box(0.1, 0.3, (1,), np.float32), np.array([0.3], np.float32)),
    (Loose(0, 1, (2,)), np.array([9, 0], np.float32)),
    (BOX, np.zeros(3)),  # of another shape, which is an error elsewhere
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
