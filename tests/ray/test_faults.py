"""Actors that die, hang or are slow; what is left behind: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, RayVectorEnv, WorkerDiedError
from tests.ray.cluster import actors
from tests.support import envs
from tests.support.helpers import ROOT, wait_until

FNS = [partial(envs.FaultEnv, tag) for tag in range(4)]


def make(**options: Any) -> RayVectorEnv:
    """Two actors of two envs each."""
    return RayVectorEnv(FNS, envs_per_actor=2, num_cpus=0.01, **options)


def kill(pool: RayVectorEnv, number: int) -> None:
    """Kill the process of an actor, and wait for its end."""
    (pid,) = pool.apply(lambda _: os.getpid(), id=2 * number)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: pid not in actors())


def test_an_error_names_its_env_and_keeps_the_rows_of_the_others() -> None:
    with make() as pool:
        pool.reset()
        with pytest.raises(ValueError, match="env 3: step raised ValueError: boom") as caught:
            pool.step(["", "", "", "value"])
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (3,)
        assert pool.recv()[0][:, 0].tolist() == [0, 1, 2]
        pool.reset([3])
        assert pool.step([""] * 4)[0][:, 0].tolist() == [0, 1, 2, 3]


def test_a_death_names_the_envs_and_the_node_and_the_others_go_on() -> None:
    node = ray.get_runtime_context().get_node_id()[:8]
    with make() as pool:
        pool.reset()
        with pytest.raises(
            WorkerDiedError, match=rf"env 2: the actor on node .*\({node}\) died"
        ) as e:
            pool.step(["", "", "SIGKILL", ""])
        assert set(e.value.env_ids) == {2, 3}
        assert pool.recv()[0][:, 0].tolist() == [0, 1]
        assert len(pool.step([""] * 2, [0, 1])[0]) == 2
        with pytest.raises(WorkerDiedError, match="env 3"):
            pool.step([""], [3])
        assert len(pool.reset([0, 1])[0]) == 2
        pool.restart([2])  # and env 3, which shared the actor
        assert pool.reset()[0][:, 0].tolist() == [0, 1, 2, 3]
        kill(pool, 0)  # idle, and Ray tells it after a while
        assert wait_until(lambda: bool(pool.engine.hosts.processes.channel._arrived))
        pool.restart([0, 1])
        pool.reset([0, 1])
        assert pool.step([""] * 4)[0][:, 2].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
def test_with_restart_every_env_of_a_dead_actor_is_reported_once(mode: str | None) -> None:
    with make(on_error="restart", autoreset_mode=mode) as pool:
        pool.reset()
        pool.step([""] * 4)
        obs, reward, _, truncated, info = pool.step(["", "SIGKILL", "", ""])
        assert truncated.tolist() == [True, True, False, False]
        assert reward[:2].tolist() == [0, 0]
        last = [i.get("final_info", i) for i in info]
        assert ["env_error" in i for i in last] == [True, True, False, False]
        assert "was also that of" in last[0]["env_error"]
        ended = np.stack([i.get("final_obs", o) for i, o in zip(info, obs, strict=True)])
        assert ended[:, 2].tolist() == [1, 1, 2, 2]
        if mode is None:
            pool.reset([0, 1])
        for _ in range(3):
            assert not pool.step([""] * 4)[3].any()
        kill(pool, 1)  # idle: their next step says so
        truncated = pool.step([""] * 4)[3]
        assert truncated.tolist() == [False, False, True, True]


def test_a_stuck_env_is_named_with_its_stack_and_its_actor_restarted() -> None:
    with make(on_error="restart", step_timeout=0.5) as pool:
        pool.reset()
        pool.step([""] * 4)
        start = time.monotonic()
        _, _, _, truncated, info = pool.step(["", "", "", "hang"])
        assert time.monotonic() - start < 5
        assert truncated.tolist() == [False, False, True, True]
        assert "did not end its request within step_timeout=0.5" in info[3]["env_error"]
        assert "signal.pause()" in info[3]["env_error"]
        pool.reset([2, 3])
        assert not pool.step([""] * 4)[3].any()
    with make(step_timeout=0.5) as pool:
        pool.reset()
        with pytest.raises(EnvTimeoutError, match="env 0") as caught:
            pool.step(["hang"], [0])
        assert caught.value.env_id == 0


class HoldsTheGil(envs.CountEnv):
    """A step that holds the GIL for good."""

    def step(self, action: Any) -> tuple:
        del action
        import re  # noqa: PLC0415

        re.match("(a+)+$", "a" * 60 + "b")
        raise AssertionError


def test_an_env_that_holds_the_gil_is_ended_too() -> None:
    with RayVectorEnv([HoldsTheGil], num_cpus=0.01, step_timeout=0.1) as pool:
        pool.reset()
        with pytest.raises(WorkerDiedError):
            pool.step([0])


def test_an_env_fn_that_raises_is_named_and_no_actor_is_left() -> None:
    def broken() -> None:
        message = "no env"
        raise LookupError(message)

    with pytest.raises(LookupError, match="env 1: env_fn raised LookupError: no env"):
        RayVectorEnv([envs.CountEnv, broken], envs_per_actor=2, num_cpus=0.01)
    assert wait_until(lambda: not actors())


def test_close_ends_actors_that_hang_within_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.3)
    pool = make(wait_num=1)
    pool.reset()
    pool.send(["hang", "", "", ""])
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    pool.close()


class Slow(envs.CountEnv):
    """A step takes as many tenths of a second as the action says."""

    def step(self, action: Any) -> tuple:
        time.sleep(action / 10)
        return super().step(action)


def test_an_interrupted_call_asks_for_a_reset_and_its_late_rows_are_dropped() -> None:
    with RayVectorEnv([Slow] * 4, envs_per_actor=2, num_cpus=0.01) as pool:
        pool.reset()
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.step([0, 9, 0, 0])
        assert time.monotonic() - start < 0.8
        with pytest.raises(ResetNeeded):
            pool.step([0] * 4)
        pool.reset()
        assert pool.step([0] * 4)[0][:, 2].tolist() == [1] * 4
        timer.join()


DRIVER = """
import os, signal, sys
import ray
from envpool_py import RayVectorEnv, WorkerDiedError
from tests.support.envs import CountEnv
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
pool = RayVectorEnv([CountEnv] * 2, envs_per_actor=1, num_cpus=0.01)
pool.reset()
print("ready", flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "close":
    pool.close()
    sys.stdin.read()
if sys.argv[2] == "shutdown":
    ray.shutdown()
    try:
        pool.step([0, 0])
    except WorkerDiedError:
        pool.close()
    else:
        sys.exit("no error")
"""


def test_no_actor_outlives_its_pool_or_its_driver() -> None:
    address = ray.get_runtime_context().gcs_address
    before = actors()
    runs = {
        how: subprocess.Popen(
            [sys.executable, "-c", DRIVER, address, how],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for how in ("close", "kill", "exit", "shutdown")
    }
    try:
        for run in runs.values():
            assert run.stdout is not None
            assert run.stdout.readline() == "ready\n"
        assert wait_until(lambda: actors() <= before)  # with "close" the driver goes on
        assert runs["close"].poll() is None
    finally:
        for run in runs.values():
            run.communicate()
    codes = {how: run.returncode for how, run in runs.items()}
    assert codes == {"close": 0, "kill": -signal.SIGKILL, "exit": 0, "shutdown": 0}
