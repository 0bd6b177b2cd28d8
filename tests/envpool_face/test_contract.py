"""EnvPool's contract: order of rows, ids, partial batches, the autoreset row, elapsed steps."""

import functools
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py import envpool
from envpool_py.worker.channel import TOKEN_BYTES
from tests.envpool_face.by_hand import DUMMY, WAIT, ByHand, SeededEnv, check
from tests.support import envs
from tests.support.reference import in_columns

BACKENDS = {
    "dummy": DUMMY,
    "a process each": {"backend": "shmem", "context": "fork", "num_processes": None},
    "two processes": {"backend": "shmem", "context": "fork", "num_processes": 2},
}
ENVS = {
    "random": envs.RandomEnv,
    "dict": functools.partial(envs.SpaceEnv, 0, "dict"),
    "nested": functools.partial(envs.SpaceEnv, 0, "nested"),
    "tuple": functools.partial(envs.SpaceEnv, 0, "tuple"),
    "pendulum": functools.partial(gym.make, "Pendulum-v1", max_episode_steps=5),
}
CASES = [(name, "dummy") for name in ENVS]
CASES += [("nested", "two processes"), ("random", "a process each")]


@pytest.mark.parametrize("size", [5, 3])
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_equal_to_envs_stepped_by_hand(name, backend, size):
    hand, rng = ByHand(ENVS[name], 5, seed=3), np.random.default_rng(0)
    pool = envpool.make(
        ENVS[name], num_envs=5, batch_size=size, seed=3, pool_options=BACKENDS[backend]
    )
    space = pool.observation_space
    pool.action_space.seed(0)
    pool.async_reset()
    expected = dict(enumerate(hand.reset()))
    order, batch = list(range(5)), pool.recv()
    for k in range(40):
        ids = batch[4]["env_id"].tolist()
        assert len(set(ids)) == size
        if size == 5:
            assert ids == order
        check(batch, [expected.pop(i) for i in ids], space)
        order = rng.permutation(ids).tolist()
        if k % 8 == 7:  # some of those that are idle, named in any way
            some = order[:2]
            seed, seeds = (None, None) if k < 20 else (k, [k + i for i in some])
            check(pool.reset(some, seed=seed), hand.reset(some, seeds), space)
            mask = np.isin(np.arange(5), some)
            found = pool.reset([0], options={"reset_mask": mask, "scale": 2.0})
            some.sort()
            check(found, hand.reset(some, options=[{"scale": 2.0}] * 2), space)
        actions = [pool.action_space.sample() for _ in order]
        expected |= zip(order, hand.step(actions, order), strict=True)
        given = in_columns(pool.action_space, actions)
        if k % 2:
            batch = pool.step(given, np.array(order, np.int32))
        else:
            pool.send({"env_id": np.array(order), "action": given})
            batch = pool.recv()
    check(pool.reset(range(5), seed=9), hand.reset(seeds=range(9, 14)), space)
    pool.close()


def test_a_batch_has_the_envs_that_finished_first_in_that_order(gates):
    make_env = functools.partial(SeededEnv, gates)
    pool = envpool.make(make_env, num_envs=4, batch_size=2, num_threads=4, seed=0)
    pool.reset(range(4))
    pool.send(np.array([WAIT, WAIT, 0, 0]))
    assert sorted(pool.recv()[4]["env_id"]) == [2, 3]
    gates[1].release()
    wait_for_rows(pool, 1)
    gates[0].release()
    batch = pool.recv()
    assert batch[4]["env_id"].tolist() == batch[0][:, 0].tolist() == [1, 0]
    pool.send(np.zeros(1), [3])  # of fewer than a batch holds, all
    assert pool.recv()[4]["env_id"].tolist() == [3]
    with pytest.raises(ValueError, match="no env is in flight"):
        pool.recv()
    pool.close()


def wait_for_rows(pool, count):
    """Wait until so many rows are in the pipe, unread."""
    channel, chunks = pool.pool.engine.hosts.processes.channel, pool.pool.engine.arrivals.chunks
    while sum(map(len, chunks)) < TOKEN_BYTES * count:
        channel.collect(chunks)
        time.sleep(0.001)


