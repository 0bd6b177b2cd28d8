"""The asynchronous pool: which rows come when. Envs wait at gates, so every race is a made one."""

import functools
import threading

import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.helpers import wait_until_blocked
from tests.support.places import LOCAL, PLACES, QUICK
from tests.support.reference import check

GO = 0
COUNT_FNS = [functools.partial(envs.CountEnv, tag, 1000) for tag in range(4)]


def gated(gates, place="shmem-fork", **options):
    """Return a pool of gated envs, after the first reset."""
    fns = [functools.partial(envs.GateEnv, tag, gate, 1000) for tag, gate in enumerate(gates)]
    pool = PLACES[place](fns, **options)
    pool.reset()
    return pool


def rows_of(batch):
    """Return (env, episode, step) of each row, by its observation; its info says the same."""
    rows = batch[0].tolist()
    assert rows == [[info[key] for key in ("env_id", "episode", "step")] for info in batch[-1]]
    return rows


@pytest.mark.parametrize(
    "make", [PLACES["dummy"], functools.partial(PLACES["shmem-fork"], num_processes=1)]
)
def test_rows_come_in_the_order_in_which_envs_finished(make):
    # One process steps its envs in the order asked, so that is the order of finishing.
    with make(COUNT_FNS, wait_num=4, timeout=20.0) as pool:
        pool.reset()
        for step, ids in enumerate(([2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3])):
            batch = pool.step([5 + i for i in ids], ids)
            assert rows_of(batch) == [[i, 0, step + 1] for i in ids]
            assert [info["action"] for info in batch[4]] == [5 + i for i in ids]


@pytest.mark.parametrize("place", ["shmem-fork", "thread"])
def test_the_env_that_finishes_first_comes_first(place, gates):
    with gated(gates, place, wait_num=1) as pool:
        pool.send([BLOCK] * 4)
        for i in (2, 0, 3, 1):
            gates[i].release()
            assert rows_of(pool.recv()) == [[i, 0, 1]]


def test_the_dummy_pool_steps_as_many_as_are_asked_for():
    with DummyVectorEnv(COUNT_FNS, wait_num=2) as pool:
        pool.reset()
        pool.send([GO] * 4)
        assert rows_of(pool.recv()) == [[0, 0, 1], [1, 0, 1]]
        assert [worker.env.steps for worker in pool.workers] == [1, 1, 0, 0]
        pool.send([GO, GO], [1, 0])
        assert rows_of(pool.recv()) == [[2, 0, 1], [3, 0, 1]]
        assert rows_of(pool.recv()) == [[1, 0, 2], [0, 0, 2]]


def test_a_timeout_returns_what_is_there_while_a_reset_is_slow(gates):
    with gated(gates) as pool:
        assert (pool.timeout, pool.is_async, pool.wait_num) == (None, False, 4)
        pool.timeout = 0.05
        assert (pool.timeout, pool.is_async, pool.wait_num) == (0.05, True, 4)
        pool.send_reset([0], options={"block": True})
        with gates[0].held():
            for step in (1, 2):
                pool.send([GO] * 3, [1, 2, 3])
                rows = []
                while len(rows) < 3:
                    rows += rows_of(pool.recv())
                assert sorted(rows) == [[i, 0, step] for i in (1, 2, 3)]
            assert rows_of(pool.reset([3, 2])) == [[3, 1, 0], [2, 1, 0]]
            assert pool.waiting_id == [0]
        batch = pool.recv()
        assert rows_of(batch) == [[0, 1, 0]]
        assert batch[4][0]["is_reset"] is True


def test_a_first_row_and_named_ids_are_waited_for_without_a_timeout(gates, beside):
    def let_go(*ids):
        for i in ids:
            with gates[i].held():
                wait_until_blocked(threading.main_thread())  # for longer than the timeout

    with gated(gates, wait_num=2, timeout=0.01) as pool:
        pool.send([BLOCK] * 4)
        beside(functools.partial(let_go, 3))
        assert rows_of(pool.recv()) == [[3, 0, 1]]
        beside(functools.partial(let_go, 1, 0))
        assert rows_of(pool.step(None, id=[1, 0])) == [[1, 0, 1], [0, 0, 1]]
        gates[2].release()
        assert rows_of(pool.drain()) == [[2, 0, 1]]


def test_a_strict_timeout_may_return_nothing(gates):
    with gated(gates, wait_num=1, timeout=0.01, strict_timeout=True) as pool:
        space = pool.observation_space[0]
        pool.send([BLOCK, BLOCK], [0, 1])
        with gates[0].held(), gates[1].held():
            check(pool.recv(), [], space)
            check(pool.step(None), [], space)
            check(pool.step([BLOCK], [2]), [], space)
            assert pool.waiting_id == [0, 1, 2]
        gates[2].release()
        assert sorted(rows_of(pool.drain())) == [[i, 0, 1] for i in range(3)]


