"""After a timeout, an exception or a killed process, the next reset and step are right."""

import contextlib
import functools
import multiprocessing
import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvTimeoutError, SubprocVectorEnv, WorkerDiedError
from envpool_py.gymnasium import VectorEnv
from tests.faults.helpers import await_hang, expire, handling, raising, signalling
from tests.gymnasium_face.envs import NUM_ENVS, in_process
from tests.support import envs as support

NOTHING = [0] * NUM_ENVS
PACKED = pytest.mark.parametrize("options", [{}, {"num_processes": 1}], ids=["each", "packed"])
ONE = {"reset_mask": np.array([False, True, False])}
LATE = multiprocessing.TimeoutError


class Trouble(support.CountEnv):
    """Does what the action says: 1 raises, 2 ends the process, 3 waits, 4 signals."""

    def __init__(self, tag, held):
        super().__init__(tag, 10**6)
        self.held = held

    def wait(self):
        """Wait, for 20 ms at least, until the file has gone; then be ten steps further."""
        time.sleep(0.02)
        while self.held.exists():
            time.sleep(0.001)
        self.t += 10

    def reset(self, *, seed=None, options=None):
        if options:
            self.wait()
        return super().reset(seed=seed)

    def step(self, action):
        if action == 1:
            raise LookupError(f"no such step {self.t + 1}")
        if action == 2:
            os._exit(7)
        if action == 3:
            self.wait()
        if action == 4:
            signal.raise_signal(signal.SIGUSR1)
        return super().step(action)


@pytest.fixture
def held(tmp_path):
    """The file for which envs wait."""
    path = tmp_path / "held"
    path.touch()
    return path


@pytest.fixture
def env_fns(held):
    return [functools.partial(Trouble, tag, held) for tag in range(NUM_ENVS)]


@pytest.fixture
def make(env_fns, held):
    """Make a vector env that must work, and be closed, at the end of the test."""
    made = []

    def make(**options):
        made.append(VectorEnv(env_fns, context="fork", **options))
        made[-1].reset()
        return made[-1]

    yield make
    held.unlink(missing_ok=True)
    [envs] = made
    assert steps(envs.reset(seed=1)) == [0] * NUM_ENVS
    for t in (1, 2, 3):
        batch = envs.step(NOTHING)
        assert steps(batch) == (batch[1] % 100).tolist() == batch[4]["step"].tolist() == [t] * 3
    envs.close()


def steps(batch):
    """Return how far each env is in its episode; the rows are those of the right envs."""
    assert batch[0][:, 0].tolist() == list(range(NUM_ENVS))
    return batch[0][:, 2].tolist()


@PACKED
@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_step_or_reset_that_is_late(make, held, options, call):
    envs = make(**options)
    wait, first = (envs.step_wait, [1, 11, 1]) if call == "step" else (envs.reset_wait, [0, 0, 0])
    for timeout in (0, 0.05):
        held.touch()
        envs.step_async([0, 3, 0]) if call == "step" else envs.reset_async(options={"wait": True})
        with pytest.raises(LATE, match=f"`{call}_wait` has timed out after {timeout} second"):
            wait(timeout)
        with pytest.raises(AlreadyPendingCallError, match=f"`step_async` while .* to `{call}`"):
            envs.step_async(NOTHING)
        with pytest.raises(ValueError, match="length must match"):
            envs.reset(seed=[1])  # cancels nothing
        held.unlink()
        if timeout:
            assert steps(envs.reset()) == [0, 0, 0]
        else:
            assert steps(wait(20)) == first
            assert steps(envs.step(NOTHING)) == [t + 1 for t in first]


def test_no_row_in_time_of_a_pool_without_columns(held):
    space = gym.spaces.Dict(x=Trouble(0, held).observation_space)
    wrap = gym.wrappers.TransformObservation
    pool = SubprocVectorEnv([lambda: wrap(Trouble(0, held), lambda obs: {"x": obs}, space)])
    envs = VectorEnv(pool)
    envs.reset()
    envs.step_async([3])
    with pytest.raises(LATE):
        envs.step_wait(0.01)
    held.unlink()
    assert envs.step_wait()[0]["x"].tolist() == [[0, 0, 11]]
    del envs
    assert pool.is_closed


