"""The collector against envs stepped by hand: limits, waiting, policies, faults."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envpool_py import DummyVectorEnv, EnvError
from envpool_py.collector import AsyncCollector, RandomPolicy
from tests.faults.helpers import MODES
from tests.support import envs, examples
from tests.support.episodes import SEED, by_env, check_by_hand, fingerprint
from tests.support.helpers import wait_until
from tests.support.places import BACKENDS, PLACES, QUICK, paired


def echo(obs, env_ids):
    """A policy that depends on the observation alone."""
    return (np.abs(obs).sum(axis=1) * 10).astype(np.int64) % 4 + 0 * env_ids


def counts(num, *lengths):
    """CountEnvs whose episodes have these lengths, or the only one."""
    return [partial(envs.CountEnv, i, lengths[i % len(lengths)]) for i in range(num)]


def check_limit(episodes, num_envs, limit):
    """Assert that just so many episodes were collected, or that none was started needlessly."""
    own = by_env(episodes)
    lengths = [[len(episode) for episode in own.get(i, [])] for i in range(num_envs)]
    total = limit.get("num_episodes", limit.get("num_steps"))
    shares = [total // num_envs + (i < total % num_envs) for i in range(num_envs)]
    if "num_episodes" in limit:
        assert len(episodes) == total
        assert list(map(len, lengths)) == shares
    else:
        for one, share in zip(lengths, shares, strict=True):
            assert sum(one) >= share
            assert sum(one[:-1]) < max(share, 1)


@examples.same(max_examples=25)
@given(data=st.data())
def test_any_lengths_blocks_and_limits_equal_hand_stepped_envs(data):
    num_envs = data.draw(st.integers(1, 5), "num_envs")
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=num_envs, max_size=num_envs))
    wait_num = data.draw(st.integers(1, num_envs), "wait_num")
    block = data.draw(st.integers(2, 7), "block")
    env_fns = counts(num_envs, *lengths)
    with pytest.MonkeyPatch.context() as patch, DummyVectorEnv(env_fns, wait_num=wait_num) as pool:
        patch.setattr("envpool_py.collector.episode_buffer._LONGEST_BLOCK", block)
        if data.draw(st.booleans(), "large"):  # of which a block has room for very few
            patch.setattr("envpool_py.collector.episode_buffer._BLOCK_BYTES", 1)
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED)
        found = []
        for _ in range(data.draw(st.integers(1, 3), "calls")):
            kind = data.draw(st.sampled_from(["num_episodes", "num_steps"]), "kind")
            limit = {kind: data.draw(st.integers(0, 30))}
            episodes = list(collector.episodes(**limit))
            check_limit(episodes, num_envs, limit)
            found += episodes
            assert not pool.waiting_id
    check_by_hand(found, env_fns)
    assert all(episode.obs.base is None for episode in found), "it holds a block"
    assert collector.num_started == collector.num_episodes == len(found)
    assert collector.num_steps == sum(map(len, found))


@pytest.mark.parametrize("limit", [{"num_episodes": 11}, {"num_steps": 60}], ids=list)
def test_the_same_episodes_everywhere(limit):
    """Those of envs stepped by hand, whose policy is random or depends on the observation."""
    env_fns = [partial(envs.RandomEnv, i) for i in range(3)]
    found = set()
    for place, wait_num in [*paired(QUICK, (None, 1)), ("dummy", 1)]:
        with PLACES[place](env_fns, wait_num=wait_num) as pool:
            for policy in (RandomPolicy(pool, SEED), echo):
                episodes = list(AsyncCollector(pool, policy, seed=SEED).episodes(**limit))
                check_by_hand(episodes, env_fns)
                found.add((policy is echo, str(fingerprint(episodes))))
    assert len(found) == 2


def test_wrong_limits_are_refused_at_once():
    with DummyVectorEnv([envs.CountEnv]) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool))
        for method, limits, message in [
            (collector.episodes, {"num_episodes": -1}, "num_episodes must be 0 or more, got -1"),
            (collector.episodes, {"num_episodes": 1, "num_steps": 1}, "both num_episodes and num_"),
            (collector.steps, {"batch_size": 0}, "batch_size must be 1 or more, got 0"),
        ]:
            with pytest.raises(ValueError, match=message):
                method(**limits)


@pytest.mark.parametrize("method", ["step", "reset"])
def test_the_others_go_on_while_one_env_waits(method, tmp_path):
    gate = tmp_path / "open"

    def wait(env, *row):
        """Wait in the second step, or in the second reset."""
        assert (env.steps, env.resets)[method == "reset"] < 2 or wait_until(gate.exists)
        return row[-1]

    env_fns = [partial(envs.ChangedEnv, 0, 3, **{method: wait}), *counts(3, 3)[1:]]
    with PLACES["shmem-fork"](env_fns, wait_num=1) as pool:
        episodes = AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(30)
        found = [next(episodes) for _ in range(20)]
        # Of env 0 there can be the one episode before the reset that waits.
        assert sum(episode.env_id == 0 for episode in found) <= (method == "reset")
        gate.touch()
        found += episodes
    assert [len(own) for _, own in sorted(by_env(found).items())] == [10, 10, 10]


@pytest.mark.parametrize("kind", ["episodes", "steps"])
def test_envs_work_while_the_caller_has_what_was_collected(kind):
    with PLACES["shmem-fork"](counts(3, 3), wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        for _ in itertools.islice(getattr(collector, kind)(), 9):
            assert sorted(pool.waiting_id) == [0, 1, 2]


def test_actions_may_be_columns():
    columns = np.full((2, 2), 3.0), np.arange(2, 4), np.array([0.5, 0.25])
    with DummyVectorEnv([partial(envs.SpaceEnv, i, "tuple", 1) for i in range(2)]) as pool:
        episodes = list(AsyncCollector(pool, lambda *_: columns).episodes(2))
    for k, episode in enumerate(episodes):
        given = [column[k : k + 1].tolist() for column in columns]
        assert [part.tolist() for part in episode.actions] == given
        assert [part.dtype for part in episode.actions] == [np.int16, np.int64, np.float16]


def test_random_actions_are_drawn_evenly_and_for_each_env_anew():
    with DummyVectorEnv([partial(envs.SpaceEnv, 0, "discrete-start")] * 2) as pool:
        policy = RandomPolicy(pool, 0)
        actions = np.array([policy(None, np.arange(2)) for _ in range(4000)])
    for column in actions.T:
        values, numbers = np.unique(column, return_counts=True)
        assert values.tolist() == [-3, -2, -1, 0, 1]
        # 4000 draws of probability 1/5 have a deviation of 25: five of them.
        assert np.abs(numbers - 800).max() < 127
    assert (actions[:, 0] == actions[:, 1]).mean() < 0.3


def check_fresh(episodes, *lengths):
    """Assert that they are two whole episodes of each env, one after the other."""
    for i, own in sorted(by_env(episodes).items()):
        assert [len(episode) for episode in own] == [lengths[i]] * 2
        assert own[1].episode_id == own[0].episode_id + 1
        for episode in own:
            assert (episode.obs[:, 1] == episode.episode_id).all()  # the env's own count
            assert episode.obs[:, 2].tolist() == list(range(len(episode) + 1))


COLLECTS = {"episodes": AsyncCollector.episodes, "steps": AsyncCollector.steps}
COLLECTS |= {"rollout": lambda collector: [collector.rollout(20)]}


@pytest.mark.parametrize(("place", "kind"), paired(BACKENDS, [*COLLECTS]))
def test_after_an_error_or_an_early_end_new_episodes_are_collected(place, kind):
    def policy(obs, _):
        return ["value" if row.tolist() == [1, 1, 2] else "" for row in obs]

    with PLACES[place]([partial(envs.FaultEnv, i, 3 + i) for i in range(3)], wait_num=1) as pool:
        collector = AsyncCollector(pool, policy)
        with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
            list(COLLECTS[kind](collector))
        check_fresh(collector.episodes(6), 3, 4, 5)
        next(collector.episodes())
        check_fresh(collector.episodes(6), 3, 4, 5)
        assert len(pool.waiting_id) == 0


ENDED = [*paired(BACKENDS, MODES, [None]), *paired(["dummy"], MODES, [1])]


@pytest.mark.parametrize(("place", "mode", "wait_num"), ENDED)
def test_what_has_ended_is_yielded_before_the_error_of_an_env(place, wait_num, mode):
    """Env 1 raises in its third step, in which the episodes of envs 0 and 2 end."""

    def policy(obs, _):
        return ["value" if row.tolist() == [1, 0, 2] else "" for row in obs]

    env_fns = [partial(envs.FaultEnv, i, 3 + 6 * (i == 1)) for i in range(3)]
    with PLACES[place](env_fns, wait_num=wait_num, autoreset_mode=mode) as pool:
        found = []
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
            found.extend(AsyncCollector(pool, policy).episodes(3))
    assert [(episode.env_id, len(episode)) for episode in found] == [(0, 3), (2, 3)]


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_what_has_ended_is_yielded_before_the_error_of_a_policy(error):
    """An interrupt has it: it would be lost in a loop that is left at an episode."""

    def policy(obs, env_ids):
        if (obs[:, 1] == 1).any():
            raise error("the second episode")
        return 0 * env_ids

    with DummyVectorEnv(counts(2, 2, 3)) as pool:
        found = []
        with pytest.raises(error, match="the second episode") as caught:
            found.extend(AsyncCollector(pool, policy).episodes())
        # The batch of env 0's reset is that in which env 1's first episode ends.
        parts = found, getattr(caught.value, "finished", [])
        expected = [[0, 1], []] if error is LookupError else [[0], [1]]
        assert [[one.env_id for one in part] for part in parts] == expected


def test_a_with_block_cancels_what_is_in_flight_and_leaves_the_pool_open():
    with DummyVectorEnv(counts(3, 4), wait_num=1) as pool:
        with AsyncCollector(pool, echo, seed=SEED) as collector:
            next(collector.steps())
            assert pool.waiting_id
        assert (pool.waiting_id, collector.closed) == ([], False)
        assert len(list(collector.episodes(3))) == 3  # it goes on
        text = f"AsyncCollector(3 episodes, {collector.num_steps} steps, {pool!r})"
        assert repr(collector) == text
    assert collector.closed
    with collector:  # of a closed pool
        pass
