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


CHEAP, HALF, IDLE = auto.Probe(1e-5, 1e-5), auto.Probe(5.5e-5, 5.5e-5), auto.Probe(1e-3, 1e-5)


@pytest.mark.parametrize(
    ("measured", "num_envs", "policy", "expected"),
    [
        # Measured on two cores: half batches are so many times as fast as the best whole ones.
        (CHEAP, 64, (0, 0), ("shmem", 1, None, True)),  # 0.5
        (CHEAP, 64, (300, 0), ("shmem", 1, None, True)),  # 0.9
        (CHEAP, 64, (1000, 0), ("shmem", 1, None, True)),  # 0.6
        (CHEAP, 64, (50, 100), ("shmem", 1, None, True)),  # there is little to hide
        (CHEAP, 64, (50, 10), ("shmem", 1, 32, False)),  # 1.2
        (HALF, 16, (0, 0), ("shmem", 1, None, True)),  # 0.6
        (HALF, 16, (1000, 0), ("shmem", 1, None, True)),  # 0.8
        (HALF, 16, (50, 30), ("shmem", 1, 8, False)),  # 1.3
        (auto.Probe(7e-5, 7e-5), 16, (50, 30), ("shmem", 1, None, True)),  # one process is too slow
        (auto.Probe(1e-3, 1e-3), 8, (50, 30), ("shmem", 2, None, False)),  # 0.6
        (IDLE, 8, (50, 30), ("shmem", 8, None, False)),  # 1.0
        (IDLE, 8, (0, 300), ("shmem", 8, 4, False)),
        (CHEAP, 2, (0, 0), ("dummy", None, None, False)),
        (CHEAP, 1, (0, 1000), ("dummy", None, None, False)),
    ],
)
def test_half_batches_behind_a_policy_that_takes_time_for_each_row(
    measured: auto.Probe,
    num_envs: int,
    policy: tuple[float, float],
    expected: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "usable_cores", lambda: [0, 1])

    def seconds(rows: int) -> float:
        return 1e-6 * (policy[0] + rows * policy[1])

    assert auto.choose(measured, num_envs, "auto", "auto", policy=seconds) == expected
    if not measured.waits:  # on one core nothing can be done at the same time
        monkeypatch.setattr(auto, "usable_cores", lambda: [0])
        assert auto.choose(measured, num_envs, "auto", "auto", policy=seconds)[2] is None


def test_make_takes_the_time_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "probe", lambda *_: IDLE)
    for times, wait_num in (({"policy_us": 500}, 8), ({"policy_row_us": 300}, 4)):
        with make(CountingEnv, 8, wait_num="auto", **times) as pool:
            assert pool.wait_num == wait_num
            pool.reset()
            for _ in range(3):  # one loop for both
                pool.step([0] * len(pool.batch_ids), pool.batch_ids)
            pool.drain()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_num": "auto"}, "say what your policy takes"),
        ({"policy_us": 3}, 'only used with wait_num="auto"'),
        ({"wait_num": "auto", "policy_row_us": -1}, "must be 0 or more, got -1"),
        ({"wait_num": "auto", "policy_us": 1, "backend": "shmem"}, 'must be "auto" too'),
        ({"wait_num": "auto", "policy_us": 1, "num_processes": 2}, 'must be "auto" too'),
    ],
)
def test_the_time_of_the_policy_goes_with_wait_num_auto(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(CountingEnv, 8, **options)


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


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        *(
            ({name: value}, "Shmem")
            for name, value in (
                *(("num_threads", 2), ("step_timeout", None), ("caller_steps", True)),
                *(("on_error", "restart"), ("on_error", "replay")),
            )
        ),
        ({"on_error": "restart", "backend": "dummy"}, "Dummy"),
        ({"on_error": "raise", "max_restarts": 3}, "Dummy"),
    ],
    ids=str,
)
def test_a_cheap_env_is_in_processes_if_an_option_needs_them(
    options: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "probe", lambda *_: CHEAP)
    with make(CountingEnv, 2, **options) as pool:
        assert type(pool).__name__ == f"{kind}VectorEnv"


class Dying(CountingEnv):
    """Action 1 ends its process."""

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row


def test_on_error_restart_outlives_a_cheap_env_that_kills_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "probe", lambda *_: CHEAP)
    with make(Dying, 2, on_error="restart", restart_backoff=0.0) as pool:
        pool.reset()
        infos = pool.step([1, 0])[4]
        assert "SIGKILL" in str(infos[0]["env_error"])
        pool.step([0, 0])


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
