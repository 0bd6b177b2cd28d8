"""Measurements are made of real pools, in processes that always end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envpool_py.bench import measure
from envpool_py.bench.measure import Job, Measurement, MeasurementError, Results, Timing
from envpool_py.bench.settings import Setting
from tests.support.helpers import wait_until

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"
LOOP = Setting("loop", 2)

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
            raise ValueError("boom")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs":
            open("hangs", "w").write(str(os.getpid()))
            time.sleep(100)

for how in ("raises", "dies", "hangs"):
    gym.register(f"{how}-v0", entry_point=Hostile, kwargs={"how": how})
"""


def measurement(rate: float = 1000.0, think: float = 0.0, **others: Any) -> Measurement:
    timing = Timing(think, int(rate), 100, 1.0, 0.002, 0.004)
    return Measurement(timing, **{"startup_seconds": 0.25, "memory_bytes": 50_000_000, **others})


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of envs that fork and fail, which is the working directory."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.mark.parametrize(
    "setting",
    [LOOP, Setting("gymnasium-async", 2), Setting("shmem", 2, 1, caller_steps=True)],
    ids=lambda setting: setting.text,
)
def test_a_caller_that_computes(setting: Setting) -> None:
    idle, busy = measure.carry_out(Job(setting, COUNT, (0.0, 0.002), 0.05))
    assert (idle.timing.think, busy.timing.think) == (0.0, 0.002)
    for each in (idle, busy):
        timing = each.timing
        assert timing.steps > 0
        assert timing.seconds >= 0.05
        assert 0 < timing.step_p50 <= timing.step_p99 <= timing.seconds
        assert each.rate == timing.steps / timing.seconds
        assert each.startup_seconds > 0
        if sys.platform == "linux":
            assert each.memory_bytes is not None
            assert (each.memory_bytes > 4_000_000) == (setting.pool != "loop"), each
    assert busy.timing.seconds >= 0.002 * busy.timing.batches


def test_computing_takes_cpu_time() -> None:
    before = time.thread_time()
    measure.compute(0.01)
    assert time.thread_time() - before >= 0.01


@pytest.mark.parametrize(
    ("env", "message"), [("raises", "^ValueError: boom$"), ("dies", "^was killed by SIGKILL$")]
)
def test_failures_are_one_line(hostile: Path, env: str, message: str) -> None:
    del hostile
    with pytest.raises(MeasurementError, match=message):
        measure.carry_out(Job(LOOP, f"hostile:{env}-v0", (0.0,), 0.01))


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_measurement_that_hangs_is_ended_with_all_its_processes(
    hostile: Path, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = hostile / "hangs"

    wait = measure.subprocess.Popen.wait

    def hang(process: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            return wait(process)
        assert timeout > 100
        assert wait_until(lambda: mark.exists() and bool(mark.read_text()), 30)
        if interrupted:
            raise KeyboardInterrupt
        raise measure.subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(measure.subprocess.Popen, "wait", hang)
    error = KeyboardInterrupt if interrupted else MeasurementError
    with pytest.raises(error, match=None if interrupted else "^took too long$"):
        measure.carry_out(Job(LOOP, "hostile:hangs-v0", (0.0,), 0.01))
    group = int(mark.read_text())
    assert wait_until(lambda: not alive(group))


def alive(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


def test_results() -> None:
    results, other = Results(), Setting("dummy", 2)
    results.add(LOOP, lambda: [measurement(100), measurement(10, 0.5)])
    results.add(LOOP, lambda: [measurement(300), measurement(30, 0.5)])
    results.add(other, lambda: [measurement(150), measurement(25, 0.5)])
    assert results.rate(LOOP, 0.0) == 200
    assert results.rate(LOOP, 0.5) == 20
    assert results.ranked(0.0) == [LOOP, other]
    assert results.ranked(0.5) == [other, LOOP]
