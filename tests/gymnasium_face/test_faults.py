"""After a timeout, an exception or a killed process, the next reset and step are right."""

import functools
import multiprocessing
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvTimeoutError, SubprocVectorEnv, WorkerDiedError
from envpool_py.gymnasium import VectorEnv
from tests.faults.helpers import handling, raising
from tests.gymnasium_face.envs import Trouble
from tests.support import envs as support
from tests.support.helpers import wait_until, wait_until_blocked

NUM_ENVS = 3
NOTHING = [0] * NUM_ENVS
PACKED = pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
ONE = {"reset_mask": np.array([False, True, False])}
LATE = multiprocessing.TimeoutError


@pytest.fixture
def make(gates):
    """Make vector envs that must work, and be closed, at the end of the test."""
    made = []

    def make(pool=None, **options):
        fns = [functools.partial(Trouble, tag, gates[tag]) for tag in range(NUM_ENVS)]
        over = VectorEnv.pool_options({})
        envs = VectorEnv(pool(fns, **over)) if pool else VectorEnv(fns, context="fork", **options)
        made.append(envs)
        if not options:
            with pytest.raises(KeyError, match="reset"):  # nothing stays of a first reset
                envs.reset(options={"bad": 1})
        envs.reset()
        return envs

    yield make
    for envs in made:
        assert steps(envs.reset(seed=1)) == [0] * NUM_ENVS
        for t in (1, 2, 3):
            batch = envs.step(NOTHING)
            assert steps(batch) == (batch[1] % 100).tolist() == [t] * NUM_ENVS
            assert batch[4]["step"].tolist() == [t] * NUM_ENVS
        envs.close()
        with pytest.raises(ClosedEnvironmentError):
            envs.step(NOTHING)


def steps(batch):
    """Return how far each env is in its episode; the rows are those of the right envs."""
    assert batch[0][:, 0].tolist() == list(range(NUM_ENVS))
    return batch[0][:, 2].tolist()


def kill(envs, i):
    process = envs.pool.engine.hosts.processes.hosts[i].process
    os.kill(process.pid, signal.SIGKILL)
    process.join()


# --------------------------------------------------------------------------------- timeouts


@PACKED
def test_a_step_that_is_late(make, gates, options):
    envs = make(**options)
    for timeout in (0, 0.05):
        envs.step_async([0, 3, 0])
        with gates[1].held(), pytest.raises(LATE, match="`step_wait` has timed out after"):
            envs.step_wait(timeout)
        with pytest.raises(AlreadyPendingCallError, match="`step_async` while waiting for a"):
            envs.step_async(NOTHING)
        for wrong in ({"seed": [1]}, {"options": {"reset_mask": np.zeros(NUM_ENVS, bool)}}):
            with pytest.raises(ValueError, match="length must match|at least one True"):
                envs.reset(**wrong)  # cancels nothing
        if timeout:
            assert steps(envs.reset()) == [0, 0, 0]
        else:
            assert steps(envs.step_wait(timeout=20)) == [1, 1, 1]
            assert steps(envs.step(NOTHING)) == [2, 2, 2]


def test_an_interrupted_env_of_this_process_returns_no_earlier_row():
    def step(_, action, row):
        if action:
            signal.raise_signal(signal.SIGUSR1)
        return row

    fns = [functools.partial(support.ChangedEnv, tag, step=step) for tag in range(NUM_ENVS)]
    envs = VectorEnv(DummyVectorEnv(fns, **VectorEnv.pool_options({})))
    envs.reset()
    with handling(signal.SIGUSR1, raising(KeyboardInterrupt())):
        envs.step_async([0, 1, 0])
        with pytest.raises(KeyboardInterrupt):
            envs.step_wait()
    with pytest.raises(ResetNeeded, match="env 1: its last request was cancelled"):
        envs.step_wait()
    assert steps(envs.reset(options=ONE)) == [1, 0, 1]
    assert steps(envs.step(NOTHING)) == [2, 1, 2]
    envs.close()