@pytest.mark.parametrize("place", LOCAL)
def test_an_env_in_flight_takes_nothing_else(place):
    with PLACES[place](COUNT_FNS) as pool:
        pool.reset()
        pool.send([GO], [1])
        for ask in (
            lambda: pool.step([GO], [1]),
            lambda: pool.send([GO, GO], [0, 1]),
            lambda: pool.reset([1]),
            pool.reset,
            lambda: pool.send_reset([1]),
            pool.seed,
            lambda: pool.get_env_attr("tag"),
            lambda: pool.set_env_attr("tag", 5, [1]),
            lambda: pool.call("counts", id=[2, 1]),
            lambda: pool.apply(str),
            pool.render,
            lambda: pool._assert_id([0, 1]),  # what subclasses of Tianshou's pools use
        ):
            with pytest.raises(AlreadyPendingCallError, match="env 1"):
                ask()
        assert [id(conn) for conn in pool.waiting_conn] == [id(pool.workers[1])]
        # The others may be asked, and were not touched.
        pool._assert_id(pool._wrap_id([0, 3]))
        assert pool.get_env_attr("tag", [0, 2]) == [0, 2]
        assert pool.call("counts", id=[0, 2, 3]) == [(0, 1)] * 3
        assert rows_of(pool.recv()) == [[1, 0, 1]]


@pytest.mark.parametrize("place", QUICK)
def test_the_rows_that_an_error_kept_back(place):
    with PLACES[place]([functools.partial(envs.FaultEnv, tag) for tag in range(4)]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
            pool.step(["", "value", "", ""])
        assert pool.waiting_id == [0, 2, 3]
        text = r"a result of the previous step is still unread; call recv\(\), or reset"
        for _ in range(2):  # it stays so, and nothing is sent
            with pytest.raises(AlreadyPendingCallError, match=f"envs 0, 2, 3: {text}"):
                pool.step([""] * 4)
        assert pool.reset([3, 1])[0].tolist() == [[3, 1, 0], [1, 1, 0]]
        assert sorted(pool.recv()[0].tolist()) == [[0, 0, 1], [2, 0, 1]]
        assert pool.step([""] * 4)[0].tolist() == [[0, 0, 2], [1, 1, 1], [2, 0, 2], [3, 1, 1]]
        # A reset of all envs works after one error, after another one, and after that of a reset.
        for fails in (
            lambda: pool.step(["value", "", "", ""]),
            lambda: pool.reset([0]) and pool.step(["value"], [0]),
            lambda: pool.reset(options=[{"fault": "value"}, None, None, None]),
        ):
            with pytest.raises(EnvError, match="env 0: .* raised ValueError"):
                fails()
        assert [[row[0], row[2]] for row in rows_of(pool.reset())] == [[i, 0] for i in range(4)]
        assert pool.step([""] * 4)[0][:, 2].tolist() == [1] * 4


@pytest.mark.parametrize("place", QUICK)
def test_cancel_drops_what_is_in_flight(place):
    with PLACES[place](COUNT_FNS) as pool:
        pool.reset()
        pool.cancel()  # nothing in flight
        for wait_num, timeout in ((4, None), (1, float("inf")), (4, 1e8)):
            pool.wait_num, pool.timeout = wait_num, timeout
            pool.send([GO] * 2, [0, 2])
            pool.cancel([2])
            with pytest.raises(ResetNeeded, match="env 2"):
                pool.step([GO], [2])
            assert pool.recv()[0][:, 0].tolist() == [0]
            pool.send_reset([0, 1])
            pool.cancel()
            assert pool.waiting_id == []
            pool.reset()
            pool.send([GO] * 4)
            assert sorted(pool.drain()[0][:, 2].tolist()) == [1] * 4


def test_the_order_of_sending_and_returning():
    with DummyVectorEnv(COUNT_FNS) as pool:
        pool.reset()
        pool.send([0, 0], [3, 1])
        pool.send([0], [2])
        assert (pool.waiting_id, pool.ready_id) == ([3, 1, 2], [0])
        with pytest.raises(ValueError, match="env 0: not in flight; send actions first"):
            pool.step(None, id=[1, 0])
        pool.step(None, id=[1])
        assert (pool.waiting_id, pool.ready_id) == ([3, 2], [0, 1])
        for _ in range(400):  # longer than the log
            pool.step([0], [0])
        assert (pool.waiting_id, pool.ready_id) == ([3, 2], [1, 0])
        pool.send([0, 0], [1, 0])
        pool.step(None, id=[2, 3])
        assert (pool.waiting_id, pool.ready_id) == ([1, 0], [2, 3])
        pool.drain()
