"""Episodes and batches of transitions of every kind of env; extras, infos and seeds."""

import contextlib
from functools import partial
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, RandomPolicy
from envpool_py.gymnasium import VectorEnv
from envpool_py.wrappers import VectorEnvWrapper
from tests.faults.helpers import MODES
from tests.support import envs
from tests.support.episodes import (
    CELLS,
    SEED,
    SUBJECTS,
    by_env,
    check_by_hand,
    equal,
    random_policy,
    rows_of,
)
from tests.support.places import PLACES, paired


def check_steps(batches, env_fns):
    """Step raw envs with the actions of the batches: all else must come out the same."""
    raw = [env_fn() for env_fn in env_fns]
    last = [env.reset(seed=SEED + i) for i, env in enumerate(raw)]
    episodes = [0] * len(raw)
    for batch in batches:
        columns = (rows_of(tree, len(batch)) for tree in (batch.obs, batch.actions, batch.next_obs))
        for t, (i, obs, action, next_obs) in enumerate(zip(batch.env_id, *columns, strict=True)):
            assert equal((obs, own_info(batch.infos[t], i)), last[i])
            assert batch.episode_id[t] == episodes[i]
            *row, info = raw[i].step(action)
            last[i] = row[0], info
            assert equal((next_obs, own_info(batch.next_infos[t], i)), last[i])
            assert np.array_equal(batch.rewards[t], row[1])
            assert (batch.terminated[t], batch.truncated[t]) == tuple(row[2:])
            if row[2] or row[3]:
                episodes[i] += 1
                last[i] = raw[i].reset()
    return sum(episodes)


def own_info(info, env_id):
    """Return what the env has put into an info; the pool has added its id."""
    assert info["env_id"] == env_id
    return {key: value for key, value in info.items() if key not in ("env_id", "is_reset")}


def unlike(tag):
    return envs.SpaceEnv(tag, ("text", "dict")[tag])


@pytest.mark.parametrize(("name", "columns", "mode"), [*CELLS, ("unlike", False, None)])
def test_every_kind_of_env_equals_hand_stepped_envs(name, columns, mode):
    env_fns = [partial(SUBJECTS.get(name, unlike), tag) for tag in range(2)]

    def collector():
        pool = DummyVectorEnv(env_fns, wait_num=1, columns=columns, autoreset_mode=mode)
        return AsyncCollector(pool, random_policy(pool), seed=SEED, keep_infos=True)

    one, other = collector(), collector()
    with one.pool, other.pool:
        episodes = list(one.episodes(4))
        batches = list(islice(other.steps(5), 6))
    check_by_hand(episodes, env_fns)
    assert check_steps(batches, env_fns) > 2
    for episode in episodes:
        taken = [info["action"] for info in episode.infos[1:]]
        assert equal(rows_of(episode.actions, len(episode)), taken)
        places = [(info["env_id"], info["episode"], info["step"]) for info in episode.infos]
        i, number = episode.env_id, episode.episode_id
        assert places == [(i, number, t) for t in range(len(episode) + 1)]
        if name == "vectors":
            assert episode.rewards.shape == (3, 3)
            assert equal(episode.total_reward, np.sum(list(episode.rewards), axis=0))


class Shifted(VectorEnvWrapper):
    """Adds to the observations."""

    def observations(self, obs):
        return obs + 1000


@pytest.mark.parametrize("mode", MODES)
def test_wrapped_pools(mode):
    def policy(obs, env_ids):
        return 0 * env_ids, {"seen": obs}

    def shifted(tag):
        return gym.wrappers.TransformObservation(envs.RandomEnv(tag), lambda obs: obs + 1000, None)

    env_fns, by_hand = ([partial(f, i) for i in range(3)] for f in (envs.RandomEnv, shifted))
    with Shifted(DummyVectorEnv(env_fns, wait_num=2, autoreset_mode=mode)) as pool:
        episodes = list(AsyncCollector(pool, policy, seed=SEED).episodes(12))
        batches = list(islice(AsyncCollector(pool, policy, seed=SEED, keep_infos=True).steps(), 40))
    check_by_hand(episodes, by_hand)
    assert check_steps(batches, by_hand) > 5
    assert all(equal(episode.extras["seen"], episode.obs[:-1]) for episode in episodes)
    assert all(equal(batch.extras["seen"], batch.obs) for batch in batches)


def test_steps_go_on_after_a_loop_that_was_left():
    env_fns = [partial(envs.RandomEnv, i) for i in range(3)]
    with PLACES["shmem-fork-packed"](env_fns, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 1), seed=SEED, keep_infos=True)
        batches = [next(collector.steps(size)) for size in (2, 9, 1, 30, 2, 2)]
    check_steps(batches, env_fns)


