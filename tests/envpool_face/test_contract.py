"""EnvPool's contract: order of rows, ids, partial batches, the autoreset row, elapsed steps."""

import functools
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py import envpool
from envpool_py.env.request import TOKEN_BYTES
from tests.envpool_face.envs import DUMMY, WAIT, SeededEnv
from tests.support import envs
from tests.support.places import paired
from tests.support.reference import HandStepped, check_obs, in_columns, same

ENVS = {
    "random": envs.RandomEnv,
    "nested": functools.partial(envs.SpaceEnv, 0, "nested"),
    "tuple": functools.partial(envs.SpaceEnv, 0, "tuple"),
    "pendulum": functools.partial(gym.make, "Pendulum-v1", max_episode_steps=5),
}
TWO = {"backend": "shmem", "context": "fork", "num_processes": 2}
CASES = [*((name, DUMMY) for name in ENVS), ("nested", TWO), ("random", TWO)]


def check(batch, rows, pool, elapsed):
    """Assert that what `recv`, or with two parts `reset`, returned are these rows."""
    obs, *parts, info = batch
    ids = [row.env_id for row in rows]
    check_obs(obs, [row.obs for row in rows], pool.observation_space, columns=True)
    names, dtypes = ("reward", "terminated", "truncated"), ("float32", "bool", "bool")
    for part, name, dtype in zip(parts, names, dtypes, strict=False):
        assert same(part, np.array([getattr(row, name) for row in rows], dtype)), name
    began = [not parts or "is_reset" in row.info for row in rows]
    elapsed[ids] = np.where(began, 0, elapsed[ids] + 1)
    env_id = np.array(ids, np.int32)
    own = {"env_id": env_id, "players": {"env_id": env_id}, "elapsed_step": elapsed[ids]}
    by_gymnasium = gym.vector.VectorEnv()
    by_gymnasium.num_envs = len(rows)
    added = ("env_id", "is_reset", "seed")  # seeds may be None beside an int
    for k, row in enumerate(rows):
        told = {key: value for key, value in row.info.items() if key not in added}
        own = by_gymnasium._add_info(own, told, k)
    assert same({key: info[key] for key in info if key not in ("seed", "_seed")}, own)


@pytest.mark.parametrize(("case", "size"), paired(CASES, [5, 3]))
def test_equal_to_envs_stepped_by_hand(case, size):
    name, backend = case
    hand, rng = HandStepped([ENVS[name]] * 5, "next_step"), np.random.default_rng(0)
    pool = envpool.make(ENVS[name], num_envs=5, batch_size=size, seed=3, options=backend)
    elapsed = np.zeros(5, np.int32)
    pool.action_space.seed(0)
    pool.async_reset()
    expected = {row.env_id: row.marked() for row in hand.reset(seeds=range(3, 8))}
    order, batch = list(range(5)), pool.recv()
    for k in range(24):
        ids = batch[4]["env_id"].tolist()
        assert len(set(ids)) == size
        if size == 5:
            assert ids == order
        check(batch, [expected.pop(i) for i in ids], pool, elapsed)
        order = rng.permutation(ids).tolist()
        if k % 8 == 7:  # some of those that are idle, named in any way
            some = order[:2]
            seed, seeds = (None, None) if k < 12 else (k, [k + i for i in some])
            check(pool.reset(some, seed=seed), hand.reset(some, seeds), pool, elapsed)
            mask = np.isin(np.arange(5), some)
            found = pool.reset([0], options={"reset_mask": mask, "scale": 2.0})
            some.sort()
            check(found, hand.reset(some, options=[{"scale": 2.0}] * 2), pool, elapsed)
        actions = [pool.action_space.sample() for _ in order]
        expected |= zip(order, hand.step(actions, order), strict=True)
        given = in_columns(pool.action_space, actions)
        if k % 2:
            batch = pool.step(given, np.array(order, np.int32))
        else:
            pool.send({"env_id": np.array(order), "action": given})
            batch = pool.recv()
    check(pool.reset(range(5), seed=9), hand.reset(seeds=range(9, 14)), pool, elapsed)
    pool.close()


@pytest.fixture
def four(gates):
    """Four envs, each in its own process, in batches of two."""
    make_env = functools.partial(SeededEnv, gates)
    pool = envpool.make(make_env, num_envs=4, batch_size=2, num_threads=4, seed=0)
    yield pool
    pool.close()


def step_all(pool):
    """Have all four envs step, so that more rows are there than a batch holds; return two ids."""
    pool.reset(range(4))
    pool.send(np.zeros(4))
    engine = pool.pool.engine
    while sum(map(len, engine.arrivals.token_chunks)) < TOKEN_BYTES * 4:
        engine.hosts.supervisor.poller.collect(engine.arrivals.token_chunks)
        time.sleep(0.001)
    return ids_of(pool.recv())


def ids_of(batch):
    """Return the ids of a batch whose rows are those of these envs."""
    assert batch[-1]["env_id"].tolist() == batch[0][:, 0].tolist()
    return batch[-1]["env_id"].tolist()


def test_rows_beyond_a_batch_begin_the_next(four, gates):
    slow, fast = step_all(four)
    left, idle = sorted({0, 1, 2, 3} - {slow, fast})
    with pytest.raises(AlreadyPendingCallError, match=rf"\b{idle}\b.* still unread"):
        four.send(np.zeros(3), [slow, idle, left])
    four.reset([idle])
    four.send(np.array([WAIT, 0]), [slow, fast])
    with gates[slow].held():
        assert ids_of(four.recv()) == [left, fast]
    assert four.pool.wait_num == 2
    assert ids_of(four.recv()) == [slow]  # of fewer than a batch holds, all
    with pytest.raises(ValueError, match="no env is in flight"):
        four.recv()


def test_a_reset_drops_what_was_under_way(four):
    first = step_all(four)
    left, other = {0, 1, 2, 3}.difference(first)
    four.send(np.zeros(1), first[:1])
    batch = four.reset([left, first[0]])
    assert ids_of(batch) == [left, first[0]]
    assert batch[1]["elapsed_step"].tolist() == [0, 0]
    assert ids_of(four.recv()) == [other]
    step_all(four)
    four.async_reset()
    batches = [four.recv(reset=True), four.recv(reset=True)]
    assert sorted(i for batch in batches for i in ids_of(batch)) == [0, 1, 2, 3]
    assert not any(batch[1]["elapsed_step"].any() for batch in batches)
    assert len(four.reset()) == 2


def test_seeds_of_the_first_resets():
    seed = np.array([5, 1, 9])
    for given, seeds in (
        ({}, [42, 43, 44]),
        ({"seed": seed}, [5, 1, 9]),
        ({"seed": None}, [None] * 3),
    ):
        pool = envpool.make(envs.CountEnv, num_envs=3, options=DUMMY, **given)
        pool.async_reset()  # is cancelled, so the next one is the first
        assert [pool.reset()[1]["seed"].tolist() for _ in range(2)] == [seeds, [None] * 3]
        pool.close()


def test_wrong_calls_and_calls_after_close():
    pool = envpool.make(SeededEnv, num_envs=4, options=DUMMY)
    for call in (pool.send, pool.step):
        with pytest.raises(TypeError, match="expected one per env, got None"):
            call(None)
    pool.close()
    pool.close()
    assert pool.closed
    for call in (pool.reset, pool.recv, lambda: pool.step(np.zeros(4))):
        with pytest.raises(ClosedEnvironmentError):
            call()
