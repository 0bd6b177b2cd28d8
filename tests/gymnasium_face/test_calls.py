"""call_async begins a call in the worker processes; after a timeout the envs may be stepped on."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, WorkerDiedError
from envpool_py.gymnasium import VectorEnv
from tests.support import envs

NUM_ENVS = 3
NOTHING = [0] * NUM_ENVS


class CalledEnv(envs.CountEnv):
    """An env with methods that wait, change it and end it."""

    def __init__(self, tag: int, gate: envs.Gate) -> None:
        super().__init__(tag, length=100)
        self.gate, self.calls = gate, 0

    def meet(self) -> int:
        self.gate.wait()
        return self.tag

    def jump(self, held: str) -> None:
        """Wait until the file has gone; then be ten steps further."""
        while Path(held).exists():
            time.sleep(1e-3)
        self.t += 10

    def nap(self) -> None:
        self.calls += 1
        time.sleep(0.05)

    def die(self) -> None:
        if self.tag == 1:
            os._exit(7)


@pytest.fixture
def make(gates: list[envs.Gate]) -> Any:
    """Make a VectorEnv of three envs; closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make(pool: Any = None, **options: Any) -> VectorEnv:
            fns = [functools.partial(CalledEnv, tag, gates[tag]) for tag in range(NUM_ENVS)]
            given = VectorEnv.pool_options({})
            made = VectorEnv(pool(fns, **given) if pool else fns, **options)
            stack.callback(made.close)
            return made

        yield make


def kill(made: VectorEnv, i: int) -> None:
    process = made.pool.engine.hosts.processes.hosts[i].process
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def steps(made: VectorEnv) -> list[int]:
    """Step all envs; return how far each is."""
    obs = made.step(NOTHING)[0]
    assert obs[:, 0].tolist() == [0, 1, 2]
    return obs[:, 2].tolist()


def test_the_envs_are_at_work_while_the_caller_is(make: Any, gates: list[envs.Gate]) -> None:
    made = make(context="fork")
    made.reset()
    made.call_async("meet")
    with (
        gates[0].held(),
        gates[1].held(),
        gates[2].held(),  # each env is in its call
        pytest.raises(multiprocessing.TimeoutError, match="has timed out after 0 second"),
    ):
        made.call_wait(timeout=0)
    assert made.call("tag") == (0, 1, 2)
    made.call_async("meet")
    with gates[2].held(), gates[1].held(), gates[0].held():
        pass
    assert made.call_wait() == (0, 1, 2)
    assert steps(made) == [1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
def test_after_a_timeout_the_call_is_carried_out(make: Any, tmp_path: Path, options: Any) -> None:
    made = make(context="fork", **options)
    made.reset()
    held = tmp_path / "held"
    for k in (1, 2):
        held.touch()
        made.call_async("jump", str(held))
        with pytest.raises(multiprocessing.TimeoutError, match="`call_wait` has timed out after"):
            made.call_wait(0.05)
        held.unlink()
        assert made.call("tag") == (0, 1, 2)
        assert steps(made) == [11 * k] * 3


def test_a_late_call_is_in_the_past_that_is_replayed(make: Any, tmp_path: Path) -> None:
    made = make(context="fork", on_error="replay", restart_backoff=0)
    made.reset(seed=1)
    assert steps(made) == [1, 1, 1]
    held = tmp_path / "held"
    held.touch()
    made.call_async("jump", str(held))
    with pytest.raises(multiprocessing.TimeoutError):
        made.call_wait(0.05)
    held.unlink()
    assert steps(made) == [12, 12, 12]
    kill(made, 1)
    obs, *_, infos = made.step(NOTHING)
    assert obs[:, 2].tolist() == [13, 13, 13]
    assert infos["_env_replayed"].tolist() == [False, True, False]


def test_envs_of_this_process_drop_a_call_that_is_late(make: Any) -> None:
    made = make(DummyVectorEnv)
    made.call_async("nap")
    assert made.pool.engine.hosts.processes is None
    with pytest.raises(multiprocessing.TimeoutError):
        made.call_wait(0.01)
    assert made.get_attr("calls") == (1, 0, 0)
    made.call_async("nap")
    assert made.call_wait(20) == (None, None, None)


def test_a_process_that_ends_in_a_call(make: Any) -> None:
    made = make(context="fork")
    made.reset()
    made.call_async("die")
    with pytest.raises(WorkerDiedError, match="exited with code 7"):
        made.call_wait()
    with pytest.raises(WorkerDiedError):
        made.call_async("tag")
    made.reset(options={"reset_mask": np.array([False, True, False])})
    assert steps(made) == [1, 1, 1]


class InterruptError(Exception):
    pass


def test_an_interrupted_call_is_cancelled(make: Any, gates: list[envs.Gate], beside: Any) -> None:
    made = make(context="fork")
    made.reset()

    def ring(*_: Any) -> None:
        raise InterruptError

    def interrupt() -> None:
        with gates[0].held(), gates[1].held(), gates[2].held():
            os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, ring)
    try:
        made.call_async("meet")
        beside(interrupt)
        with pytest.raises(InterruptError):
            made.call_wait()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert made.call("tag") == (0, 1, 2)
    assert steps(made) == [1, 1, 1]
