"""An unmodified Tianshou on our pools, and our wrappers beside its own.

Every row that its collectors gather is compared with envs stepped by hand; in sync mode the whole
buffer is compared with what the same Collector gathers from Tianshou's own pool.
"""

import functools
import sys

import numpy as np
import pytest

from envpool_py import DummyVectorEnv
from envpool_py import wrappers as ours
from envpool_py.tianshou import VectorEnvType
from tests.support import envs
from tests.support.helpers import run_python
from tests.support.places import BACKENDS, PLACES
from tests.wrappers.envs import env_fns

if sys.version_info >= (3, 11):
    from tianshou import env as theirs
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
    from tianshou.utils import RunningMeanStd as TheirRunningMeanStd
else:
    Policy = object


pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="tianshou 2.0.1 asks for Python 3.11"),
    pytest.mark.filterwarnings("ignore:Using async setting may collect extra:UserWarning"),
    pytest.mark.filterwarnings("ignore:n_step=.* is not a multiple:UserWarning"),
    pytest.mark.filterwarnings("ignore:n_episode=.* should be larger:UserWarning"),
]

NUM = 4


def make_fns(as_dict=False):
    return [functools.partial(envs.LedgerEnv, tag, as_dict) for tag in range(NUM)]


def counts_of(obs):
    return np.asarray(obs.counts if hasattr(obs, "counts") else obs)


def choose(counts):
    """Return the actions that follow these observations."""
    return (counts[..., :3].sum(-1) * 3 + counts[..., 3] + 1).astype(np.int64) % 7


class CountingPolicy(Policy):
    """Acts on what it sees, and keeps a state, which the AsyncCollector of 2.0.1 needs."""

    def forward(self, batch, state=None, **_):
        obs = counts_of(batch.obs)
        count = np.zeros(len(obs)) if state is None else np.asarray(state.count) + 1
        seen = Batch(seen=obs[..., 0])
        return Batch(act=choose(obs), state=Batch(count=count), policy=seen)


def collector_of(pool, kind=None):
    policy = CountingPolicy(action_space=envs.LedgerEnv(0).action_space)
    buffer = VectorReplayBuffer(800, NUM)
    collector = (kind or Collector)(policy, pool, buffer)
    collector.reset()
    return collector, buffer


def same_rows(buffer, other):
    """Assert that two buffers hold the same rows."""
    assert len(buffer) == len(other)
    for name in ("act", "rew", "terminated", "truncated", "done", "obs", "obs_next"):
        pair = (counts_of(each[:].get(name)) for each in (buffer, other))
        np.testing.assert_array_equal(*pair)


def check_rows(buffer, *, chosen=True):
    """Step envs by hand with the actions in the buffer; return how many rows are equal: all."""
    total = 0
    for i, part in enumerate(buffer.buffers):
        rows = part[part.sample_indices(0)]
        if not len(rows):
            continue
        total += len(rows)
        as_dict = hasattr(rows.obs, "image")
        env = envs.LedgerEnv(i, as_dict)
        env.episode = int(counts_of(rows.obs)[0, 1]) - 1
        before, over = env.reset()[0], False
        for k, action in enumerate(rows.act):
            if over:
                before = env.reset()[0]
            if chosen:
                assert action == choose(counts_of(rows.obs)[k])
                assert rows.policy.seen[k] == i
            after, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            for given, own in ((rows.obs[k], before), (rows.obs_next[k], after)):
                assert np.array_equal(counts_of(given), own["counts"] if as_dict else own)
                assert not as_dict or np.array_equal(given.image, own["image"])
            row = (rows.rew[k], rows.terminated[k], rows.truncated[k], rows.done[k])
            assert row == (reward, terminated, truncated, over)
            assert (rows.info.env_id[k], rows.info.place[k]) == (i, info["place"])
            before = after
    return total


COLLECT = [({"n_step": 60}, False), ({"n_step": 61}, True)]
COLLECT += [({"n_episode": 11}, False), ({"n_episode": 2}, True)]


@pytest.mark.parametrize("place", BACKENDS)
def test_collector(place):
    for collect, as_dict in COLLECT:
        found = []
        for make in (PLACES[place], theirs.DummyVectorEnv):
            pool = make(make_fns(as_dict))
            collector, buffer = collector_of(pool)
            found.append((buffer, collector.collect(**collect)))
            pool.close()
        (buffer, own_stats), (expected, their_stats) = found
        same_rows(buffer, expected)
        assert check_rows(buffer) == own_stats.n_collected_steps == len(buffer)
        assert own_stats.n_collected_episodes == their_stats.n_collected_episodes
        assert np.array_equal(own_stats.returns, their_stats.returns)
        assert np.array_equal(own_stats.lens, their_stats.lens)


def test_collector_goes_on_where_it_stopped_and_closes_the_pool():
    pool = PLACES["shmem-fork-packed"](make_fns())
    collector, buffer = collector_of(pool)
    collector.collect(n_step=20)
    collector.collect(n_step=24)
    assert check_rows(buffer) == 44
    # Keywords reach the envs' resets.
    collector.reset(gym_reset_kwargs={"seed": 5, "options": {"level": 1}})
    assert len(buffer) == 0
    collector.collect(n_episode=5, gym_reset_kwargs={"seed": 5})
    assert check_rows(buffer) > 0
    collector.close()
    assert pool.is_closed