def test_a_reset_that_is_late(make, gates):
    envs = make()
    for again in (True, False):
        envs.reset_async(options={"wait": 2})
        with gates[2].held(), pytest.raises(LATE, match="`reset_wait` has timed out after"):
            envs.reset_wait(0.05)
        assert steps(envs.reset_wait() if again else envs.reset()) == [0, 0, 0]
        assert steps(envs.step(NOTHING)) == [1, 1, 1]


def test_a_wait_of_no_length_returns_what_is_there(make):
    envs = make()
    envs.step_async(NOTHING)
    chunks, channel = envs.pool.engine.arrivals.chunks, envs.pool.engine.hosts.processes.channel

    def all_there():
        channel.collect(chunks)
        return sum(map(len, chunks)) == 8 * NUM_ENVS

    assert wait_until(all_there)
    assert steps(envs.step_wait(timeout=0)) == [1, 1, 1]


def test_close_while_an_env_is_at_work(gates, monkeypatch):
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.2)
    fns = [functools.partial(Trouble, tag, gates[tag]) for tag in range(2)]
    envs = VectorEnv(fns, context="fork")
    envs.reset()
    envs.step_async([0, 3])
    with gates[1].held():
        with pytest.raises(LATE):
            envs.step_wait(0.05)
        pool = envs.pool
        del envs  # closes it, silently
        assert pool.is_closed


def test_no_row_in_time_of_a_pool_without_columns(gates):
    space = gym.spaces.Dict(x=gym.spaces.Box(0, 10**6, (3,), np.int64))

    def env_fn():
        env = Trouble(0, gates[0])
        return gym.wrappers.TransformObservation(env, lambda obs: {"x": obs}, space)

    envs = VectorEnv(SubprocVectorEnv([env_fn]))
    envs.reset()
    envs.step_async([3])
    with gates[0].held(), pytest.raises(LATE):
        envs.step_wait(timeout=0.01)
    assert envs.step_wait()[0]["x"].tolist() == [[0, 0, 1]]
    envs.close()


# ------------------------------------------------------------------ exceptions, ended processes


FAULTS = {
    1: (LookupError, "no such step 2(.|\n)*Traceback"),
    2: (WorkerDiedError, "exited with code 7"),
    3: (EnvTimeoutError, "0.3 seconds"),  # nobody comes to its gate
}


@PACKED
@pytest.mark.parametrize("action", FAULTS)
def test_one_env_fails(make, options, action):
    envs = make(**options, step_timeout=0.3 if action == 3 else None)
    alone = action == 1 or not options  # else the process of all envs ends
    error, text = FAULTS[action]
    for parts in (False, True):
        envs.reset()
        envs.step(NOTHING)
        if parts:
            envs.step_async([0, action, 0])
        with pytest.raises(error, match=text) as caught:
            envs.step_wait(timeout=10) if parts else envs.step([0, action, 0])
        assert sorted(caught.value.env_ids) == ([1] if alone else [0, 1, 2])
        with pytest.raises(ResetNeeded if action == 1 else WorkerDiedError, match="env"):
            envs.step(NOTHING)
    if alone:
        assert steps(envs.reset(options=ONE)) == [2, 0, 2]
        assert steps(envs.step(NOTHING)) == [3, 1, 3]


def test_one_env_fails_while_another_steps(make, gates):
    envs = make()
    envs.step_async([1, 3, 0])
    with gates[1].held(), pytest.raises(LookupError):
        envs.step_wait(0.05)
    assert steps(envs.reset()) == [0, 0, 0]


def test_envs_fail_at_once_in_a_reset_and_between_two_calls(make):
    envs = make()
    with pytest.raises(LookupError) as caught:
        envs.step([1, 0, 1])
    assert caught.value.env_ids == (0, 2)
    with pytest.raises(KeyError):
        envs.reset(options={"bad": 1})
    envs.reset()
    with pytest.raises(WorkerDiedError):
        envs.step([2, 0, 2])
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(LookupError) as caught:
        envs.step([1, 0, 0])
    assert "WorkerDiedError" not in str(caught.value)
    kill(envs, 1)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.reset()
    assert steps(envs.reset(options=ONE))[1] == 0


