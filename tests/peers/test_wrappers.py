"""The wrappers beside Tianshou's own, in one process, on the same envs."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py import wrappers as ours
from tests.wrappers.envs import env_fns

if sys.version_info >= (3, 11):
    from tianshou import env as theirs
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import Batch, Collector, VectorReplayBuffer
    from tianshou.utils import RunningMeanStd as TheirRunningMeanStd

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="tianshou 2.0.1 is for Python 3.11 and newer"
)


def env_of(action_space):
    env = gym.Env()
    env.observation_space, env.action_space = spaces.Discrete(1), action_space
    return env


def plane(dtype):
    low, high = np.array([-1 / 3, 0.1], dtype), np.array([0.7, 1e6], dtype)
    return env_of(spaces.Box(low, high, dtype=dtype))


ACTIONS = [
    ("ContinuousToDiscrete", plane(np.float32), 5),
    ("ContinuousToDiscrete", plane(np.float64), [2, 9]),
    ("MultiDiscreteToDiscrete", env_of(spaces.MultiDiscrete([4]))),
    ("MultiDiscreteToDiscrete", env_of(spaces.MultiDiscrete([3, 1, 4, 2]))),
]


def test_actions():
    for name, *args in ACTIONS:
        own, other = getattr(ours, name)(*args), getattr(theirs, name)(*args)
        assert own.action_space == other.action_space
        if name == "ContinuousToDiscrete":
            batch = np.array(list(np.ndindex(*own.action_space.nvec)))
        else:
            batch = np.arange(own.action_space.n)
        np.testing.assert_array_equal(own.action(batch), other.action(batch))
        for action in batch:
            np.testing.assert_array_equal(own.action(action), other.action(np.array(action)))


def test_truncated_as_terminated():
    rows = []
    for wrapper in (ours.TruncatedAsTerminated, theirs.TruncatedAsTerminated):
        env = wrapper(gym.make("CartPole-v1", max_episode_steps=5))
        env.reset(seed=0)
        rows.append([env.step(0) for _ in range(5)])
    for own, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(own[0], other[0])
        assert own[1:] == other[1:]


# ------------------------------------------------------------------------ statistics, normalising


def test_running_mean_std():
    rng = np.random.default_rng(0)
    own, other = ours.RunningMeanStd(), TheirRunningMeanStd()
    for name in ("mean", "var", "count", "clip_max", "eps"):
        assert getattr(own, name) == getattr(other, name)
    for size in (1, 3, 64, 2):
        batch = rng.normal(3.0, 2.0, (size, 5))
        own.update(batch)
        other.update(batch)
        np.testing.assert_allclose(own.mean, other.mean, rtol=1e-14)
        np.testing.assert_allclose(own.var, other.var, rtol=1e-13)
        np.testing.assert_allclose(own.norm(batch), other.norm(batch), rtol=1e-12, atol=1e-13)
        assert own.count == other.count


def both(space):
    """Make our wrapped pool and theirs."""
    fns = env_fns(space)
    return [
        ours.VectorEnvNormObs(DummyVectorEnv(fns)),
        theirs.VectorEnvNormObs(theirs.DummyVectorEnv(fns)),
    ]


CALLS = [("reset",), ("step", [0] * 4), ("reset", [1, 3]), ("step", [1, 0], [2, 0])]


@pytest.mark.parametrize("space", ["float64", "float32", "uint8"])
def test_normalised_rows(space):
    own, other = both(space)
    # float32: their statistics, and so their results, are of that precision.
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-5} if space == "float32" else {"rtol": 1e-11, "atol": 1e-12}
    )
    own.seed([3, 4, 5, 6])
    other.seed([3, 4, 5, 6])
    for method, *args in CALLS:
        arrays = [np.array(arg) for arg in args]
        got, expected = getattr(own, method)(*arrays), getattr(other, method)(*arrays)
        np.testing.assert_allclose(got[0], expected[0], **tolerance)
        assert got[0].dtype == expected[0].dtype
        for left, right in zip(got[1:-1], expected[1:-1], strict=True):
            np.testing.assert_array_equal(left, right)
    found, meant = own.get_obs_rms(), other.get_obs_rms()
    np.testing.assert_allclose(found.mean, meant.mean, **tolerance)
    np.testing.assert_allclose(found.var, meant.var, **tolerance)
    assert found.count == meant.count
    own.close()
    other.close()


def test_their_statistics_serve_in_our_wrapper_and_ours_in_theirs():
    own, other = both("float64")
    statistics = TheirRunningMeanStd(), ours.RunningMeanStd()
    own.set_obs_rms(statistics[0])
    other.set_obs_rms(statistics[1])
    np.testing.assert_allclose(own.reset(seed=[9] * 4)[0], other.reset(seed=9)[0], rtol=1e-12)
    assert [each.count for each in statistics] == [4, 4]
    own.close()
    other.close()


# ------------------------------------------------------------------------- Tianshou's collectors


def policy():
    """Make a policy whose action is the sign of the observation's sum."""

    class Sign(Policy):
        def forward(self, batch, state=None, **_):
            act = (batch.obs.reshape(len(batch.obs), -1).sum(axis=1) > 0).astype(int)
            return Batch(act=act, state=state)

    return Sign(action_space=spaces.Discrete(2))


def test_a_collector_over_normalised_observations():
    buffers = []
    for venv in both("float64"):
        venv.seed([3, 4, 5, 6])
        buffers.append(VectorReplayBuffer(200, 4))
        collector = Collector(policy(), venv, buffers[-1])
        collector.reset()
        collector.collect(n_step=40)
        collector.collect(n_episode=6)
        venv.close()
    for own, other in zip(*(buffer.buffers for buffer in buffers), strict=True):
        assert len(own) == len(other)
        for key in ("obs", "obs_next"):
            np.testing.assert_allclose(
                own.get(slice(None), key), other.get(slice(None), key), 1e-11
            )
        for key in ("act", "rew", "terminated", "truncated"):
            np.testing.assert_array_equal(own.get(slice(None), key), other.get(slice(None), key))
