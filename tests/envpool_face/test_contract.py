"""EnvPool's contract: order of rows, ids, partial batches, the autoreset row, elapsed steps."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py import envpool
from envpool_py.worker.channel import TOKEN_BYTES
from tests.envpool_face.by_hand import ByHand, SeededEnv, SeededGateEnv, check_row, same
from tests.support import envs

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS: dict[str, dict[str, Any]] = {
    "dummy": {"backend": "dummy"},
    "a process each": {"backend": "shmem", "context": "fork", "num_processes": None},
    "two processes": {"backend": "shmem", "context": "fork", "num_processes": 2},
}
ENVS: dict[str, Callable[[], Any]] = {
    "counts": SeededEnv,
    "random": envs.RandomEnv,
    "dict": functools.partial(envs.SpaceEnv, 0, "dict"),
    "nested": functools.partial(envs.SpaceEnv, 0, "nested"),
    "tuple": functools.partial(envs.SpaceEnv, 0, "tuple"),
    "pendulum": functools.partial(gym.make, "Pendulum-v1", max_episode_steps=5),
}

CASES = [(name, "dummy") for name in ENVS]
CASES += [("nested", "two processes"), ("random", "a process each")]


def samples(space: gym.Space, count: int) -> list[Any]:
    return [space.sample() for _ in range(count)]


def stacked(actions: list[Any], space: gym.Space) -> Any:
    """Return actions as EnvPool's users write them: arrays, or dicts and tuples of arrays."""
    if isinstance(space, gym.spaces.Dict):
        return {key: stacked([one[key] for one in actions], space[key]) for key in space}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(stacked([one[k] for one in actions], each) for k, each in enumerate(space))
    return np.array(actions)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_sync_batches_equal_envs_stepped_by_hand(name: str, backend: str) -> None:
    by_hand = ByHand(ENVS[name], 5, seed=3)
    pool = envpool.make(ENVS[name], num_envs=5, seed=3, pool_options=BACKENDS[backend])
    try:
        pool.action_space.seed(0)
        obs, info = pool.reset()
        rows = [by_hand.reset(i) for i in range(5)]
        no = np.zeros(5, dtype=bool)
        for k, row in enumerate(rows):
            check_row((obs, no.astype(np.float32), no, no, info), k, row)
        order = np.arange(5)
        for _ in range(25):
            actions = samples(pool.action_space, 5)
            batch = pool.step(stacked(actions, pool.action_space), order)
            assert batch[4]["env_id"].tolist() == order.tolist()
            for k, i in enumerate(order.tolist()):
                check_row(batch, k, by_hand.step(i, actions[k]))
            order = np.random.default_rng(int(order[0])).permutation(5)
    finally:
        pool.close()


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_partial_batches_equal_envs_stepped_by_hand(name: str, backend: str) -> None:
    by_hand = ByHand(ENVS[name], 7, seed=3)
    options = BACKENDS[backend]
    pool = envpool.make(ENVS[name], num_envs=7, batch_size=3, seed=3, pool_options=options)
    try:
        pool.action_space.seed(0)
        pool.async_reset()
        expected = {i: by_hand.reset(i) for i in range(7)}
        for _ in range(60):
            batch = pool.recv()
            ids = batch[4]["env_id"].tolist()
            assert len(set(ids)) == 3
            for k, i in enumerate(ids):
                check_row(batch, k, expected.pop(i))
            actions = samples(pool.action_space, 3)
            pool.send(stacked(actions, pool.action_space), batch[4]["env_id"])
            expected |= {i: by_hand.step(i, one) for i, one in zip(ids, actions, strict=True)}
    finally:
        pool.close()


def test_a_batch_has_the_envs_that_finished_first_in_that_order(gates: list[envs.Gate]) -> None:
    make_env = functools.partial(SeededGateEnv, gates)
    pool = envpool.make(make_env, num_envs=4, batch_size=2, num_threads=4, seed=0)
    try:
        pool.reset(range(4))
        pool.send(np.array([1, 1, 0, 0]))
        assert sorted(pool.recv()[4]["env_id"]) == [2, 3]
        gates[1].release()
        assert wait_for_rows(pool, 1)
        gates[0].release()
        batch = pool.recv()
        assert batch[4]["env_id"].tolist() == batch[0][:, 0].tolist() == [1, 0]
        pool.send(np.zeros(1), [3])  # of fewer than a batch holds, all
        assert pool.recv()[4]["env_id"].tolist() == [3]
        with pytest.raises(ValueError, match="no env is in flight"):
            pool.recv()
    finally:
        pool.close()


def wait_for_rows(pool: Any, count: int) -> bool:
    """Wait until so many rows are in the pipe, unread."""
    channel = pool.pool.engine.hosts.processes.channel
    limit = time.monotonic() + 10
    chunks = pool.pool.engine.arrivals.chunks
    while sum(map(len, chunks)) < TOKEN_BYTES * count and time.monotonic() < limit:
        channel.collect(chunks)
        time.sleep(0.001)
    return time.monotonic() < limit