FAULTS = [
    (1, LookupError, "no such step 2(.|\n)*Traceback"),
    (2, WorkerDiedError, "exited with code 7"),
    (3, EnvTimeoutError, "60.0 seconds"),
]


@PACKED
@pytest.mark.parametrize(("action", "error", "text"), FAULTS)
def test_one_env_fails(make, options, action, error, text):
    envs = make(**options, step_timeout=60 if action == 3 else None)
    alone = action == 1 or not options  # else the process of all envs ends
    for parts in (False, True) if action < 3 else (True,):
        envs.reset()
        envs.step(NOTHING)
        if parts:
            envs.step_async([0, action, 0])
        if action == 3:
            await_hang(envs.pool, 1, (0, 2) if alone else ())
            expire(envs.pool)
        with pytest.raises(error, match=text) as caught:
            envs.step_wait(60) if parts else envs.step([0, action, 0])
        assert sorted(caught.value.env_ids) == ([1] if alone else [0, 1, 2])
        with pytest.raises(ResetNeeded if action == 1 else WorkerDiedError, match="env"):
            envs.step(NOTHING)
    if alone:
        assert steps(envs.reset(options=ONE)) == [2, 0, 2]
        assert steps(envs.step(NOTHING)) == [3, 1, 3]


def test_one_env_fails_while_another_steps(make, held):
    def wait():
        while True:  # until the error is there
            with contextlib.suppress(LATE):
                envs.step_wait(0.05)

    envs = make()
    envs.step_async([1, 3, 0])
    with pytest.raises(LookupError):
        wait()
    held.unlink()
    with pytest.raises(ResetNeeded, match="envs 0 to "):
        envs.step(NOTHING)


def test_restarts_by_the_pool(make):
    envs = make(on_error="restart", restart_backoff=0)
    envs.step(NOTHING)
    batch = envs.step([0, 2, 0])
    assert steps(batch) == [2, 1, 2]
    assert (batch[1] % 100).tolist() == [2, 0, 2]
    assert not batch[2].any()
    assert batch[3].tolist() == batch[4]["_env_error"].tolist() == [False, True, False]
    assert "exited with code 7" in batch[4]["env_error"][1]
    assert steps(envs.step(NOTHING)) == [3, 0, 3]
    assert envs.restarts.tolist() == [0, 1, 0]
    assert "1 restarts" in repr(envs)


@PACKED
def test_a_call_that_is_late_is_carried_out(make, held, options):
    envs = make(**options)
    envs.call_async("wait")
    with pytest.raises(LATE, match="`call_wait` has timed out after"):
        envs.call_wait(0.05)
    held.unlink()
    assert envs.call("tag") == (0, 1, 2)
    assert steps(envs.step(NOTHING)) == [11] * 3


@pytest.mark.parametrize(("call", "then"), [("step", "step_wait"), ("step", "reset"), ("call", "")])
def test_an_interrupted_wait(make, held, beside, call, then):
    envs = make()
    envs.step_async([3, 3, 3]) if call == "step" else envs.call_async("wait")
    with handling(signal.SIGUSR1, raising(TimeoutError("of the caller's own"))):
        beside(signalling())
        with pytest.raises(TimeoutError, match="of the caller's own"):
            getattr(envs, f"{call}_wait")(60)
    held.unlink()
    if then:  # the step may be waited for again, or cancelled
        assert steps(getattr(envs, then)()) == [11 * (then == "step_wait")] * 3
    assert envs.call("tag") == (0, 1, 2)


def test_envs_of_this_process(env_fns, held):
    envs = in_process(env_fns)
    envs.reset()
    held.unlink()
    envs.call_async("wait")
    with pytest.raises(LATE):
        envs.call_wait(0.01)
    assert envs.get_attr("t") == (10, 0, 0)  # those that had not begun the call drop it
    with handling(signal.SIGUSR1, raising(KeyboardInterrupt())):
        envs.step_async([0, 4, 0])
        with pytest.raises(KeyboardInterrupt):
            envs.step_wait()
    with pytest.raises(ResetNeeded, match="env 1: the last request was cancelled"):
        envs.step_wait()
    assert steps(envs.reset(options=ONE)) == [11, 0, 1]
    assert steps(envs.step(NOTHING)) == [12, 1, 2]
    envs.close()