def test_restarts_by_the_pool(make):
    envs = make(on_error="restart", restart_backoff=0)
    envs.step(NOTHING)
    batch = envs.step([0, 2, 0])
    _, rewards, terminated, truncated, infos = batch
    assert steps(batch) == [2, 1, 2]
    assert (rewards % 100).tolist() == [2, 0, 2]
    assert not terminated.any()
    assert truncated.tolist() == infos["_env_error"].tolist() == [False, True, False]
    assert "exited with code 7" in infos["env_error"][1]
    assert steps(envs.step(NOTHING)) == [3, 0, 3]
    envs.call_async("die", 1)
    with pytest.raises(WorkerDiedError, match="exited with code 7"):
        envs.call_wait()
    assert envs.step(NOTHING)[3].tolist() == [False, True, False]
    assert steps(envs.step(NOTHING)) == [5, 0, 5]


# ------------------------------------------------------------------------------------ calls


def test_envs_are_in_their_calls_while_the_caller_is_at_work(make, gates):
    envs = make()
    for late in (True, False):
        envs.call_async("meet")
        with gates[0].held(), gates[1].held(), gates[2].held():  # each env is in its call
            if late:
                with pytest.raises(LATE, match="timed out after 0 second"):
                    envs.call_wait(timeout=0)
        if late:
            assert envs.call("tag") == (0, 1, 2)
    assert envs.call_wait() == (0, 1, 2)


@PACKED
def test_a_call_that_is_late_is_carried_out(make, tmp_path, options):
    envs = make(on_error="replay", restart_backoff=0, **options)
    held = tmp_path / "held"
    for k in (1, 2):
        assert steps(envs.step(NOTHING)) == [2 * k - 1 + 10 * (k - 1)] * 3
        held.touch()
        envs.call_async("jump", str(held))
        with pytest.raises(LATE, match="`call_wait` has timed out after"):
            envs.call_wait(0.05)
        held.unlink()
        assert envs.call("tag") == (0, 1, 2)
        assert steps(envs.step(NOTHING)) == [2 * k + 10 * k] * 3
    kill(envs, 0)  # the calls are in the past that is repeated
    batch = envs.step(NOTHING)
    assert steps(batch) == [25] * 3
    assert batch[4]["_env_replayed"].tolist() == [True, bool(options), bool(options)]


def test_envs_of_this_process_drop_a_call_that_is_late(make):
    envs = make(DummyVectorEnv)
    envs.call_async("nap")
    with pytest.raises(LATE):
        envs.call_wait(0.01)
    assert envs.get_attr("naps") == (1, 0, 0)
    assert not envs.pool.engine.arrivals.stale  # nothing is waited for
    envs.call_async("nap")
    assert envs.call_wait(20) == (None, None, None)


def test_a_process_that_ends_in_a_call(make):
    envs = make()
    envs.call_async("die", 1)
    with pytest.raises(WorkerDiedError, match="exited with code 7"):
        envs.call_wait()
    with pytest.raises(WorkerDiedError):
        envs.call_async("tag")
    assert steps(envs.reset(options=ONE)) == [0, 0, 0]


# ------------------------------------------------------------------------------ interrupts


@pytest.mark.parametrize("call", ["step", "call"])
def test_an_interrupted_wait(make, gates, beside, call):
    envs = make()

    def ring(*_):
        raise TimeoutError("of the caller's own")

    def interrupt():
        with gates[0].held(), gates[1].held(), gates[2].held():
            wait_until_blocked(threading.main_thread())
            os.kill(os.getpid(), signal.SIGUSR1)
            rung.wait()

    rung, previous = threading.Event(), signal.signal(signal.SIGUSR1, ring)
    try:
        envs.step_async([3, 3, 3]) if call == "step" else envs.call_async("meet")
        beside(interrupt)
        with pytest.raises(TimeoutError, match="of the caller's own"):
            getattr(envs, f"{call}_wait")(60)
    finally:
        rung.set()
        signal.signal(signal.SIGUSR1, previous)
    if call == "step":  # may be waited for again
        assert steps(envs.step_wait()) == [1, 1, 1]
    assert envs.call("tag") == (0, 1, 2)
