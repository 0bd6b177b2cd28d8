"""`recv_async`: batches of finished envs while other coroutines of the event loop run."""

import asyncio
import functools

import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvError,
    EnvTimeoutError,
    VectorEnvWrapper,
)
from envpool_py.worker.poller import Poller
from tests.backends.test_worker_contract import PromptThreadWorker
from tests.faults.helpers import await_hang, expire
from tests.pool.test_async import gated, rows_of
from tests.sessions.helpers import count_fns, turns
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.places import PLACES, QUICK, paired

GO = 0
CONCURRENT = ("thread", "shmem-fork", "shmem-fork-packed")


#: Custom workers have no supervisor, and no descriptor to wait for.
CUSTOM = functools.partial(BaseVectorEnv, worker_fn=PromptThreadWorker)


@pytest.mark.parametrize(("place", "wait_num"), paired([*QUICK, "custom"], [None, 1, 2]))
async def test_every_backend_returns_each_row_once(place, wait_num):
    steps, make = [0] * 3, CUSTOM if place == "custom" else PLACES[place]
    with make(count_fns(), wait_num=wait_num) as pool:
        pool.send_reset()
        for _ in range(20):
            batch = await pool.recv_async()
            rows = rows_of(batch)
            assert len(rows) >= (wait_num or 3)
            assert pool.batch_ids.tolist() == [row[0] for row in rows]
            for i, _, step in rows:
                assert step == steps[i]
                steps[i] += 1
            pool.send([GO] * len(rows), pool.batch_ids)
        if wait_num is None:
            assert steps == [20] * 3
        pool.cancel()


async def test_other_coroutines_run_between_the_envs_of_this_process():
    with DummyVectorEnv(count_fns(8)) as pool:
        pool.reset()
        pool.send([GO] * 8)
        seen = []
        task = asyncio.create_task(pool.recv_async())
        while not task.done():
            seen.append(sum(worker.env.steps for worker in pool.workers))
            await asyncio.sleep(0)
        assert set(range(8)) <= set(seen)
        # A batch that is there does not keep the loop for itself.
        pool.send([GO] * 8)
        others = asyncio.create_task(turns(1))
        await pool.recv_async()
        await others


@pytest.mark.parametrize("place", CONCURRENT)
async def test_other_coroutines_run_and_a_cancelled_wait_loses_nothing(place, gates):
    with gated(gates[:2], place) as pool:
        pool.send([BLOCK, GO])
        with gates[0].held():
            with pytest.raises(asyncio.TimeoutError):  # a timer of the event loop has ended it
                await asyncio.wait_for(pool.recv_async(), 0.05)
            assert pool.waiting_id == [0, 1]
        assert rows_of(await asyncio.wait_for(pool.recv_async(), 60)) == [[0, 0, 1], [1, 0, 1]]
        pool.send([GO, GO])
        assert rows_of(pool.recv()) == [[0, 0, 2], [1, 0, 2]]


@pytest.mark.parametrize(("place", "by_thread"), paired(["dummy", *CONCURRENT], [False, True]))
async def test_a_pool_closed_meanwhile_ends_the_wait(place, by_thread):
    pool = PLACES[place](count_fns(2))
    pool.reset()
    task = asyncio.create_task(pool.recv_async())  # nothing is in flight
    await turns()
    if by_thread:
        await asyncio.to_thread(pool.close)
    else:
        pool.close()
    with pytest.raises(ClosedEnvironmentError):
        await task
    with pytest.raises(ClosedEnvironmentError):
        await pool.recv_async()


RAISING = [functools.partial(envs.RaisingEnv, tag, 1000) for tag in range(3)]


@pytest.mark.parametrize("place", QUICK)
async def test_an_exception_arrives_in_the_coroutine(place):
    with PLACES[place](RAISING) as pool:
        pool.reset()
        pool.send([GO, 1, GO])
        with pytest.raises(KeyError, match="boom") as caught:
            await pool.recv_async()
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (1,)
        assert rows_of(await pool.recv_async()) == [[0, 0, 1], [2, 0, 1]]
        pool.send_reset([1])
        assert rows_of(await pool.recv_async()) == [[1, 1, 0]]


@pytest.mark.parametrize("action", [1, 2])
async def test_a_restart_blocks_no_coroutine(action, monkeypatch):
    monkeypatch.setattr("envpool_py.engine.failed.LONGEST_BACKOFF", 1e4)
    options = {"on_error": "restart", "restart_backoff": 1e4}
    with PLACES["shmem-fork"](RAISING, **options) as pool:
        pool.reset()
        for waits in (False, True):  # the second restart in a row waits for its back-off
            pool.send([GO, action, GO])
            task = asyncio.create_task(pool.recv_async())
            while waits and 1 not in pool.engine.recovery.recreating:
                await turns()
            if waits:
                task.cancel()
                pool.engine.recovery.recreating[1].due = 0.0
                task = asyncio.create_task(pool.recv_async())
            batch = await task
            assert batch[3].tolist() == [False, True, False]
            pool.send_reset([1])
            await pool.recv_async()
        assert pool.restarts.tolist() == [0, 2, 0]


@pytest.mark.parametrize("place", ["shmem-fork", "thread"])
async def test_a_step_timeout_arrives_in_the_coroutine(place, gates):
    with gated(gates[:2], place, step_timeout=60.0) as pool:
        pool.send([BLOCK, GO])
        with gates[0].held():
            await_hang(pool, 0, [1])
            expire(pool)
            with pytest.raises(EnvTimeoutError, match="env 0: did not end"):
                await pool.recv_async()
        assert rows_of(await pool.recv_async()) == [[1, 0, 1]]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_timeout_returns_fewer_rows(gates, strict):
    options = {"wait_num": 2, "timeout": 0.05, "strict_timeout": strict}
    with gated(gates[:2], **options) as pool:
        pool.send([BLOCK, GO])
        with gates[0].held():
            while not (rows := rows_of(await pool.recv_async())):
                assert strict
            assert rows == [[1, 0, 1]]
            if strict:
                assert rows_of(await pool.recv_async()) == []
        while not (rows := rows_of(await pool.recv_async())):
            pass
        assert rows == [[0, 0, 1]]


@pytest.mark.parametrize("place", ["dummy", *CONCURRENT])
async def test_requests_may_be_sent_while_a_batch_is_awaited(place):
    with PLACES[place](count_fns(2), wait_num=1) as pool:
        pool.reset()
        task = asyncio.create_task(pool.recv_async())  # waits for something to be sent
        await turns()
        assert not task.done()
        with pytest.raises(AlreadyPendingCallError, match="another coroutine or session already"):
            await pool.recv_async()
        assert pool.call("add", 1) == [1, 2]
        pool.send([GO], [1])
        assert rows_of(await task) == [[1, 0, 1]]


async def test_wrappers_change_the_rows():
    class Negative(VectorEnvWrapper):
        def observations(self, obs):
            return -obs

    with PLACES["thread"](count_fns()) as pool:
        wrapper = Negative(Negative(Negative(pool)))
        wrapper.reset()
        wrapper.send([GO] * 3)
        obs = (await wrapper.recv_async())[0]
        assert obs.tolist() == [[0, 0, -1], [-1, 0, -1], [-2, 0, -1]]


async def test_without_a_descriptor_it_looks_now_and_then(monkeypatch):
    monkeypatch.setattr(Poller, "duplicate", lambda _: -1)
    with PLACES["shmem-fork"](count_fns()) as pool:
        pool.send_reset()
        assert rows_of(await pool.recv_async()) == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
