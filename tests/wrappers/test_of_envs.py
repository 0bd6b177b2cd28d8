"""The wrappers of single envs against values worked out by hand; `peers/` has Tianshou's."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.wrappers import ContinuousToDiscrete, MultiDiscreteToDiscrete, TruncatedAsTerminated
from tests.support.envs import CountEnv
from tests.support.reference import same


class Echo(gym.Env):
    """Observes nothing, and returns the action it got in the info; its step ends nothing."""

    def __init__(self, action_space):
        self.observation_space = spaces.Discrete(1)
        self.action_space = action_space

    def step(self, action):
        return 0, 0.0, False, False, {"action": action}


def plane(low=(-1.0, 0.0), high=(1.0, 10.0), dtype=np.float32):
    return Echo(spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype))


def combined(nvec, **options):
    return MultiDiscreteToDiscrete(Echo(spaces.MultiDiscrete(nvec, **options)))


def test_points_of_a_box():
    points = [[-1.0, 0.0, 1.0], [0.0, 2.5, 5.0, 7.5, 10.0]]
    env = ContinuousToDiscrete(plane(), np.array([3, 5]))
    assert env.action_space == spaces.MultiDiscrete([3, 5])
    assert [mesh.tolist() for mesh in env.mesh] == points
    batch = env.action(list(itertools.product(range(3), range(5))))
    assert batch.dtype == np.float32
    assert list(map(tuple, batch)) == list(itertools.product(*points))
    assert env.action(np.empty((0, 2), int)).shape == (0, 2)
    assert env.step(np.array([2, 1]))[4]["action"].tolist() == [1.0, 2.5]
    assert ContinuousToDiscrete(plane(), 4).action_space == spaces.MultiDiscrete([4, 4])
    assert ContinuousToDiscrete(plane(), [1, 2]).action([0, 1]).tolist() == [-1.0, 10.0]
    box = plane((-1 / 3, 0.1), (0.7, 1e6))
    env = ContinuousToDiscrete(box, [7, 1001])
    assert all(map(box.action_space.contains, env.action([[0, 0], [3, 500], [6, 1000]])))
    env = ContinuousToDiscrete(plane((-3, 0), (3, 10), np.int64), [3, 4])
    assert [mesh.tolist() for mesh in env.mesh] == [[-3, 0, 3], [0, 3, 7, 10]]  # rounded
    assert env.action([1, 2]).dtype == np.int64


def test_combinations_count_up_with_the_last_dimension_fastest():
    env = combined([2, 3, 2])
    assert env.action_space == spaces.Discrete(12)
    combinations = list(itertools.product(range(2), range(3), range(2)))
    batch = env.action(np.arange(12))
    assert batch.dtype == np.int64
    assert list(map(tuple, batch)) == combinations
    assert tuple(env.action(np.array(5))) == combinations[5]
    assert env.action(np.empty(0, int)).shape == (0, 3)
    env = combined(np.array([2, 3], np.int32), dtype=np.int32, start=[5, -1])
    assert (env.action(4).tolist(), env.action(4).dtype) == ([6, 0], np.int32)
    assert combined([2**31] * 2).action(2**62 - 1).tolist() == [2**31 - 1, 2**31 - 1]


def test_continuous_to_one_discrete_and_made_again_from_its_spec():
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(plane(), [3, 5]))
    assert env.step(6)[4]["action"].tolist() == [0.0, 2.5]
    env = MultiDiscreteToDiscrete(ContinuousToDiscrete(gym.make("Pendulum-v1"), [5]))
    again = gym.make(env.spec)
    assert again.action_space == spaces.Discrete(5)
    assert again.action(4).tolist() == env.action(4).tolist()


def test_truncated_as_terminated():
    raw, env = CountEnv(length=2), TruncatedAsTerminated(CountEnv(length=2))
    for truncated in (False, True):
        assert same(env.reset(), raw.reset())
        assert same(env.step(0), raw.step(0))
        obs, reward, _, _, info = raw.step(0)
        assert same(env.step(0), (obs, reward, True, truncated, info))
    env = TruncatedAsTerminated(gym.make("Pendulum-v1", max_episode_steps=2))
    assert gym.make(env.spec).spec == env.spec


SQUARE = Echo(spaces.Box(0, 1, (2,)))
POINT = ContinuousToDiscrete(plane(), [3, 5]).action
NUMBER = combined([2, 3]).action
NO_ENV = "env: got 'CartPole-v1', but the wrapper needs a gymnasium.Env"
# What is called, its arguments, and the error.
WRONG = [
    (ContinuousToDiscrete, ("CartPole-v1", 2), TypeError, NO_ENV),
    (TruncatedAsTerminated, ("CartPole-v1",), TypeError, NO_ENV),
    (ContinuousToDiscrete, (Echo(spaces.Discrete(3)), 2), TypeError, r"3\), but .* needs a Box"),
    (ContinuousToDiscrete, (Echo(spaces.Box(0, 1, (2, 3))), 2), ValueError, "needs one dimension"),
    (ContinuousToDiscrete, (plane(high=(1, np.inf)), 2), ValueError, "has no finite bounds"),
    (ContinuousToDiscrete, (SQUARE, [2] * 3), ValueError, r"action_per_dim: has shape \(3,\)"),
    (ContinuousToDiscrete, (SQUARE, [2, 0]), ValueError, "action_per_dim: got 0, but .* 1 or more"),
    (ContinuousToDiscrete, (SQUARE, 2.0), TypeError, "action_per_dim: got 2.0, but .* be integers"),
    (POINT, ([[0, 0], [3, 0]],), ValueError, "got 3 in dimension 0, but it has choices 0 to 2"),
    (POINT, ([0, -1],), ValueError, "action: got -1 in dimension 1"),
    (POINT, ([0, 0, 0],), ValueError, r"action: has shape \(3,\), but action_space has \(2,\)"),
    (POINT, ([[[0, 0]]],), ValueError, r"action: has shape \(1, 1, 2\)"),
    (MultiDiscreteToDiscrete, (SQUARE,), TypeError, "got Box.*, but .* needs a MultiDiscrete"),
    (combined, ([[2, 2]],), ValueError, r"shape \(1, 2\), but needs one dim"),
    (combined, ([2**31] * 3,), ValueError, f"has {2**93} combinations, more than an int64"),
    (NUMBER, (-1,), ValueError, "action: got -1, but action_space has actions 0 to 5"),
    (NUMBER, ([0, 6],), ValueError, "action: got 6, but action_space has actions 0 to 5"),
    (NUMBER, ([[0]],), ValueError, r"action: has shape \(1, 1\), but needs \(\) or \(k,\)"),
]


@pytest.mark.parametrize(("call", "given", "error", "text"), WRONG)
def test_wrong_arguments(call, given, error, text):
    with pytest.raises(error, match=text):
        call(*given)
