"""An unmodified Tianshou collects from our pools, and its buffer holds the right rows.

The envs' observations say which env, episode and step they belong to and which action led there,
so every row of the buffer can be checked by itself and against the rows around it; in sync mode
the whole buffer is compared with what the same Collector gathers from Tianshou's own pool.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envpool_py import BaseVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK

if sys.version_info >= (3, 11):
    from tianshou import env as theirs
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
else:
    Policy = object


pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="tianshou 2.0.1 asks for Python 3.11"),
    pytest.mark.filterwarnings("ignore:Using async setting may collect extra:UserWarning"),
    pytest.mark.filterwarnings("ignore:n_step=.* is not a multiple:UserWarning"),
    pytest.mark.filterwarnings("ignore:n_episode=.* should be larger:UserWarning"),
]

NUM = 4


def make_fns(as_dict: bool = False) -> list[Callable[[], Any]]:
    return [functools.partial(envs.LedgerEnv, tag, as_dict) for tag in range(NUM)]


def choose(counts: np.ndarray) -> np.ndarray:
    """Return the actions that follow these observations."""
    return (counts[..., :3].sum(-1) * 3 + counts[..., 3] + 1).astype(np.int64) % 7


class CountingPolicy(Policy):
    """Acts on what it sees, and keeps a state, which the AsyncCollector of 2.0.1 needs."""

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        obs = batch.obs.counts if hasattr(batch.obs, "counts") else batch.obs
        count = np.zeros(len(obs)) if state is None else np.asarray(state.count) + 1
        seen = np.asarray(obs)[..., 0]
        return Batch(act=choose(np.asarray(obs)), state=Batch(count=count), policy=Batch(seen=seen))


def policy() -> Any:
    raw = envs.LedgerEnv(0)
    return CountingPolicy(action_space=raw.action_space, observation_space=raw.observation_space)


def rows_of(buffer: Any, env_id: int) -> Any:
    """Return what the buffer holds of one env, in the order of its steps."""
    part = buffer.buffers[env_id]
    return part[part.sample_indices(0)]


def counts_of(obs: Any) -> np.ndarray:
    return np.asarray(obs.counts if hasattr(obs, "counts") else obs)


def check_rows(buffer: Any, *, chosen: bool = True) -> int:
    """Assert that each env's rows are its consecutive steps; return how many rows there are."""
    total = 0
    for i in range(NUM):
        rows = rows_of(buffer, i)
        total += len(rows)
        if not len(rows):
            continue
        obs, after = counts_of(rows.obs), counts_of(rows.obs_next)
        length = 3 + i
        assert (obs[:, 0] == i).all()
        assert (after[:, 0] == i).all()
        assert (after[:, 1] == obs[:, 1]).all()
        assert (after[:, 2] == obs[:, 2] + 1).all()
        assert (after[:, 3] == rows.act).all()
        if chosen:
            assert (rows.act == choose(obs)).all()
            assert (np.asarray(rows.policy.seen) == i).all()
        assert np.allclose(rows.rew, i * 100 + after[:, 2] + 0.25 * np.asarray(rows.act))
        ended = after[:, 2] == length
        odd = obs[:, 1] % 2 == 1
        assert (rows.terminated == (ended & ~odd)).all()
        assert (rows.truncated == (ended & odd)).all()
        assert (rows.done == ended).all()
        assert (np.asarray(rows.info.env_id) == i).all()
        assert np.allclose(rows.info.place, i * 100 + after[:, 2])
        if hasattr(rows.obs, "image"):
            assert (rows.obs.image == obs[:, 2, None, None]).all()
            assert (rows.obs_next.image == after[:, 2, None, None]).all()
        # Consecutive: each row goes on where the one before it stopped.
        same_episode = ~ended[:-1]
        assert (obs[1:][same_episode] == after[:-1][same_episode]).all()
        assert (obs[1:][~same_episode][:, 1] == obs[:-1][~same_episode][:, 1] + 1).all()
        assert (obs[1:][~same_episode][:, 2] == 0).all()
        assert (obs[1:][~same_episode][:, 3] == -1).all()
    return total