@pytest.mark.parametrize("place", BACKENDS)
def test_collector_at_random_is_reproducible(place):
    def actions(seed):
        with PLACES[place](make_fns()) as pool:
            collector, buffer = collector_of(pool)
            pool.seed(seed)  # after the collector has taken its copy of the spaces
            collector.reset()
            collector.collect(n_step=80, random=True)
            assert check_rows(buffer, chosen=False) == 80
            return np.asarray(buffer.act[:80]).tolist()

    assert actions(5) == actions(5) != actions(6)


@pytest.mark.parametrize("place", BACKENDS)
def test_async_collector(place):
    for options, collect in (
        ({"wait_num": 1}, {"n_step": 100}),
        ({"wait_num": 3}, {"n_episode": 12}),
        ({"timeout": 0.001}, {"n_step": 100}),
    ):
        with PLACES[place](make_fns(), **options) as pool:
            assert pool.is_async
            collector, buffer = collector_of(pool, AsyncCollector)
            stats = collector.collect(**collect)
            assert check_rows(buffer) == stats.n_collected_steps
            assert stats.n_collected_steps >= collect.get("n_step", 0)
            assert stats.n_collected_episodes >= collect.get("n_episode", 0)
            # A second collection goes on with the envs that are in flight.
            more = collector.collect(**collect)
            assert check_rows(buffer) == stats.n_collected_steps + more.n_collected_steps
            # And a reset drains them once, which must be enough.
            collector.reset()
            assert not pool.waiting_id
            again = collector.collect(**collect)
            assert check_rows(buffer) == again.n_collected_steps


def test_pools_have_every_attribute_of_theirs_and_a_collector_refuses_asynchronous_ones():
    reference = theirs.DummyVectorEnv(make_fns())
    reference.close()
    with PLACES["dummy"](make_fns(), wait_num=2) as pool:
        assert {name for name in dir(reference) if not name.startswith("_")} <= set(dir(pool))
        with pytest.raises(ValueError, match="AsyncCollector"):
            collector_of(pool)[0].collect(n_step=10)


def test_statistics_of_observations_serve_in_either_wrapper():
    fns, statistics = env_fns("float64"), (TheirRunningMeanStd(), ours.RunningMeanStd())
    own = ours.VectorEnvNormObs(DummyVectorEnv(fns))
    other = theirs.VectorEnvNormObs(theirs.DummyVectorEnv(fns))
    own.set_obs_rms(statistics[0])
    other.set_obs_rms(statistics[1])
    np.testing.assert_allclose(own.reset(seed=[9] * 4)[0], other.reset(seed=9)[0], rtol=1e-12)
    assert [each.count for each in statistics] == [4, 4]
    own.close()
    other.close()


def test_pools_are_instances_of_their_classes_once_tianshou_is_imported():
    code = """
import copy, sys, gymnasium, envpool_py, envpool_py.wrappers
class Mine(envpool_py.DummyVectorEnv):
    def close(self):
        super().close()
pool = Mine([lambda: gymnasium.make("CartPole-v1")])
wrapped = envpool_py.VectorEnvNormObs(pool)
assert pool.__class__ is Mine and "tianshou" not in sys.modules
from tianshou import env as theirs
for each, name in ((pool, "DummyVectorEnv"), (wrapped, "VectorEnvNormObs")):
    for package in (theirs, envpool_py):
        assert isinstance(each, package.BaseVectorEnv) and isinstance(each, getattr(package, name))
    assert not isinstance(each, (theirs.ShmemVectorEnv, envpool_py.ShmemVectorEnv, gymnasium.Env))
    assert each.__class__.__name__ == type(each).__name__
    assert each.__class__.__module__ == type(each).__module__
assert copy.copy(wrapped).venv is pool and type(copy.copy(wrapped)) is type(wrapped)
wrapped.close()
"""
    run_python("-c", code)


TYPES = [VectorEnvType.DUMMY, VectorEnvType("shmem", {"num_processes": 2, "context": "fork"})]


@pytest.mark.parametrize("kind", TYPES)
def test_the_env_factories_of_highlevel_choose_our_pools(kind):
    from tianshou.highlevel import env as highlevel  # noqa: PLC0415 - of Python 3.11 and newer

    names = highlevel.VectorEnvType.__members__
    assert all(isinstance(getattr(VectorEnvType, name), VectorEnvType) for name in names)
    found = []
    for venv_type in (kind, highlevel.VectorEnvType.DUMMY):
        factory = highlevel.EnvFactoryRegistered(task="CartPole-v1", venv_type=venv_type)
        pool = factory.create_venv(3, highlevel.EnvMode.TRAINING, seed=4)
        assert isinstance(pool, theirs.BaseVectorEnv)
        rows = [pool.reset()[0], *(pool.step([0, 1, 0])[:4] for _ in range(5))]
        found.append((rows, [space.sample() for space in pool.action_space]))
        pool.close()
    assert str(found[0]) == str(found[1])
    with pytest.raises(ValueError, match="backend must be one of dummy, .* got 'threads'"):
        VectorEnvType("threads")
