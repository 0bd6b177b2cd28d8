"""`make`, and what `num_processes="auto"` chooses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from envpool_py import auto, make
from envpool_py.testing import CountingEnv
from envpool_py.worker.limits import usable_cores
from tests.support import envs

CORES = len(usable_cores())


class WaitingEnv(CountingEnv):
    """A step waits, for a simulator say, and leaves the processor to others."""

    def step(self, _: Any) -> Any:
        time.sleep(0.005)
        return super().step(0)


class BusyEnv(CountingEnv):
    """A step takes a millisecond of the processor, of the thread that steps."""

    def step(self, _: Any) -> Any:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return super().step(0)


def test_an_env_that_waits_gets_a_process_of_its_own() -> None:
    assert auto.probe(WaitingEnv).waits
    with envpool_py.ShmemVectorEnv([WaitingEnv] * 5, num_processes="auto") as pool:
        assert len(set(pool.apply(lambda _: os.getpid()))) == 5
        assert "num_processes=5" in repr(pool)


def test_an_env_that_computes_shares_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "probe", lambda *_: auto.Probe(1e-3, 1e-3))
    with envpool_py.SubprocVectorEnv([BusyEnv] * (CORES + 3), num_processes="auto") as pool:
        assert f"num_processes={CORES}" in repr(pool)


def test_an_env_that_computes_does_not_seem_to_wait_on_a_busy_machine() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # which others take most of
    text = "print(flush=True)\nwhile True: pass"
    hogs = [
        subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) for _ in range(3)
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()
        measured = auto.probe(BusyEnv)
        assert not measured.waits
        assert 0.0009 <= measured.cpu <= measured.wall * 1.01
    finally:
        os.sched_setaffinity(0, cores)
        for hog in hogs:
            with hog:
                hog.kill()


@pytest.mark.parametrize(
    ("wall", "cpu", "num_envs", "processes", "worth"),
    [
        (1e-6, 1e-6, 8, min(8, CORES), False),
        (1e-3, 1e-3, 8 * CORES, CORES, CORES > 1),
        (1e-3, 1e-5, 8, 8, True),
        (1e-3, 1e-5, 1, 1, False),
    ],
)
def test_the_choice(wall: float, cpu: float, num_envs: int, processes: int, *, worth: bool) -> None:
    measured = auto.Probe(wall, cpu)
    assert auto.choose_processes(measured, num_envs) == processes
    assert auto.worth_processes(measured, num_envs) is worth


@pytest.mark.parametrize(
    ("wall", "cpu", "num_envs", "pays"),
    [
        (1e-5, 1e-5, 64, True),
        (1e-5, 1e-5, 1, False),  # there is nothing to share
        (1e-3, 1e-3, 64, False),  # isolation costs it nothing
        (5e-5, 1e-6, 64, False),  # waits
    ],
)
def test_where_the_caller_steps_a_share(
    wall: float, cpu: float, num_envs: int, monkeypatch: pytest.MonkeyPatch, *, pays: bool
) -> None:
    monkeypatch.setattr(auto, "usable_cores", lambda: [0, 1])
    assert auto.caller_pays(auto.Probe(wall, cpu), num_envs) is pays
    monkeypatch.setattr(auto, "usable_cores", lambda: [0])
    assert not auto.caller_pays(auto.Probe(wall, cpu), num_envs)


def test_make_has_the_caller_step_cheap_envs_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "probe", lambda *_: auto.Probe(1e-5, 1e-5))
    monkeypatch.setattr(auto, "usable_cores", lambda: [0, 1])
    shared = "num_processes=1, context='fork', caller_steps=True"
    with envpool_py.make("CartPole-v1", 64, context="fork") as pool:
        assert shared in repr(pool)
        assert pool.reset()[0].shape == (64, 4)
    for options in (
        {"caller_steps": False},
        {"on_error": "restart"},
        {"step_timeout": 9.0},
        {"wait_num": 8},
        {"num_processes": 2},
    ):
        with envpool_py.make("CartPole-v1", 64, context="fork", **options) as pool:
            assert "num_processes=2, context='fork'" in repr(pool)
            assert "caller_steps=True" not in repr(pool)


def test_the_probe_makes_its_own_env_in_its_own_process(tmp_path: Path) -> None:
    def make() -> CountingEnv:
        with (tmp_path / "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return CountingEnv()

    assert auto.probe(make).wall >= 0  # though action 3, which it draws, raises
    (pid,) = (tmp_path / "pids").read_text().split()
    assert int(pid) != os.getpid()


def test_a_broken_env_fn_is_named() -> None:
    def broken() -> Any:
        raise OSError("no licence")

    with pytest.raises(envpool_py.EnvError, match="env 0: env_fn raised OSError: no licence"):
        envpool_py.make(broken, 2)


def to_integers(env: Any) -> Any:
    return gym.wrappers.TransformReward(env, round)


@pytest.mark.parametrize("backend", ["auto", "dummy", "subproc"])
def test_make_equals_envs_made_by_hand(backend: str) -> None:
    with envpool_py.make(
        "gymnasium:Pendulum-v1", 3, backend=backend, env_kwargs={"g": 5.0}, wrappers=[to_integers]
    ) as pool:
        raw = [to_integers(gym.make("Pendulum-v1", g=5.0)) for _ in range(3)]
        obs, _ = pool.reset(seed=4)
        np.testing.assert_array_equal(obs, [env.reset(seed=4 + i)[0] for i, env in enumerate(raw)])
        actions = np.full((3, 1), 0.5, dtype=np.float32)
        rows = [env.step(action) for env, action in zip(raw, actions, strict=True)]
        obs, reward, *_ = pool.step(actions)
        np.testing.assert_array_equal(obs, [row[0] for row in rows])
        np.testing.assert_array_equal(reward, [row[1] for row in rows])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"num_envs.*0"):
        envpool_py.make("CartPole-v1", 0)
    with pytest.raises(ValueError, match="'gpu'"):
        envpool_py.make("CartPole-v1", backend="gpu")
    with pytest.raises(gym.error.Error, match="CartPole"):
        envpool_py.make("CartPol-v1")
    with pytest.raises(TypeError, match="int"):
        envpool_py.make(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'many'"):
        envpool_py.ShmemVectorEnv([CountingEnv], num_processes="many")


def test_to_ask_for_something_of_processes_is_to_get_them() -> None:
    for option in ({"num_threads": 2}, {"step_timeout": None}, {"caller_steps": True}):
        with make(CountingEnv, 2, **option) as pool:  # too cheap, otherwise
            assert isinstance(pool, envpool_py.ShmemVectorEnv)


class LimitsEnv(CountingEnv):
    """Returns the limits of its process."""

    def limits(self) -> tuple[str | None, list[int]]:
        return os.environ.get("OMP_NUM_THREADS"), sorted(os.sched_getaffinity(0))


def test_the_number_of_threads_of_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for options, threads in (({}, "1"), ({"num_threads": 2}, "2")):
        with envpool_py.SubprocVectorEnv([LimitsEnv], **options) as pool:
            assert pool.call("limits")[0][0] == threads


def test_processes_stay_on_a_core_each_where_asked() -> None:
    cores = usable_cores()
    with envpool_py.ShmemVectorEnv([LimitsEnv] * 3, affinity=True) as pool:
        assert [row[1] for row in pool.call("limits")] == [[cores[i % CORES]] for i in range(3)]
    with envpool_py.ShmemVectorEnv([LimitsEnv] * 2) as pool:
        assert [row[1] for row in pool.call("limits")] == [cores, cores]
    assert usable_cores() == cores


@pytest.mark.parametrize(
    "step", [lambda *_: os.kill(os.getpid(), signal.SIGKILL), lambda *_: time.sleep(600)]
)
def test_an_env_that_cannot_be_measured_has_a_process_of_its_own(
    step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.auto.LONGEST_PROBE", 0.3)
    options = {"env_kwargs": {"step": step}, "on_error": "restart", "step_timeout": 0.5}
    with make(envs.ChangedEnv, 3, **options) as pool:
        assert len(pool.engine.hosts.processes.hosts) == 3
        assert pool.reset()[0].shape == (3, 3)
        assert pool.step([0] * 3)[3].all()
