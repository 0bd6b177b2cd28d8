"""The asynchronous pool: which rows come when. Envs wait at gates, so every race is a made one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.helpers import wait_until_blocked
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, Pending, check, check_empty, check_reset

GO = 0
SPACE = envs.CountEnv().observation_space
ONE_PROCESS = {
    "shmem": functools.partial(PLACES["shmem-fork"], num_processes=1),
    "dummy": PLACES["dummy"],
}


def count_fns(num: int, length: int = 1000) -> list[Callable[[], Any]]:
    return [functools.partial(envs.CountEnv, tag, length) for tag in range(num)]


def gate_fns(gates: Sequence[envs.Gate], length: int = 1000) -> list[Callable[[], Any]]:
    return [functools.partial(envs.GateEnv, tag, gate, length) for tag, gate in enumerate(gates)]


def ids_of(batch: Any) -> list[int]:
    return [info["env_id"] for info in batch[4]]


class Run:
    """A pool of gated envs, each in its own process, with its oracle, after the first reset."""

    def __init__(self, gates: Sequence[envs.Gate], **options: Any) -> None:
        self.pool = PLACES["shmem-fork"](gate_fns(gates), **options)
        # The oracle's envs are never told to block.
        self.hand = HandStepped(count_fns(len(gates)))
        self.pending = Pending(SPACE)
        check_reset(self.pool.reset(), self.hand.reset(), SPACE)

    def send(self, actions: Sequence[int], ids: Sequence[int]) -> None:
        self.expect(actions, ids)
        self.pool.send(actions, ids)

    def expect(self, actions: Sequence[int], ids: Sequence[int]) -> None:
        self.pending.add(self.hand.step(map(np.int64, actions), ids))

    def recv(self) -> list[int]:
        return self.pending.take(self.pool.recv())

    def wait(self, ids: Sequence[int]) -> None:
        """Take these rows, in this order."""
        rows = [self.pending.rows.pop(i) for i in ids]
        check(self.pool.step(None, id=ids), rows, SPACE)


# ------------------------------------------------------------------------ which rows, and when


@pytest.mark.parametrize("make", ONE_PROCESS.values(), ids=ONE_PROCESS)
def test_rows_come_in_the_order_in_which_envs_finished(make: Any) -> None:
    # One process steps its envs in the order asked, so that is the order of finishing.
    hand = HandStepped(count_fns(4))
    with make(count_fns(4), wait_num=4, timeout=20.0) as pool:
        assert pool.is_async
        check_reset(pool.reset(), hand.reset(), SPACE)
        for ids in ([2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3]):
            actions = [np.int64(5 + i) for i in ids]
            check(pool.step(actions, ids), hand.step(actions, ids), SPACE)


def test_the_env_that_finishes_first_comes_first(gates: list[envs.Gate]) -> None:
    run = Run(gates, wait_num=1)
    with run.pool:
        run.send([BLOCK] * 4, [0, 1, 2, 3])
        for i in (2, 0, 3, 1):
            gates[i].release()
            assert run.recv() == [i]


def test_the_dummy_pool_steps_as_many_as_are_asked_for() -> None:
    with DummyVectorEnv(count_fns(4), wait_num=2) as pool:
        pool.reset()
        pool.send([GO] * 4)
        assert pool.workers[0].env.steps == 0  # nothing is stepped before recv
        assert ids_of(pool.recv()) == [0, 1]
        assert [worker.env.steps for worker in pool.workers] == [1, 1, 0, 0]
        pool.send([GO, GO], [1, 0])
        assert ids_of(pool.recv()) == [2, 3]
        assert ids_of(pool.recv()) == [1, 0]


# --------------------------------------------------------------------------------- timeouts


def test_a_timeout_returns_what_is_there(gates: list[envs.Gate]) -> None:
    run = Run(gates)
    with run.pool as pool:
        assert (pool.timeout, pool.is_async, pool.wait_num) == (None, False, 4)
        pool.timeout = 0.05
        assert (pool.timeout, pool.is_async, pool.wait_num) == (0.05, True, 4)
        run.send([BLOCK, GO, GO, GO], [0, 1, 2, 3])
        with gates[0].held():
            rows: list[int] = []
            while len(rows) < 3:
                rows += run.recv()
            assert sorted(rows) == [1, 2, 3]
        assert run.recv() == [0]


def test_at_least_one_row_comes_however_long_it_takes(
    gates: list[envs.Gate], beside: Callable
) -> None:
    run = Run(gates, wait_num=2, timeout=0.01)

    def let_one_go() -> None:
        with gates[3].held():
            wait_until_blocked(threading.main_thread())  # for longer than the timeout

    with run.pool:
        run.send([BLOCK] * 4, [0, 1, 2, 3])
        beside(let_one_go)
        assert run.recv() == [3]
        for i in (0, 1, 2):
            gates[i].release()
        run.pending.take(run.pool.drain())


def test_a_strict_timeout_may_return_nothing(gates: list[envs.Gate]) -> None:
    run = Run(gates, wait_num=1, timeout=0.01, strict_timeout=True)
    with run.pool as pool:
        run.send([BLOCK, BLOCK], [0, 1])
        with gates[0].held(), gates[1].held():
            check_empty(pool.recv(), SPACE)
            check_empty(pool.step(None), SPACE)
            run.expect([BLOCK], [2])
            check_empty(pool.step([BLOCK], [2]), SPACE)
            assert sorted(pool.waiting_id) == [0, 1, 2]
            pool.timeout = None
        gates[2].release()
        rows: list[int] = []
        while len(rows) < 3:
            rows += run.recv()
        assert sorted(rows) == [0, 1, 2]


def test_waiting_for_named_ids_has_no_timeout(gates: list[envs.Gate], beside: Callable) -> None:
    run = Run(gates, wait_num=1, timeout=0.01)

    def let_them_go() -> None:
        with gates[1].held(), gates[0].held():
            wait_until_blocked(threading.main_thread())  # for longer than the timeout

    with run.pool:
        run.send([BLOCK, BLOCK], [0, 1])
        beside(let_them_go)
        run.wait([1, 0])


# ------------------------------------------------------------------------------- send_reset


def test_a_slow_reset_overlaps_with_stepping(gates: list[envs.Gate]) -> None:
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
            run.pending.take(pool.step(None, id=[i for i in run.pending.rows if i != 0]))
            assert list(pool.waiting_id) == [0]
        assert run.recv() == [0]
        run.send([GO], [0])
        assert run.recv() == [0]


def test_reset_waits_for_its_ids_alone(gates: list[envs.Gate]) -> None:
    run = Run(gates, wait_num=1, timeout=0.01)
    with run.pool as pool:
        run.send([BLOCK, GO], [0, 1])
        with gates[0].held():
            check_reset(pool.reset([3, 2]), run.hand.reset([3, 2]), SPACE)
            check_reset(pool.reset([2], seed=4), run.hand.reset([2], [6]), SPACE)
            run.wait([1])
            assert list(pool.waiting_id) == [0]
        run.wait([0])


# ------------------------------------------------------------------------- envs in flight


def test_an_env_in_flight_takes_nothing_else(gates: list[envs.Gate]) -> None:
    run = Run(gates, wait_num=1)
    with run.pool as pool:
        run.send([BLOCK], [1])
        with gates[1].held():
            asks: list[Callable[[], Any]] = [
                lambda: pool.step([GO], [1]),
                lambda: pool.send([GO], [1]),
                lambda: pool.send([GO, GO], [0, 1]),
                lambda: pool.reset([1]),
                pool.reset,
                lambda: pool.send_reset([1]),
                lambda: pool.seed(3),
                lambda: pool.get_env_attr("tag", [1]),
                lambda: pool.get_env_attr("tag"),
                lambda: pool.set_env_attr("tag", 5, [1]),
                lambda: pool.call("counts", id=[2, 1]),
                pool.render,
            ]
            for ask in asks:
                with pytest.raises(AlreadyPendingCallError, match="env 1"):
                    ask()
            # The others may be asked, and were not touched.
            assert pool.get_env_attr("tag", [0, 2]) == [0, 2]
            assert pool.call("counts", id=[0, 2, 3]) == [(0, 1)] * 3
        assert run.recv() == [1]
        run.send([GO] * 4, [0, 1, 2, 3])
        run.wait([3, 2, 1, 0])


# ------------------------------------------------------------------- rows kept after an error


@pytest.mark.parametrize("place", QUICK)
def test_a_reset_drops_the_rows_that_an_error_kept_back(place: str) -> None:
    with PLACES[place]([functools.partial(envs.FaultEnv, tag) for tag in range(4)]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
            pool.step(["", "value", "", ""])
        assert pool.waiting_id == [0, 2, 3]
        assert pool.reset([3, 1])[0].tolist() == [[3, 1, 0], [1, 1, 0]]
        assert sorted(pool.drain()[0].tolist()) == [[0, 0, 1], [2, 0, 1]]
        assert pool.step([""] * 4)[0].tolist() == [[0, 0, 2], [1, 1, 1], [2, 0, 2], [3, 1, 1]]


# ---------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("place", BACKENDS)
def test_an_interrupt_as_rows_are_returned_asks_for_a_reset(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PLACES[place](count_fns(3)) as pool:
        pool.reset()
        returned = pool.engine.states.returned

        def interrupted(*args: Any) -> None:
            returned(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool.engine.states, "returned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.step([GO] * 3)
        monkeypatch.undo()
        with pytest.raises(ResetNeeded, match="envs 0 to 2"):
            pool.step([GO] * 3)
        assert pool.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]


@pytest.mark.parametrize("place", QUICK)
def test_cancel_drops_what_is_in_flight(place: str) -> None:
    with PLACES[place](count_fns(3)) as pool:
        pool.reset()
        pool.cancel()  # nothing in flight
        for wait_num in (3, 1):
            pool.wait_num = wait_num
            pool.send([GO] * 2, [0, 2])
            pool.cancel([2])
            assert pool.waiting_id == [0]
            with pytest.raises(ResetNeeded, match="env 2"):
                pool.step([GO], [2])
            assert pool.recv()[0][:, 0].tolist() == [0]
            pool.send_reset([0, 1])
            pool.cancel()
            assert pool.waiting_id == []
            assert pool.reset()[0][:, [0, 2]].tolist() == [[0, 0], [1, 0], [2, 0]]
            pool.send([GO] * 3)
            assert sorted(pool.drain()[0][:, 2].tolist()) == [1, 1, 1]