def used_by_hand(pool, _):
    pool.drain()
    pool.reset()
    pool.send([77] * len(pool))


def used_by_another_collector(_, other):
    next(other.steps(2))


def used_for_whole_episodes(_, other):
    list(other.episodes(3))


def used_for_a_rollout(_, other):
    next(other.steps(2))
    assert (other.rollout(2).obs[0, :, 2] == 0).all()  # of new episodes


USES = [used_by_hand, used_by_another_collector, used_for_whole_episodes, used_for_a_rollout]


@pytest.mark.parametrize(("place", "use"), paired(["dummy", "shmem-fork"], [*USES]))
def test_a_pool_that_was_used_otherwise_is_not_gone_on_with(place, use):
    """Train, evaluate, train: what is recorded is what the envs got."""

    def evaluated(_, env_ids):
        return np.full(len(env_ids), 77)

    env_fns = [partial(envs.ChangedEnv, i, 5, step=told_of_action) for i in range(2)]
    with PLACES[place](env_fns, wait_num=1) as pool:
        train = AsyncCollector(pool, lambda _, env_ids: 0 * env_ids + 1, keep_infos=True)
        other = AsyncCollector(pool, evaluated)
        steps = train.steps(3)
        next(steps)
        use(pool, other)
        with pytest.raises(RuntimeError, match="the pool was used otherwise"):
            next(steps)
        batch = next(train.steps(8))
        assert batch.actions.tolist() == [1] * 8
        assert [info["action"] for info in batch.next_infos] == [1] * 8
        for i in set(batch.env_id):
            assert batch.obs[batch.env_id == i][0, 2] == 0  # of a new episode
        episodes = train.episodes()
        next(episodes)
        use(pool, other)
        with pytest.raises(RuntimeError, match="the pool was used otherwise"):
            list(islice(episodes, 2))


def test_a_request_that_is_only_sent_is_a_use_of_the_pool():
    with DummyVectorEnv([partial(envs.CountEnv, i, 5 + i) for i in range(2)], wait_num=1) as pool:
        collector = AsyncCollector(pool, lambda _, env_ids: 0 * env_ids)
        episodes = collector.episodes(2)
        assert len(next(episodes)) == 5
        (free,) = pool.ready_id
        pool.send([77], free)
        with pytest.raises(RuntimeError, match="the pool was used otherwise"):
            next(episodes)
        collector.rollout(1)
        pool.send([77], free)
        assert (collector.rollout(2).obs[0, :, 2] == 0).all()  # of new episodes


def told_of_action(_, action, row):
    obs, reward, terminated, truncated, info = row
    return obs, reward, terminated, truncated, {**info, "action": int(action)}


def test_a_vector_env_is_no_pool():
    with contextlib.closing(VectorEnv([envs.CountEnv])) as vector_env:
        with pytest.raises(TypeError, match="got a VectorEnv; pass the pool that it has in its"):
            AsyncCollector(vector_env, lambda *_: [0])
        batch = next(AsyncCollector(vector_env.pool, lambda *_: [0]).steps(1))
        assert batch.actions.tolist() == [0]


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_env_ends_its_episode_with_a_truncated_step(mode):
    def policy(obs, _):
        return ["exit" if row.tolist() == [1, 1, 2] else "" for row in obs]

    env_fns = [partial(envs.FaultEnv, i, 5) for i in range(2)]
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": mode}
    with DummyVectorEnv(env_fns, wait_num=1, **options) as pool:
        batch = next(AsyncCollector(pool, policy, keep_infos=True).steps(30))
    own = batch[batch.env_id == 1]
    lengths = np.diff(np.flatnonzero(own.terminated | own.truncated), prepend=-1)
    assert lengths[:3].tolist() == [5, 3, 5]
    assert ["env_error" in info for info in own.next_infos].index(True) == 7
    assert own.truncated[7]
    assert own.next_obs[7].tolist() == own.obs[7].tolist() == [1, 1, 2]
    assert own.obs[8][2] == 0
    assert len(own[:3]) == len(own[[0, 1, 2]]) == 3
    with pytest.raises(TypeError, match=r"got 0; \[\[0\]\] is a batch of this one"):
        own[0]