@pytest.fixture
def four() -> Any:
    """Four envs in one process, in batches of two."""
    pool = envpool.make(
        SeededEnv, num_envs=4, batch_size=2, seed=0, pool_options={"num_processes": 1}
    )
    yield pool
    pool.close()


def all_ready(pool: Any) -> None:
    """Have all four envs step, and fetch more rows than a batch holds."""
    pool.reset(range(4))
    pool.send(np.zeros(4))
    assert wait_for_rows(pool, 4)


def test_rows_beyond_a_batch_begin_the_next(four: Any) -> None:
    all_ready(four)
    first, second = four.recv(), four.recv()
    assert first[4]["env_id"].tolist() == [0, 1]
    assert second[4]["env_id"].tolist() == second[0][:, 0].tolist() == [2, 3]
    all_ready(four)
    four.recv()
    four.send(np.zeros(1), [0])
    four.reset([3])
    batch = four.recv()
    assert batch[4]["env_id"].tolist() == [2, 0]
    assert batch[4]["elapsed_step"].tolist() == [1, 2]


def test_an_env_whose_row_is_unread_takes_no_action(four: Any) -> None:
    all_ready(four)
    four.recv()
    with pytest.raises(AlreadyPendingCallError, match="envs 2 to 3: a row is still unread"):
        four.send(np.zeros(3), [0, 3, 2])
    four.send(np.zeros(2), [0, 1])
    assert four.recv()[4]["env_id"].tolist() == [2, 3]


def test_a_reset_drops_what_was_under_way(four: Any) -> None:
    all_ready(four)
    four.recv()
    four.send(np.zeros(1), [1])
    obs, info = four.reset([2, 1])
    assert info["env_id"].tolist() == [2, 1]
    assert info["elapsed_step"].tolist() == [0, 0]
    assert obs[:, 0].tolist() == [2, 1]
    assert four.recv()[4]["env_id"].tolist() == [3]
    all_ready(four)
    four.recv()
    four.async_reset()
    batches = [four.recv(reset=True), four.recv(reset=True)]
    assert sorted(i for _, info in batches for i in info["env_id"]) == [0, 1, 2, 3]
    assert all(info["elapsed_step"].tolist() == [0, 0] for _, info in batches)


def test_seeds() -> None:
    def streams(**options: Any) -> list[list[float]]:
        pool = envpool.make(
            envs.RandomEnv, num_envs=3, pool_options={"backend": "dummy"}, **options
        )
        found = pool.reset()[0], pool.reset()[0]
        pool.close()
        return [one.tolist() for one in found]

    def by_hand(seeds: list[int]) -> list[list[float]]:
        own = [envs.RandomEnv() for _ in seeds]
        first = [env.reset(seed=s)[0].tolist() for env, s in zip(own, seeds, strict=True)]
        return [first, [env.reset()[0].tolist() for env in own]]

    assert streams() == by_hand([42, 43, 44])
    assert streams(seed=7) == by_hand([7, 8, 9])
    assert streams(seed=[5, 1, 9]) == by_hand([5, 1, 9])
    assert streams(seed=np.array([5, 1, 9])) == by_hand([5, 1, 9])
    assert streams(seed=None) != streams(seed=None)


def test_resets_of_some_envs() -> None:
    own = ByHand(envs.RandomEnv, 3, seed=42)
    pool = envpool.make(envs.RandomEnv, num_envs=3, pool_options={"backend": "dummy"})
    obs, info = pool.reset(np.array([2, 0], np.int32))
    assert info["env_id"].tolist() == [2, 0]
    same(obs, np.stack([own.reset(2)[0], own.reset(0)[0]]))
    obs, info = pool.reset(options={"reset_mask": np.array([False, True, True])})
    assert info["env_id"].tolist() == [1, 2]
    same(obs, np.stack([own.reset(1)[0], own.reset(2)[0]]))
    own.seeds = [5, 6, 7]
    same(pool.reset(seed=5)[0], np.stack([own.reset(i)[0] for i in range(3)]))
    assert pool.reset(options={"scale": 0.0})[0].tolist() == np.zeros((3, 3)).tolist()
    pool.close()


def test_wrong_calls_and_calls_after_close(four: Any) -> None:
    all_ready(four)
    four.recv()
    with pytest.raises(TypeError, match="options must be a dict or one for each env, got int 3"):
        four.reset(options=3)
    with pytest.raises(TypeError, match="expected one per env, got None"):
        four.send(None)
    assert not four.closed
    four.close()
    four.close()
    assert four.closed
    for call in (four.reset, four.async_reset, four.recv, lambda: four.step(np.zeros(4))):
        with pytest.raises(ClosedEnvironmentError):
            call()
