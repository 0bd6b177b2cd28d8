"""Measurements are made of real pools, in processes that always end."""

import itertools
import os
import sys
import threading
import time
from functools import partial
from subprocess import TimeoutExpired

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.bench import measure
from envpool_py.bench.measure import Caller, Job, Measurement, MeasurementError, Results
from envpool_py.bench.settings import Running, Setting
from tests.cli import parts
from tests.support.envs import CountEnv
from tests.support.helpers import wait_until

LOOP = Setting("loop", 2)
IDLE = Caller()

HOSTILE = """
import os, signal, sys, time
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Hostile(CartPoleEnv):
    def __init__(self, how):
        super().__init__()
        if os.fork() == 0:
            time.sleep(100)
        print("what an env prints is no answer")
        if how == "raises":
            raise ValueError("boom\\nand more")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs":
            open("hangs", "w").write(str(os.getpid()))
            time.sleep(100)

for how in ("raises", "dies", "hangs"):
    gym.register(f"{how}-v0", entry_point=Hostile, kwargs={"how": how})
"""


def measurement(rate=1000.0, caller=IDLE):
    return Measurement(int(rate), 100, 1.0, 0.002, 0.004, 0.25, 50_000_000, caller=caller)


def job_of(setting, env_id, *callers, seconds=0.01):
    return Job(setting, partial(gym.make, env_id), callers or (IDLE,), seconds)


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A folder with a module of envs that fork and fail, which is the working directory."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


class Large(CountEnv):
    """Two of these take 160 MB in whichever process."""

    def __init__(self):
        super().__init__()
        self.ballast = np.ones(10_000_000)


SETTINGS = LOOP, Setting("gymnasium-async", 2), Setting("shmem", 2, 1, caller_steps=True)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_caller_that_computes(setting):
    callers = IDLE, Caller(0.002, 0.001), Caller(policy=parts.Parity)
    found = measure.carry_out(Job(setting, Large, callers, 0.05))
    assert tuple(each.caller for each in found) == callers
    for each in found:
        assert each.steps > 0
        assert each.seconds >= 0.05
        assert 0 < each.step_p50 <= each.step_p99 <= each.seconds
        assert each.rate == each.steps / each.seconds
        assert each.startup_seconds > 0
        if sys.platform == "linux":
            assert each.memory_bytes is not None
            # That of envs; of what processes share, the parts change with other programs.
            assert 100e6 < each.memory_bytes < 1e9
    assert found[1].seconds >= 0.004 * found[1].batches  # two rows each
    before = time.thread_time()
    measure.compute(0.01)
    assert time.thread_time() - before >= 0.01


@pytest.mark.parametrize(("is_partial", "rows"), [(False, {4}), (True, {4, 3, 1})])
def test_the_caller_knows_the_rows_of_the_last_batch(is_partial, rows, monkeypatch):
    steps, seen, clock = iter([3, 1]), [], itertools.count()
    monkeypatch.setattr(measure.time, "perf_counter", clock.__next__)
    running = Running(lambda: next(steps, 1), lambda: None, is_partial)
    measure.step_batches(running, seen.append, 4, 9)
    assert set(seen) == rows


@pytest.mark.parametrize(
    ("env", "policy", "message"),
    [
        ("hostile:raises-v0", None, r"ValueError: boom and more \(hostile.py:13\)"),
        ("hostile:dies-v0", None, "was killed by SIGKILL"),
        (parts.COUNT, parts.refuses, r"LookupError: got 2 rows, of envs \[0, 1\] \(parts.py:75\)"),
        (parts.COUNT, lambda *_: sys.exit(3), "exited with code 3"),
        (threading.Lock(), None, "the env can't be sent to a process: TypeError: .*"),
    ],
)
@pytest.mark.usefixtures("hostile")
def test_failures_are_one_line(env, policy, message):
    with pytest.raises(MeasurementError, match=f"^{message}$"):
        measure.carry_out(job_of(LOOP, env, Caller(policy=policy)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MeasurementError])
def test_a_measurement_that_hangs_is_ended_with_all_its_processes(hostile, error, monkeypatch):
    mark = hostile / "hangs"
    wait = measure.subprocess.Popen.wait

    def hang(process, timeout=None):
        if timeout is None:
            return wait(process)
        assert timeout > 100
        assert wait_until(lambda: mark.exists() and bool(mark.read_text()), 100)
        raise KeyboardInterrupt if error is KeyboardInterrupt else TimeoutExpired("python", timeout)

    monkeypatch.setattr(measure.subprocess.Popen, "wait", hang)
    with pytest.raises(error, match="^took too long$" if error is MeasurementError else None):
        measure.carry_out(job_of(LOOP, "hostile:hangs-v0"))
    with pytest.raises(ProcessLookupError):
        wait_until(lambda: os.killpg(int(mark.read_text()), 0))


def test_results():
    results, other, busy = Results(), Setting("dummy", 2), Caller(0.5)

    def fails(_):
        raise MeasurementError("boom")

    for setting, rates in ((LOOP, (100, 10)), (LOOP, (300, 30)), (other, (150, 25))):
        found = [measurement(rates[0]), measurement(rates[1], busy)]
        results.add(job_of(setting, "A-v0", IDLE, busy), lambda _, found=found: found)
    assert results.rate(LOOP, IDLE) == 200
    assert results.rate(LOOP, busy) == 20
    assert results.ranked(IDLE) == [LOOP, other]
    assert results.ranked(busy) == [other, LOOP]
    broken = job_of(LOOP._replace(num_envs=3), "A-v0")
    results.add(broken, fails)
    results.add(broken, lambda _: [measurement()])  # it is not tried again
    assert results.errors == {broken.setting: "boom"}
    assert broken.setting not in results.measured