@pytest.mark.parametrize("mode", MODES)
def test_extras_and_infos_belong_to_their_rows(mode):
    def extras_of(obs):
        log_prob = -obs.sum(axis=1).astype(np.float32)
        return {"hidden": np.stack([obs, obs + 1], axis=1), "log_prob": log_prob}

    def policy(obs, env_ids, infos):
        assert [info["env_id"] for info in infos] == env_ids.tolist()
        assert [info["step"] for info in infos] == obs[:, 2].tolist()
        return obs[:, 2], extras_of(obs)

    env_fns = [partial(envs.CountEnv, i, 3 + i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=2, autoreset_mode=mode) as pool:
        collector = AsyncCollector(pool, policy, keep_infos=["step", "nothing"])
        episodes = list(collector.episodes(9))
        batches = list(islice(collector.steps(8), 6))
        (without,) = AsyncCollector(pool, policy).episodes(1)
    for episode in episodes:
        obs = episode.obs[:-1]
        assert equal((episode.actions, episode.extras), (obs[:, 2], extras_of(obs)))
        assert episode.infos == tuple({"step": t} for t in range(len(episode) + 1))
    for batch in batches:
        assert equal((batch.actions, batch.extras), (batch.obs[:, 2], extras_of(batch.obs)))
        assert [info["step"] for info in batch.infos] == batch.obs[:, 2].tolist()
        assert [info["step"] for info in batch.next_infos] == batch.next_obs[:, 2].tolist()
    assert without.infos == ()


ZEROS = np.zeros(2, int)
ONE = ZEROS, {"v": [1, 2]}
SMALL = ZEROS, {"v": np.array([1, 2], np.int8)}
HALF = ZEROS, {"v": np.array([1, 2], np.float16)}


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([[0]], ValueError, "got 1 actions for 2 envs"),
        ([[0, None]], ValueError, "None as an action"),
        ([(ZEROS, {"v": [1]})], ValueError, r"extras\['v'\]: expected one row for each of 2 envs"),
        ([(ZEROS, {"v": ["a", "b"]})], TypeError, r"extras\['v'\]: expected numbers"),
        ([ONE, (ZEROS, {"w": [1, 2]})], ValueError, r"extras have the keys \['w'\]"),
        ([ONE, (ZEROS, {"v": [[1], [2]]})], ValueError, r"'v'\] has shape \(2, 1\), but"),
        ([ONE, (ZEROS, {"v": [0.5, 1]})], ValueError, r"'v'\] has dtype float64 and values that"),
        ([SMALL, (ZEROS, {"v": [1, 300]})], ValueError, "of dtype int8, can't hold without loss"),
        ([HALF, (ZEROS, {"v": [1, 1e6]})], ValueError, "of dtype float16, can't hold without loss"),
    ],
)
def test_what_a_policy_may_not_return_is_refused(returned, error, message):
    each = iter(returned)
    with DummyVectorEnv([envs.CountEnv] * 2) as pool:
        collector = AsyncCollector(pool, lambda *_: next(each))
        with pytest.raises(error, match=message):
            next(collector.steps())
        collector.policy = lambda *_: ZEROS
        found = next(collector.steps())  # of new episodes
        assert found.extras == {}


def test_a_module_is_passed_the_infos_that_its_forward_names():
    class Module:
        """As a torch module: what is called says nothing of the arguments of forward."""

        def __call__(self, *args, **kwargs):
            return self.forward(*args, **kwargs)

        def forward(self, obs, env_ids, infos):
            assert len(obs) == len(infos)
            return 0 * env_ids

    with DummyVectorEnv([envs.CountEnv] * 2) as pool:
        assert len(next(AsyncCollector(pool, Module()).episodes())) == 4


def seeds_of_episode(env_id, episode):
    return (None if episode == 2 else 100 * env_id + episode), None


@pytest.mark.parametrize(
    ("options", "seeds", "mode"),
    [
        *paired([{"episode_seeds": True}], [None, [4, None]], MODES),
        *paired([{"reset_fn": seeds_of_episode}], [[4, None], None], MODES),
        ({}, [4, None], None),
    ],
)
def test_an_episode_has_the_seed_of_its_reset(options, seeds, mode):
    env_fns = [partial(envs.RandomEnv, i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1, autoreset_mode=mode, **options) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=seeds)
        episodes = by_env(collector.episodes(8))
    for i, own in episodes.items():
        given = seeds[i] if seeds else None
        seeded = [options or given is not None, options, "episode_seeds" in options, options]
        assert [episode.seed is not None for episode in own] == list(map(bool, seeded))
        for number, episode in enumerate(own):
            assert episode.episode_id == number
            if episode.seed is not None:
                assert equal(episode.obs[0], envs.RandomEnv().reset(seed=episode.seed)[0])
        if given is not None:
            assert own[0].env_seed == own[0].seed == given
        assert len({episode.env_seed for episode in own}) == 1
