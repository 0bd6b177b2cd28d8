"""After a timeout, an exception or a killed process, the next reset and step are right."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    ResetNeeded,
)

from envpool_py import SubprocVectorEnv, WorkerDiedError
from envpool_py.errors import EnvTimeoutError
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import Trouble

NUM_ENVS = 3
NOTHING = [0] * NUM_ENVS


def make(**options: Any) -> VectorEnv:
    fns = [functools.partial(Trouble, tag) for tag in range(NUM_ENVS)]
    return VectorEnv(fns, context="fork", **options)


def steps(obs: np.ndarray) -> list[int]:
    """Return how far each env is in its episode; the rows are those of the right envs."""
    assert obs[:, 0].tolist() == list(range(NUM_ENVS))
    return obs[:, 2].tolist()


def assert_works(envs: VectorEnv) -> None:
    assert steps(envs.reset(seed=1)[0]) == [0] * NUM_ENVS
    for t in (1, 2, 3):
        obs, rewards, *_, infos = envs.step(NOTHING)
        assert steps(obs) == [t] * NUM_ENVS
        assert rewards.tolist() == [t] * NUM_ENVS
        assert infos == {}
    envs.close()
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="Trying to operate on `VectorEnv`, after"):
        envs.step(NOTHING)


# --------------------------------------------------------------------------------- timeouts


@pytest.mark.parametrize("timeout", [0, 0.05])
@pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
def test_a_step_that_is_late_may_be_waited_for_again(options: dict, timeout: float) -> None:
    envs = make(**options)
    envs.reset()
    envs.step_async([0, 3, 0])
    with pytest.raises(multiprocessing.TimeoutError, match="`step_wait` has timed out after"):
        envs.step_wait(timeout)
    with pytest.raises(AlreadyPendingCallError, match="`step_async` while waiting for a pend"):
        envs.step_async(NOTHING)
    obs, rewards, *_ = envs.step_wait(timeout=20)
    assert steps(obs) == [1, 1, 1]
    assert rewards.tolist() == [1, 1, 1]
    assert steps(envs.step(NOTHING)[0]) == [2, 2, 2]
    assert_works(envs)


def test_a_poll_returns_what_is_there() -> None:
    envs = make()
    envs.reset()
    envs.step_async(NOTHING)
    time.sleep(0.3)
    assert steps(envs.step_wait(timeout=0)[0]) == [1, 1, 1]
    assert_works(envs)


@pytest.mark.parametrize("late", ["step", "reset"])
def test_a_reset_after_a_timeout(late: str) -> None:
    envs = make()
    envs.reset()
    for _ in range(3):
        if late == "step":
            envs.step_async([0, 3, 0])
        else:
            envs.reset_async(options={"slow": 1})
        with pytest.raises(multiprocessing.TimeoutError):
            getattr(envs, f"{late}_wait")(0.05)
        assert steps(envs.reset()[0]) == [0, 0, 0]
        assert steps(envs.step(NOTHING)[0]) == [1, 1, 1]
    assert_works(envs)


def test_a_late_reset_may_be_waited_for_again() -> None:
    envs = make()
    envs.reset_async(options={"slow": 2})
    with pytest.raises(multiprocessing.TimeoutError, match="`reset_wait` has timed out after"):
        envs.reset_wait(0.05)
    obs, infos = envs.reset_wait()
    assert steps(obs) == [0, 0, 0]
    assert infos == {}
    assert_works(envs)


# ------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
@pytest.mark.parametrize("parts", [False, True])
def test_an_exception_in_a_step(parts: bool, options: dict) -> None:
    envs = make(**options)
    for _ in range(2):
        envs.reset()
        if parts:
            envs.step_async([0, 1, 0])
        wait = (lambda: envs.step_wait(timeout=10)) if parts else (lambda: envs.step([0, 1, 0]))
        with pytest.raises(LookupError, match="no such step 1") as caught:
            wait()
        assert caught.value.env_ids == (1,)
        assert "Traceback" in str(caught.value) or "File" in str(caught.value)
        with pytest.raises(ResetNeeded, match="env 1"):
            envs.step(NOTHING)
    mask = np.array([False, True, False])
    assert steps(envs.reset(options={"reset_mask": mask})[0]) == [1, 0, 1]
    assert steps(envs.step(NOTHING)[0]) == [2, 1, 2]
    assert_works(envs)


def test_two_exceptions_at_once_and_one_in_a_reset() -> None:
    envs = make()
    envs.reset()
    with pytest.raises(LookupError) as caught:
        envs.step([1, 0, 1])
    assert caught.value.env_ids == (0, 2)
    with pytest.raises(KeyError):
        envs.reset(options={"bad": 1})
    with pytest.raises(AttributeError):
        envs.call("nothing_of_this_name")
    assert_works(envs)


# --------------------------------------------------------------------------- ended processes


@pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
def test_a_process_that_ends_in_a_step(options: dict) -> None:
    envs = make(**options)
    for _ in range(2):
        envs.reset()
        with pytest.raises(WorkerDiedError, match="exited with code 7"):
            envs.step([0, 2, 0])
        with pytest.raises(WorkerDiedError):
            envs.step(NOTHING)
    assert_works(envs)


def test_a_process_that_is_killed_between_two_calls() -> None:
    envs = make()
    envs.reset()
    os.kill(envs.pool.engine.hosts.processes.hosts[1].process.pid, signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.reset()
    mask = np.array([False, True, False])
    assert steps(envs.reset(options={"reset_mask": mask})[0])[1] == 0
    assert_works(envs)


def test_restarts_by_the_pool() -> None:
    envs = make(on_error="restart", restart_backoff=0)
    envs.reset()
    envs.step(NOTHING)
    obs, rewards, terminated, truncated, infos = envs.step([0, 2, 0])
    assert steps(obs) == [2, 1, 2]
    assert rewards.tolist() == [2, 0, 2]
    assert not terminated.any()
    assert truncated.tolist() == [False, True, False]
    assert "exited with code 7" in infos["env_error"][1]
    assert infos["_env_error"].tolist() == [False, True, False]
    assert steps(envs.step(NOTHING)[0]) == [3, 0, 3]
    assert_works(envs)


def test_an_env_that_hangs() -> None:
    envs = make(step_timeout=0.2)
    envs.reset()
    with pytest.raises(EnvTimeoutError):
        envs.step([0, 3, 0])
    assert_works(envs)


# ------------------------------------------------------------------------------ interrupts


class InterruptError(Exception):
    pass


def test_an_interrupted_wait_may_be_repeated() -> None:
    envs = make()
    envs.reset()

    def ring(*_: Any) -> None:
        raise InterruptError

    previous = signal.signal(signal.SIGUSR1, ring)
    try:
        envs.step_async([0, 3, 0])
        timer = multiprocessing.get_context("fork").Process(target=_kill_later, args=(os.getpid(),))
        timer.start()
        with pytest.raises(InterruptError):
            envs.step_wait()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert steps(envs.step_wait()[0]) == [1, 1, 1]
    assert_works(envs)


def _kill_later(pid: int) -> None:
    time.sleep(0.1)
    os.kill(pid, signal.SIGUSR1)


def test_an_envs_last_reference_closes_it_silently() -> None:
    envs = make()
    pool = envs.pool
    del envs
    assert pool.is_closed


def test_no_row_in_time_of_a_pool_without_columns() -> None:
    space = gym.spaces.Dict(x=gym.spaces.Box(0, 10**6, (3,), np.int64))

    def slow(tag: int) -> gym.Env:
        return gym.wrappers.TransformObservation(Trouble(tag), lambda obs: {"x": obs}, space)

    envs = VectorEnv(SubprocVectorEnv([functools.partial(slow, tag) for tag in range(2)]))
    envs.reset()
    envs.step_async([3, 3])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    assert envs.step_wait()[0]["x"].tolist() == [[0, 0, 1], [1, 0, 1]]
    envs.close()


def test_an_error_after_a_restart_shows_nothing_of_the_death() -> None:
    envs = make()
    envs.reset()
    with pytest.raises(WorkerDiedError):
        envs.step([2, 0, 2])
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(LookupError) as caught:
        envs.step([1, 0, 0])
    assert "WorkerDiedError" not in str(caught.value)
    envs.close()
