"""The wrappers beside Tianshou's own, in one process, on the same envs."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py import wrappers as ours
from tests.wrappers.envs import env_fns
from tests.wrappers.test_of_envs import Echo, plane

if sys.version_info >= (3, 11):
    from tianshou import env as theirs
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
    from tianshou.utils import RunningMeanStd as TheirRunningMeanStd

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="tianshou 2.0.1 is for Python 3.11 and newer"
)


# ------------------------------------------------------------------------------ action wrappers


@pytest.mark.parametrize(("choices", "dtype"), [(5, np.float32), ([2, 9], np.float64)])
def test_continuous_to_discrete(choices: Any, dtype: type) -> None:
    box = plane((-1 / 3, 0.1), (0.7, 1e6), dtype)
    own, other = ours.ContinuousToDiscrete(box, choices), theirs.ContinuousToDiscrete(box, choices)
    assert own.action_space == other.action_space
    batch = np.array(list(np.ndindex(*own.action_space.nvec)))
    np.testing.assert_array_equal(own.action(batch), other.action(batch))
    for action in batch:
        np.testing.assert_array_equal(own.action(action), other.action(action))


@pytest.mark.parametrize("choices", [[4], [3, 1, 4, 2]])
def test_multi_discrete_to_discrete(choices: list[int]) -> None:
    env = Echo(spaces.MultiDiscrete(choices))
    own, other = ours.MultiDiscreteToDiscrete(env), theirs.MultiDiscreteToDiscrete(env)
    assert own.action_space == other.action_space
    batch = np.arange(own.action_space.n)
    np.testing.assert_array_equal(own.action(batch), other.action(batch))
    for action in batch:
        np.testing.assert_array_equal(own.action(action), other.action(np.array(action)))


@pytest.mark.parametrize("limit", [1, 5])
def test_truncated_as_terminated(limit: int) -> None:
    rows = []
    for wrapper in (ours.TruncatedAsTerminated, theirs.TruncatedAsTerminated):
        env = wrapper(gym.make("CartPole-v1", max_episode_steps=limit))
        env.reset(seed=0)
        rows.append([env.step(0) for _ in range(limit)])
    for own, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(own[0], other[0])
        assert own[1:] == other[1:]


# ----------------------------------------------------------------------------------- statistics


def test_running_mean_std() -> None:
    rng = np.random.default_rng(0)
    own, other = ours.RunningMeanStd(), TheirRunningMeanStd()
    assert (own.mean, own.var, own.count) == (other.mean, other.var, other.count)
    assert (own.clip_max, own.eps) == (other.clip_max, other.eps)
    for size in (1, 3, 64, 2):
        batch = rng.normal(3.0, 2.0, (size, 5))
        own.update(batch)
        other.update(batch)
        np.testing.assert_allclose(own.mean, other.mean, rtol=1e-14)
        np.testing.assert_allclose(own.var, other.var, rtol=1e-13)
        np.testing.assert_allclose(own.norm(batch), other.norm(batch), rtol=1e-12, atol=1e-13)
        assert own.count == other.count


# ---------------------------------------------------------------------------------- normalising


@pytest.mark.parametrize("space", ["float64", "float32", "uint8"])
def test_normalised_rows(space: str) -> None:
    own = ours.VectorEnvNormObs(DummyVectorEnv(env_fns(space)))
    other = theirs.VectorEnvNormObs(theirs.DummyVectorEnv(env_fns(space)))
    # float32: their statistics, and so their results, are of that precision.
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-5} if space == "float32" else {"rtol": 1e-11, "atol": 1e-12}
    )
    seeds = [3, 4, 5, 6]
    own.seed(seeds)
    other.seed(seeds)
    for method, *args in [
        ("reset",),
        ("step", [0] * 4),
        ("reset", [1, 3]),
        ("step", [1, 0], [2, 0]),
    ]:
        arrays = [np.array(arg) for arg in args]
        got, expected = getattr(own, method)(*arrays), getattr(other, method)(*arrays)
        np.testing.assert_allclose(got[0], expected[0], **tolerance)
        assert got[0].dtype == expected[0].dtype
        for left, right in zip(got[1:-1], expected[1:-1], strict=True):
            np.testing.assert_array_equal(left, right)
    np.testing.assert_allclose(own.get_obs_rms().mean, other.get_obs_rms().mean, **tolerance)
    np.testing.assert_allclose(own.get_obs_rms().var, other.get_obs_rms().var, **tolerance)
    assert own.get_obs_rms().count == other.get_obs_rms().count
    own.close()
    other.close()


def test_their_statistics_serve_in_our_wrapper_and_ours_in_theirs() -> None:
    their_rms, our_rms = TheirRunningMeanStd(), ours.RunningMeanStd()
    with DummyVectorEnv(env_fns("float64")) as venv:
        own = ours.VectorEnvNormObs(venv)
        own.set_obs_rms(their_rms)
        other = theirs.VectorEnvNormObs(theirs.DummyVectorEnv(env_fns("float64")))
        other.set_obs_rms(our_rms)
        got, expected = own.reset(seed=[9] * 4)[0], other.reset(seed=9)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-12)
        assert their_rms.count == our_rms.count == 4
        other.close()


# ------------------------------------------------------------------------- Tianshou's collectors


def policy() -> Any:
    """Make a policy whose action is the sign of the observation's sum."""

    class Sign(Policy):
        def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
            act = (batch.obs.reshape(len(batch.obs), -1).sum(axis=1) > 0).astype(int)
            del state
            # The AsyncCollector needs a state, and a policy entry that is not empty.
            return Batch(act=act, state=Batch(hidden=act), policy=Batch(score=act))

    return Sign(action_space=spaces.Discrete(2))


def episodes(buffer: Any) -> list[list[Any]]:
    """The rows of each env's part of a buffer, in order."""
    return [[part[i] for i in range(len(part))] for part in buffer.buffers]


def test_a_collector_over_normalised_observations() -> None:
    buffers = []
    for venv in (
        ours.VectorEnvNormObs(DummyVectorEnv(env_fns("float64"))),
        theirs.VectorEnvNormObs(theirs.DummyVectorEnv(env_fns("float64"))),
    ):
        venv.seed([3, 4, 5, 6])
        buffer = VectorReplayBuffer(200, 4)
        collector = Collector(policy(), venv, buffer)
        collector.reset()
        collector.collect(n_step=40)
        collector.collect(n_episode=6)
        buffers.append(episodes(buffer))
        venv.close()
    for own, other in zip(*buffers, strict=True):
        for left, right in zip(own, other, strict=True):
            np.testing.assert_allclose(left.obs, right.obs, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(left.obs_next, right.obs_next, rtol=1e-11, atol=1e-12)
            for key in ("act", "rew", "terminated", "truncated"):
                assert left[key] == right[key]


def test_an_async_collector_over_normalised_observations() -> None:
    with ours.VectorEnvNormObs(ShmemVectorEnv(env_fns("float32"), wait_num=2)) as venv:
        buffer = VectorReplayBuffer(200, 4)
        with pytest.warns(UserWarning, match="extra transitions"):
            collector = AsyncCollector(policy(), venv, buffer)
        collector.reset()
        collector.collect(n_step=40)
        collector.reset(reset_buffer=False)
        collector.collect(n_step=20)
        rows = episodes(buffer)
        assert sum(map(len, rows)) >= 60
        for part in rows:
            assert all(np.abs(row.obs).max() < 10 for row in part)  # raw, they are about 60
            for row, following in itertools.pairwise(part):
                if not row.terminated and following.rew == row.rew + 1:
                    np.testing.assert_array_equal(row.obs_next, following.obs)
