"""What `validate` finds wrong with an observation or a reward."""

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import checks
from tests.support import envs

BOX = spaces.Box(0, 1, (2, 2), np.float32)
LEAF = spaces.Dict(b=spaces.Tuple((BOX,)))
NAN = np.array([[0, 0], [np.nan, 0]], np.float32)
HIGH = np.array([[0, 0], [0, 1.5]], np.float32)
WRONG = {
    "nan": (BOX, NAN, "obs[1, 0] is nan"),
    "nan without bounds": (spaces.Box(-np.inf, np.inf, (2, 2)), NAN, "obs[1, 0] is nan"),
    "too high": (BOX, HIGH, "obs[1, 1] is 1.5, but observation_space has 0.0 to 1.0"),
    "too low": (BOX, -HIGH, "obs[1, 1] is -1.5, but observation_space has 0.0 to 1.0"),
    "a leaf": (LEAF, {"b": (HIGH,)}, "obs['b'][0][1, 1] is 1.5, but observation_space has 0.0 to"),
    "discrete": (spaces.Discrete(3), 3, "which is not in observation_space Discrete(3)"),
    "binary": (spaces.MultiBinary(2), np.array([0, 2], np.int8), "which is not in"),
    "text": (spaces.Text(3), "long text", "obs is 'long text', which is not in observation_sp"),
    "custom": (envs.Cards(3), envs.Card("hearts", 9), "which is not in"),
}
SAMPLED = [make_space() for make_space in envs.SPACES.values()]
RIGHT = [
    (BOX, np.full((2, 2), 0.1)),  # float64
    (BOX, [[0, 1], [1, 0.5]]),
    (spaces.Box(-np.inf, np.inf, (2,)), np.array([np.inf, -np.inf], np.float32)),
    (spaces.Discrete(3), np.int32(2)),
    (spaces.Box(0.1, 0.3, (1,), np.float32), np.array([0.3], np.float32)),
    (BOX, np.zeros(3)),  # of another shape, which is an error elsewhere
    *((space, envs.draw(space, np.random.default_rng(0))) for space in SAMPLED),
]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    space, obs, text = WRONG[name]
    assert text in str(checks.complaint(space, obs))


@pytest.mark.parametrize(("space", "obs"), RIGHT, ids=range(len(RIGHT)))
def test_what_fits_is_right(space, obs):
    assert checks.complaint(space, obs) is None


def test_rewards():
    assert checks.reward_complaint(float("nan")) == "reward is nan"
    assert checks.reward_complaint(np.array([0.0, np.nan])) == "reward is [ 0. nan]"
    for fine in (0.0, float("inf"), 3, True, "text", None, [1.0, [2.0]]):
        assert checks.reward_complaint(fine) is None
