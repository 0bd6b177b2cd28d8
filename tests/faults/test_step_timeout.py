"""`step_timeout`: the error names an env that hangs and shows its stack; the others go on."""

import functools
import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import BaseVectorEnv, DummyVectorEnv, EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.watchdog import NUMBERS, Heartbeat, Watchdog
from envpool_py.worker.channel import is_readable
from tests.backends.test_worker_contract import ThreadWorker
from tests.faults import helpers
from tests.faults.helpers import BROKEN, FNS, NEW, goes_on, reset_pool
from tests.support import envs
from tests.support.places import slow

LIMIT = 0.5
"""Seconds; long enough for an env that does not hang, on a busy machine too."""


def look_soon(pool, limit=LIMIT):
    """Have a pool, made with a long step_timeout, look for what takes longer than the limit."""
    dog = pool.engine.hosts.processes.watchdog
    dog.limit, dog._next_look = limit, 0.0


# How an env hangs, and what its stack has in it.
HANGS = {
    "hang": ("end", "in _fault"),
    "gil": ("end", "in do_gil"),
    "stop": ("end", "in do_stop"),
    "frozen": ("begin", "in receive"),  # its process, before the request comes
}


@pytest.mark.parametrize(
    ("place", "where", "name"),
    [
        ("shmem-fork", "call", "hang"),
        *slow(*(("shmem-fork", "step", name) for name in HANGS), ("shmem-fork", "reset", "hang")),
        *slow(*((place, "step", "hang") for place in NEW)),
    ],
)
def test_an_env_that_hangs_is_named_with_its_stack(place, where, name):
    did, stack = HANGS[name]
    # A new interpreter has its time for the first request, however busy the machine.
    with reset_pool(place, BROKEN, step_timeout=60.0) as pool:
        look_soon(pool)
        mates = helpers.mates_of(pool, 1)
        pid = pool.call("pid", id=[1])[0]
        if name == "frozen":
            os.kill(pid, signal.SIGSTOP)
        text = f"env 1: did not {did} its request within step_timeout={LIMIT} seconds"
        with pytest.raises(EnvTimeoutError, match=text) as got:
            helpers.WHERE[where](pool, name)
        error = got.value
        assert error.env_id == 1
        assert {*error.env_ids} <= {*mates}
        assert isinstance(error, EnvError)
        assert "most recent call first" in str(error)
        assert stack in str(error)
        assert not helpers.running(pid)
        look_soon(pool, 60.0)
        others = [i for i in range(3) if i not in mates]
        if where == "step":  # the rows of the others are kept
            assert error.request == "step"
            assert {*others} <= {info["env_id"] for info in pool.drain()[4]} <= {0, 2}
        for again in (lambda: pool.step([""], [1]), lambda: pool.reset([1])):
            with pytest.raises(WorkerDiedError, match=f"env 1: .* did not {did} its request"):
                again()
        goes_on(pool, others)
        pool.restart([1])
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
def test_a_request_that_was_cancelled_may_still_be_the_one_that_hangs(beside):
    handler = helpers.raising(InterruptedError("mine"))
    with reset_pool("shmem-fork", BROKEN, step_timeout=60.0) as pool:
        with helpers.handling(signal.SIGUSR1, handler):
            beside(helpers.signalling())
            with pytest.raises(InterruptedError, match="mine"):
                pool.step(["", "hang", ""])
        with pytest.raises(ResetNeeded):
            pool.step([""], [1])
        look_soon(pool)
        with pytest.raises(EnvTimeoutError, match="env 1: did not end"):
            pool.reset([1])
        goes_on(pool, [0, 2])


# ------------------------------------------------------------------- several envs in a process


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 2])
def test_the_env_that_hangs_comes_before_those_that_die_with_it(stuck, gates):
    """The actions go through the shared memory: the rows of a process come all at once."""
    fns = [functools.partial(envs.GateEnv, tag, gates[tag], 100) for tag in range(3)]
    with reset_pool("shmem-fork", fns, num_processes=1, step_timeout=LIMIT) as pool:
        pool.step([0, 0, 0])
        text = f"env {stuck}: did not end(.|\n)*in wait"
        with pytest.raises(EnvTimeoutError, match=text) as got:
            pool.step([envs.BLOCK if i == stuck else 0 for i in range(3)])
        assert got.value.env_id == stuck
        assert set(got.value.env_ids) == {0, 1, 2}
        pool.restart()
        assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert pool.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "actions", "rows", "late"),
    [(3, ["hang", "", "gil"], [1], {0, 2}), (1, ["", "gil", ""], [0], {1})],
)
def test_rows_that_are_there_are_kept(num_processes, actions, rows, late):
    options = {"step_timeout": LIMIT, "num_processes": num_processes, "wait_num": 1}
    with reset_pool("shmem-fork", BROKEN, **options) as pool:
        pool.send(actions)
        seen, errors = [], {}
        while pool.waiting_id:
            try:
                seen += [info["env_id"] for info in pool.recv()[4]]
            except EnvError as error:
                errors.update(dict.fromkeys(error.env_ids, error))
        assert seen == rows
        assert all(isinstance(errors[i], EnvTimeoutError) for i in late)
        for i in (0, 2) if num_processes == 1 else ():
            # The row of env 0 was returned, but env 0 has died with its process.
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*env 1 did not end its request"):
                pool.reset([i])
        pool.restart()
        pool.wait_num = 3
        goes_on(pool, [0, 1, 2])


def test_the_time_until_an_env_has_its_turn_does_not_count(gates):
    """Four envs of one process: the heartbeat names each in its turn, with when that began."""
    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(4)]
    with reset_pool("shmem-fork", fns, step_timeout=60.0, num_processes=1) as pool:
        (heartbeat,) = pool.engine.block.heartbeats
        released = time.monotonic()
        pool.send([envs.BLOCK] * 4)
        for i, gate in enumerate(gates):
            with gate.held():
                assert heartbeat[0] == i + 1
                assert released < heartbeat.view(np.float64)[1] < time.monotonic()
                released = time.monotonic()
        assert pool.drain()[0][:, 2].tolist() == [1, 1, 1, 1]


def test_when_a_process_is_overdue(monkeypatch):
    """By a clock and heartbeats of the test's own; every look comes 1.1 limits after the last."""
    now = 100.0
    monkeypatch.setattr("envpool_py.watchdog.time", SimpleNamespace(monotonic=lambda: now))
    dog = Watchdog(1.0)
    heartbeats = np.zeros((2, NUMBERS), np.int64)
    dog.attach(heartbeats)
    beats = [Heartbeat(row) for row in heartbeats]
    sent = [1, 1]

    def look():
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


def test_a_process_that_waits_for_the_parent_is_not_stuck():
    large = "size:5000000"  # more than a stream between two processes can hold
    with reset_pool("shmem-fork-packed", BROKEN, step_timeout=60.0) as pool:
        pool.send([large] * 3)
        assert all(is_readable(pool.engine.hosts.of(i).stream.fd, 60) for i in (0, 2))
        look_soon(pool, 60.0)  # the processes still write what nobody has read
        assert sorted(info["env_id"] for info in pool.drain()[4]) == [0, 1, 2]
        for _ in range(3):
            goes_on(pool, [0, 1, 2])


def test_who_does_not_take_it():
    with pytest.raises(TypeError, match="DummyVectorEnv does not take step_timeout; an env that"):
        DummyVectorEnv(FNS, step_timeout=1.0)
    with pytest.raises(TypeError, match="ThreadWorker does not take step_timeout"):
        BaseVectorEnv(FNS, ThreadWorker, step_timeout=1.0)
