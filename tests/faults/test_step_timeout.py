"""`step_timeout`: the error names an env that hangs and shows its stack; the others go on."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvError,
    EnvTimeoutError,
    ShmemVectorEnv,
    WorkerDiedError,
    make,
    watchdog,
)
from envpool_py.worker import DummyEnvWorker
from tests.faults.helpers import (
    FNS,
    GOOD,
    NEW,
    goes_on,
    handling,
    raising,
    reset_pool,
    signalling,
    slow,
)
from tests.support import envs
from tests.support.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 0.6
"""Seconds; long enough for an env that does not hang, on a busy machine too."""


class StuckEnv(envs.FaultEnv):
    """Hangs in more ways than a FaultEnv."""

    def _fault(self, name: str) -> None:
        if name == "gil":
            while True:  # a signal ends the sleep, and not the loop
                ctypes.PyDLL(None).sleep(60)
        if name == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if name in ("loop", "stop"):  # another thread may show the stack, while this one goes on
            while True:
                pass
        super()._fault(name)


STUCK: list[Callable[[], Any]] = [functools.partial(StuckEnv, tag) for tag in range(3)]


@pytest.mark.parametrize("hang", ["hang", *slow("gil", "loop", "stop")])
def test_an_env_that_hangs_is_named_with_its_stack(hang: str) -> None:
    with reset_pool("shmem-fork", STUCK, step_timeout=LIMIT) as pool:
        pid = pool.call("pid", id=[1])[0]
        with pytest.raises(EnvTimeoutError, match=r"env 1: did not end its request within") as got:
            pool.step(["", hang, ""])
        error = got.value
        assert (error.env_ids, error.env_id, error.request) == ((1,), 1, "step")
        assert isinstance(error, EnvError)
        assert f"step_timeout={LIMIT} seconds" in str(error)
        assert "most recent call first" in str(error)
        assert "in _fault" in str(error)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        # The rows of the others are kept.
        assert sorted(info["env_id"] for info in pool.drain()[4]) == [0, 2]
        for again in (lambda: pool.step([""], [1]), lambda: pool.reset([1])):
            with pytest.raises(WorkerDiedError, match="env 1: .* did not end its request within"):
                again()
        goes_on(pool, [0, 2])
        pool.restart([1])
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reset", "call"])
def test_any_request_has_the_limit(kind: str) -> None:
    asks: dict[str, Callable[[BaseVectorEnv], Any]] = {
        "reset": lambda pool: pool.reset(options=[None, {"fault": "hang"}, None]),
        "call": lambda pool: pool.call("fault", "hang", id=[1]),
    }
    with reset_pool("shmem-fork-packed", STUCK, step_timeout=LIMIT) as pool:
        with pytest.raises(EnvError, match="env 1: did not end") as got:
            asks[kind](pool)
        assert isinstance(got.value, EnvTimeoutError)
        pool.restart([1])
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("place", [*NEW, "subproc-fork"])
def test_under_every_start_method(place: str) -> None:
    with PLACES[place](STUCK, step_timeout=60.0) as pool:
        # A new interpreter has its time for the first request, however busy the machine.
        pool.reset()
        watchdog = pool.engine.hosts.processes.watchdog
        watchdog.limit, watchdog._next_look = LIMIT, 0.0
        with pytest.raises(EnvTimeoutError, match="env 0: did not end(.|\n)*in _fault"):
            pool.step(["hang", "", ""])
        watchdog.limit = 60.0
        pool.cancel()
        pool.restart()
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
def test_a_process_that_does_not_begin() -> None:
    with reset_pool("shmem-fork", STUCK, step_timeout=LIMIT) as pool:
        os.kill(pool.call("pid", id=[2])[0], signal.SIGSTOP)
        with pytest.raises(EnvTimeoutError, match=r"env 2: did not begin its request within"):
            pool.step(GOOD)
        goes_on(pool, [0, 1])


@pytest.mark.slow
def test_several_hang_at_once() -> None:
    with reset_pool("shmem-fork", STUCK, step_timeout=LIMIT) as pool:
        pool.send(["hang", "", "gil"])
        late: set[int] = set()
        rows: list[int] = []
        while pool.waiting_id:
            try:
                rows += [info["env_id"] for info in pool.recv()[4]]
            except EnvTimeoutError as error:
                late.update(error.env_ids)
        assert (late, rows) == ({0, 2}, [1])


@pytest.mark.slow
def test_a_request_that_was_cancelled_may_still_be_the_one_that_hangs(beside: Callable) -> None:
    error = InterruptedError("mine")
    with reset_pool("shmem-fork", STUCK, step_timeout=2.0) as pool:
        with handling(signal.SIGUSR1, raising(error)):
            beside(signalling())
            with pytest.raises(InterruptedError, match="mine"):
                pool.step(["", "hang", ""])
        with pytest.raises(ResetNeeded):
            pool.step([""], [1])
        with pytest.raises(EnvTimeoutError, match="env 1: did not end"):
            pool.reset([1])
        goes_on(pool, [0, 2])


# ------------------------------------------------------------------- several envs in a process


class SleepyEnv(envs.CountEnv):
    """Its action goes through the shared memory: the rows of a process come all at once."""

    def step(self, action: Any) -> tuple[Any, ...]:
        if action == envs.BLOCK:
            self.sleep_here()
        return super().step(action)

    def sleep_here(self) -> None:
        time.sleep(1000)


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_the_env_that_hangs_comes_before_those_that_die_with_it(stuck: int) -> None:
    fns = [functools.partial(SleepyEnv, tag, 100) for tag in range(3)]
    with ShmemVectorEnv(fns, num_processes=1, step_timeout=LIMIT) as pool:
        pool.reset()
        pool.step([0, 0, 0])
        text = f"env {stuck}: did not end(.|\n)*in sleep_here"
        with pytest.raises(EnvTimeoutError, match=text) as got:
            pool.step([envs.BLOCK if i == stuck else 0 for i in range(3)])
        assert got.value.env_id == stuck
        assert set(got.value.env_ids) == {0, 1, 2}
        pool.restart()
        pool.reset()
        assert len(pool.step([0, 0, 0])[1]) == 3


@pytest.mark.slow
def test_rows_of_the_same_process_are_kept_and_its_envs_have_died() -> None:
    with reset_pool("shmem-fork", STUCK, step_timeout=LIMIT, num_processes=1, wait_num=1) as pool:
        pool.send(["", "gil", ""])
        seen, errors = [], {}
        while pool.waiting_id:
            try:
                seen += [info["env_id"] for info in pool.recv()[4]]
            except EnvError as error:
                errors.update(dict.fromkeys(error.env_ids, error))
        assert seen == [0]
        assert isinstance(errors[1], EnvTimeoutError)
        # The row of env 0 was returned, but env 0 has died with its process.
        for i in (0, 2):
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*env 1 did not end its request"):
                pool.reset([i])
        pool.restart()
        pool.wait_num = 3
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
def test_the_time_until_an_env_has_its_turn_does_not_count(gates: list[envs.Gate]) -> None:
    """Four envs of one process, each of which takes a third of the limit, take more than it."""
    limit = 2.4
    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(4)]
    with reset_pool("shmem-fork", fns, step_timeout=limit, num_processes=1, wait_num=1) as pool:
        pool.send([envs.BLOCK] * 4)
        begun = time.monotonic()
        rows: list[int] = []
        pool.timeout, pool.strict_timeout = 0.05, True
        for gate in gates:
            with gate.held():  # the pool looks at it all the time, and finds nothing wrong
                end = time.monotonic() + limit / 3
                while time.monotonic() < end:
                    rows += [info["env_id"] for info in pool.recv()[4]]
        assert time.monotonic() - begun > limit
        pool.timeout, pool.strict_timeout = None, False
        while pool.waiting_id:
            rows += [info["env_id"] for info in pool.recv()[4]]
        assert sorted(rows) == [0, 1, 2, 3]


def test_when_a_process_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock and heartbeats of the test's own; every look comes 1.1 limits after the last."""
    now = 100.0
    monkeypatch.setattr("envpool_py.watchdog.time", SimpleNamespace(monotonic=lambda: now))
    dog = watchdog.Watchdog(1.0)
    heartbeats = np.zeros((2, watchdog.NUMBERS), np.int64)
    dog.attach(heartbeats)
    beats = [watchdog.Heartbeat(row) for row in heartbeats]
    sent = [1, 1]

    def look() -> list[tuple[int, int | None]]:
        nonlocal now
        now += 1.1
        return [tuple(overdue) for overdue in dog.look(lambda: sent)]

    for beat in beats:
        beat.count(1)
    assert look() == []  # both are idle, with nothing to read
    beats[0].begin(4)
    now += 0.5
    assert dog.look(lambda: sent) == []
    assert look() == [(0, 4)]
    dog.forget(0)  # its process is started again
    assert look() == []
    beats[0].begin(4, timed=False)
    assert look() == look() == []
    sent[1] = 3  # two frames that process 1 does not read at first
    assert look() == []
    assert look() == [(1, None)]
    beats[1].count(2)
    assert look() == []
    assert look() == [(1, None)]
    sent[1] = -1  # it has ended
    assert look() == look() == []
    dog.close()