def gathered(pool: Any, **collect: Any) -> Any:
    buffer = VectorReplayBuffer(400, NUM)
    collector = Collector(policy(), pool, buffer)
    collector.reset()
    stats = collector.collect(**collect)
    return buffer, stats, collector


@pytest.mark.parametrize(
    ("collect", "as_dict"),
    [
        ({"n_step": 60}, False),
        ({"n_step": 61}, True),
        ({"n_episode": 11}, False),
        ({"n_episode": 2}, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", QUICK)
def test_collector(place: str, collect: dict[str, int], as_dict: bool) -> None:
    with PLACES[place](make_fns(as_dict)) as pool:
        buffer, stats, _ = gathered(pool, **collect)
        assert check_rows(buffer) == stats.n_collected_steps
    reference = theirs.DummyVectorEnv(make_fns(as_dict))
    expected, their_stats, _ = gathered(reference, **collect)
    reference.close()
    assert len(buffer) == len(expected)
    assert stats.n_collected_episodes == their_stats.n_collected_episodes
    assert np.array_equal(stats.returns, their_stats.returns)
    assert np.array_equal(stats.lens, their_stats.lens)
    for name in ("act", "rew", "terminated", "truncated", "done"):
        ours, others = buffer.get(slice(None), name), expected.get(slice(None), name)
        assert np.array_equal(ours, others)
    for name in ("obs", "obs_next"):
        ours, others = buffer[:].get(name), expected[:].get(name)
        assert np.array_equal(counts_of(ours), counts_of(others))


def test_collector_goes_on_where_it_stopped_and_closes_the_pool() -> None:
    pool = PLACES["shmem-fork-packed"](make_fns())
    buffer, _, collector = gathered(pool, n_step=20)
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
def test_collector_at_random_is_reproducible(place: str) -> None:
    def actions(seed: int) -> np.ndarray:
        with PLACES[place](make_fns()) as pool:
            buffer = VectorReplayBuffer(400, NUM)
            collector = Collector(policy(), pool, buffer)
            pool.seed(seed)  # after the collector has taken its copy of the spaces
            collector.reset()
            collector.collect(n_step=80, random=True)
            assert check_rows(buffer, chosen=False) == 80
            return np.asarray(buffer.act[:80])

    assert np.array_equal(actions(5), actions(5))
    assert not np.array_equal(actions(5), actions(6))


@pytest.mark.parametrize(
    ("place", "options", "collect"),
    [
        *((place, {"wait_num": 1}, {"n_step": 100}) for place in QUICK),
        *((place, {"wait_num": 3}, {"n_episode": 12}) for place in QUICK),
        ("shmem-fork-packed", {"timeout": 0.001}, {"n_step": 100}),
    ],
)
def test_async_collector(place: str, options: dict[str, Any], collect: dict[str, int]) -> None:
    with PLACES[place](make_fns(), **options) as pool:
        assert pool.is_async
        buffer = VectorReplayBuffer(800, NUM)
        collector = AsyncCollector(policy(), pool, buffer)
        collector.reset()
        stats = collector.collect(**collect)
        assert check_rows(buffer) == stats.n_collected_steps
        if "n_step" in collect:
            assert stats.n_collected_steps >= 100
        else:
            assert stats.n_collected_episodes >= 12
        # A second collection goes on with the envs that are in flight.
        more = collector.collect(**collect)
        assert check_rows(buffer) == stats.n_collected_steps + more.n_collected_steps
        # And a reset drains them once, which must be enough.
        collector.reset()
        assert not pool.waiting_id
        again = collector.collect(**collect)
        assert check_rows(buffer) == again.n_collected_steps


def test_collector_refuses_an_async_pool() -> None:
    with PLACES["dummy"](make_fns(), wait_num=2) as pool:
        collector = Collector(policy(), pool, VectorReplayBuffer(100, NUM))
        collector.reset()
        with pytest.raises(ValueError, match="AsyncCollector"):
            collector.collect(n_step=10)


def test_our_pools_have_every_attribute_of_theirs() -> None:
    reference = theirs.DummyVectorEnv(make_fns())
    public = {name for name in dir(reference) if not name.startswith("_")}
    reference.close()
    for place in QUICK:
        with PLACES[place](make_fns()) as pool:
            pool: BaseVectorEnv
            assert public <= set(dir(pool)), public - set(dir(pool))
