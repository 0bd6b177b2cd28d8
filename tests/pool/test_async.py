"""The asynchronous pool: which rows come when. Envs wait at gates, so every race is a made one."""

import functools
import threading

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.helpers import wait_until_blocked
from tests.support.places import LOCAL, PLACES, QUICK
from tests.support.reference import HandStepped, Pending, check, check_empty, check_reset

GO = 0
SPACE = envs.CountEnv().observation_space
COUNT_FNS = [functools.partial(envs.CountEnv, tag, 1000) for tag in range(4)]


class Run:
    """A pool of gated envs, each in its own process, with its oracle, after the first reset."""

    def __init__(self, gates, **options):
        fns = [functools.partial(envs.GateEnv, tag, gate, 1000) for tag, gate in enumerate(gates)]
        self.pool = PLACES["shmem-fork"](fns, **options)
        self.hand = HandStepped(COUNT_FNS)  # these envs never block
        self.pending = Pending(SPACE)
        check_reset(self.pool.reset(), self.hand.reset(), SPACE)

    def send(self, actions, ids):
        self.expect(actions, ids)
        self.pool.send(actions, ids)

    def expect(self, actions, ids):
        self.pending.add(self.hand.step(map(np.int64, actions), ids))

    def recv(self):
        return self.pending.take(self.pool.recv())

    def wait(self, ids):
        """Take these rows, in this order."""
        rows = [self.pending.rows.pop(i) for i in ids]
        check(self.pool.step(None, id=ids), rows, SPACE)


# ------------------------------------------------------------------------ which rows, and when


@pytest.mark.parametrize(
    "make", [PLACES["dummy"], functools.partial(PLACES["shmem-fork"], num_processes=1)]
)
def test_rows_come_in_the_order_in_which_envs_finished(make):
    # One process steps its envs in the order asked, so that is the order of finishing.
    hand = HandStepped(COUNT_FNS)
    with make(COUNT_FNS, wait_num=4, timeout=20.0) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        for ids in ([2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3]):
            actions = [np.int64(5 + i) for i in ids]
            check(pool.step(actions, ids), hand.step(actions, ids), SPACE)


def test_the_env_that_finishes_first_comes_first(gates):
    run = Run(gates, wait_num=1)
    with run.pool:
        run.send([BLOCK] * 4, [0, 1, 2, 3])
        for i in (2, 0, 3, 1):
            gates[i].release()
            assert run.recv() == [i]


def test_the_dummy_pool_steps_as_many_as_are_asked_for():
    with DummyVectorEnv(COUNT_FNS, wait_num=2) as pool:
        pool.reset()
        pool.send([GO] * 4)
        assert pool.recv()[0].tolist() == [[0, 0, 1], [1, 0, 1]]
        assert [worker.env.steps for worker in pool.workers] == [1, 1, 0, 0]
        pool.send([GO, GO], [1, 0])
        assert [pool.recv()[0][:, 0].tolist() for _ in range(2)] == [[2, 3], [1, 0]]


# --------------------------------------------------------------------------------- timeouts


def test_a_timeout_returns_what_is_there(gates):
    run = Run(gates)
    with run.pool as pool:
        assert (pool.timeout, pool.is_async, pool.wait_num) == (None, False, 4)
        pool.timeout = 0.05
        assert (pool.timeout, pool.is_async, pool.wait_num) == (0.05, True, 4)
        run.send([BLOCK, GO, GO, GO], [0, 1, 2, 3])
        with gates[0].held():
            rows = []
            while len(rows) < 3:
                rows += run.recv()
            assert sorted(rows) == [1, 2, 3]
        assert run.recv() == [0]


def test_a_first_row_and_named_ids_are_waited_for_without_a_timeout(gates, beside):
    run = Run(gates, wait_num=2, timeout=0.01)

    def let_go(*ids):
        for i in ids:
            with gates[i].held():
                wait_until_blocked(threading.main_thread())  # for longer than the timeout

    with run.pool:
        run.send([BLOCK] * 4, [0, 1, 2, 3])
        beside(functools.partial(let_go, 3))
        assert run.recv() == [3]
        beside(functools.partial(let_go, 1, 0))
        run.wait([1, 0])
        gates[2].release()
        run.pending.take(run.pool.drain())


def test_a_strict_timeout_may_return_nothing(gates):
    run = Run(gates, wait_num=1, timeout=0.01, strict_timeout=True)
    with run.pool as pool:
        run.send([BLOCK, BLOCK], [0, 1])
        with gates[0].held(), gates[1].held():
            check_empty(pool.recv(), SPACE)
            check_empty(pool.step(None), SPACE)
            run.expect([BLOCK], [2])
            check_empty(pool.step([BLOCK], [2]), SPACE)
            assert sorted(pool.waiting_id) == [0, 1, 2]
        gates[2].release()
        assert sorted(run.pending.take(pool.drain())) == [0, 1, 2]


# ----------------------------------------------------------------------------------- resets


def test_a_slow_reset_overlaps_with_stepping(gates):
    run = Run(gates, wait_num=2)
    with run.pool as pool:
        options = {"block": True}
        run.pending.add(row.marked() for row in run.hand.reset([0], [8], options=[options]))
        pool.send_reset([0], seed=8, options=options)
        with gates[0].held():
            ready = [1, 2, 3]
            for _ in range(10):
                run.send([GO] * len(ready), ready)
                ready = run.recv()
                assert 0 not in ready
            run.wait([i for i in run.pending.rows if i != 0])
            check_reset(pool.reset([3, 2]), run.hand.reset([3, 2]), SPACE)
            check_reset(pool.reset([2], seed=4), run.hand.reset([2], [6]), SPACE)
            assert list(pool.waiting_id) == [0]
        assert run.recv() == [0]
        run.send([GO], [0])
        assert run.recv() == [0]


# ------------------------------------------------------------------------- envs in flight


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
        pool._assert_id([0, 3])
        assert pool.get_env_attr("tag", [0, 2]) == [0, 2]
        assert pool.call("counts", id=[0, 2, 3]) == [(0, 1)] * 3
        assert pool.recv()[0].tolist() == [[1, 0, 1]]


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
        obs, infos = pool.reset()
        assert obs.tolist() == [[i, infos[i]["episode"], 0] for i in range(4)]
        assert [(info["env_id"], info["step"]) for info in infos] == [(i, 0) for i in range(4)]
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
            assert pool.reset()[0][:, [0, 2]].tolist() == [[i, 0] for i in range(4)]
            pool.send([GO] * 4)
            assert sorted(pool.drain()[0][:, 2].tolist()) == [1] * 4