# --------------------------------------------------------------------------------- no fault


class TalkativeEnv(envs.CountEnv):
    """Its infos are more than a stream between two processes can hold."""

    def step(self, action: Any) -> tuple:
        *row, _ = super().step(action)
        return *row, {"text": "x" * (1 << 22)}


@pytest.mark.slow
@pytest.mark.parametrize(("place", "wait_num"), [("shmem-fork-packed", None), ("shmem-fork", 1)])
def test_a_process_that_waits_for_the_parent_is_not_stuck(place: str, wait_num: int | None) -> None:
    limit = 1.0
    fns = [functools.partial(TalkativeEnv, tag) for tag in range(3)]
    with reset_pool(place, fns, step_timeout=limit, wait_num=wait_num) as pool:
        pool.send([0, 0, 0])
        time.sleep(1.5 * limit)  # nobody reads what the processes write meanwhile
        assert sorted(info["env_id"] for info in pool.drain()[4]) == [0, 1, 2]


def test_without_a_fault_nothing_is_different() -> None:
    with reset_pool("shmem-fork-packed", step_timeout=60.0) as pool:
        for _ in range(3):
            goes_on(pool, [0, 1, 2])


# ------------------------------------------------------------------------------- arguments


def test_the_dummy_pool_and_custom_workers_refuse_it() -> None:
    with pytest.raises(TypeError, match="DummyVectorEnv does not take step_timeout; an env that"):
        DummyVectorEnv(FNS, step_timeout=1.0)

    class OwnWorker(DummyEnvWorker):
        def recv(self) -> Any:
            return super().recv()

    with pytest.raises(TypeError, match="OwnWorker does not take step_timeout"):
        BaseVectorEnv(FNS, OwnWorker, step_timeout=1.0)


@pytest.mark.parametrize(
    ("wrong", "error"), [(0, ValueError), (-1.0, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_wrong_limits(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="step_timeout must be"):
        ShmemVectorEnv(FNS, step_timeout=wrong)


def test_make_takes_processes_if_there_is_a_limit() -> None:
    with make(functools.partial(envs.CountEnv, 3), 2, step_timeout=5.0) as pool:
        assert isinstance(pool, ShmemVectorEnv)