@pytest.fixture
def four():
    """Four envs in one process, in batches of two."""
    options = {"backend": "shmem", "num_processes": 1}
    pool = envpool.make(SeededEnv, num_envs=4, batch_size=2, seed=0, pool_options=options)
    yield pool
    pool.close()


def step_all(pool):
    """Have all four envs step, so that more rows are there than a batch holds; return two."""
    pool.reset(range(4))
    pool.send(np.zeros(4))
    wait_for_rows(pool, 4)
    return pool.recv()


def test_rows_beyond_a_batch_begin_the_next(four):
    first, second = step_all(four), four.recv()
    assert first[4]["env_id"].tolist() == [0, 1]
    assert second[4]["env_id"].tolist() == second[0][:, 0].tolist() == [2, 3]
    step_all(four)
    with pytest.raises(AlreadyPendingCallError, match="envs 2 to 3: a row is still unread"):
        four.send(np.zeros(3), [0, 3, 2])
    four.send(np.zeros(1), [0])
    four.reset([3])
    batch = four.recv()
    assert batch[4]["env_id"].tolist() == [2, 0]
    assert batch[4]["elapsed_step"].tolist() == [1, 2]


def test_with_rows_left_a_batch_waits_for_the_missing_ones_alone(gates):
    make_env = functools.partial(SeededEnv, gates)
    pool = envpool.make(make_env, num_envs=4, batch_size=2, num_threads=4, seed=0)
    slow, fast = step_all(pool)[4]["env_id"].tolist()
    left, idle = sorted({0, 1, 2, 3} - {slow, fast})
    pool.reset([idle])
    pool.send(np.array([WAIT, 0]), [slow, fast])
    with gates[slow].held():
        assert pool.recv()[4]["env_id"].tolist() == [left, fast]
    assert pool.pool.wait_num == 2
    pool.close()


def test_a_reset_drops_what_was_under_way(four):
    step_all(four)
    four.send(np.zeros(1), [1])
    obs, info = four.reset([2, 1])
    assert info["env_id"].tolist() == obs[:, 0].tolist() == [2, 1]
    assert info["elapsed_step"].tolist() == [0, 0]
    assert four.recv()[4]["env_id"].tolist() == [3]
    step_all(four)
    four.async_reset()
    infos = [four.recv(reset=True)[1], four.recv(reset=True)[1]]
    assert sorted(i for info in infos for i in info["env_id"]) == [0, 1, 2, 3]
    assert all(info["elapsed_step"].tolist() == [0, 0] for info in infos)
    assert len(four.reset()) == 2


def test_seeds():
    def streams(**options):
        pool = envpool.make(envs.RandomEnv, num_envs=3, pool_options=DUMMY, **options)
        found = pool.reset()[0], pool.reset()[0]
        pool.close()
        return [one.tolist() for one in found]

    def by_hand(seeds):
        own = [envs.RandomEnv() for _ in seeds]
        first = [env.reset(seed=s)[0].tolist() for env, s in zip(own, seeds, strict=True)]
        return [first, [env.reset()[0].tolist() for env in own]]

    assert streams() == by_hand([42, 43, 44])
    assert streams(seed=7) == by_hand([7, 8, 9])
    assert streams(seed=[5, 1, 9]) == streams(seed=np.array([5, 1, 9])) == by_hand([5, 1, 9])
    assert streams(seed=None) != streams(seed=None)


def test_wrong_calls_and_calls_after_close(four):
    step_all(four)
    with pytest.raises(TypeError, match="options must be a dict or one for each env, got int 3"):
        four.reset(options=3)
    for call in (four.send, four.step):
        with pytest.raises(TypeError, match="expected one per env, got None"):
            call(None)
    assert not four.closed
    four.close()
    four.close()
    assert four.closed
    for call in (four.reset, four.async_reset, four.recv, lambda: four.step(np.zeros(4))):
        with pytest.raises(ClosedEnvironmentError):
            call()
