"""Envs that share a process which ends: what had arrived, and what was lost, reaches the caller."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ShmemVectorEnv, WorkerDiedError
from tests.support.envs import Gate

GO, KILL, TELL, LOSE = range(4)


class TellingEnv(gym.Env[Any, Any]):
    """Counts its steps; tells them in a text, and ends its process once, when asked to.

    It raises the first time it is asked to LOSE, and waits at its gate the second.
    """

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float64)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, tag: int, killed: Path, gate: Gate | None = None) -> None:
        self.tag, self.killed, self.gate, self.steps = tag, killed, gate, 0

    def _obs(self) -> np.ndarray:
        return np.array([self.tag, self.steps], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if action == KILL and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == LOSE:
            times = len(self.killed.read_text()) if self.killed.exists() else 0
            self.killed.write_text("x" * (times + 1))
            if times == 0:
                raise ValueError("once")
            if times == 1:
                self.gate.wait()
        self.steps += 1
        info = {"text": f"step {self.steps}"} if action == TELL else {}
        return self._obs(), 1.0, False, False, info


def pool_of(tmp_path: Path, num: int, *gate: Gate, **options: Any) -> ShmemVectorEnv:
    fns = [
        functools.partial(TellingEnv, tag, tmp_path / f"killed {tag}", *gate) for tag in range(num)
    ]
    return ShmemVectorEnv(fns, num_processes=1, context="fork", **options)


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_row_that_had_arrived_is_whole_after_a_restart(tmp_path: Path, on_error: str) -> None:
    with pool_of(tmp_path, 3, on_error=on_error, wait_num=1) as pool:
        pool.reset()
        pool.send([TELL], [1])
        pool.send([GO], [2])
        pool.step(None, [2])  # the row of env 1 has arrived before it
        pool.send([KILL], [0])
        if on_error == "raise":
            with pytest.raises(WorkerDiedError, match="env 0: "):
                pool.step(None, [0])
            pool.restart([0])
        else:
            assert pool.step(None, [0])[3].tolist() == [True]
        pool.reset([0])
        obs, *_, infos = pool.step(None, [1])
        assert obs.tolist() == [[1.0, 1.0]]
        assert infos[0]["text"] == "step 1"


def test_a_mate_that_is_reset_first_does_not_take_the_past_with_it(tmp_path: Path) -> None:
    with pool_of(tmp_path, 2, on_error="replay", wait_num=1, restart_backoff=0.0) as pool:
        pool.reset(seed=1)
        for _ in range(3):
            pool.send([GO, GO])
            pool.drain()
        process = pool.workers[0].process
        pool.send([KILL], [0])
        process.join()
        pool.reset([1])  # before anybody has asked what became of env 0
        obs, _, _, truncated, infos = pool.step(None, [0])
        assert obs.tolist() == [[0.0, 4.0]]
        assert not truncated[0]
        assert "killed by SIGKILL" in infos[0]["env_replayed"]


def test_an_env_that_is_tried_again_when_its_process_ends_is_restored_once_more(
    tmp_path: Path, gates: list[Gate], beside: Callable
) -> None:
    """The process ended in a request of its mate that is new: its own was not at fault."""
    options = {"on_error": "replay", "restart_backoff": 0.0, "max_restarts": None}
    timeout = {"wait_num": 1, "timeout": 0.01, "strict_timeout": True}
    there, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with gates[0].held():
            there.set()
            assert go_on.wait(120)

    with pool_of(tmp_path, 2, gates[0], **options, **timeout) as pool:
        pool.reset(seed=1)
        helper = beside(hold)
        pool.send([LOSE], [0])
        while not there.is_set():  # it has raised, was restored, and is at it again
            assert len(pool.recv()[0]) == 0
        pool.send([GO], [1])
        pool.workers[0].process.kill()
        pool.workers[0].process.join()
        go_on.set()
        helper.finish()
        obs, _, _, truncated, infos = pool.step(None, [0, 1])
        assert obs.tolist() == [[0.0, 1.0], [1.0, 1.0]]
        assert not truncated.any()
        for info in infos:
            assert "env_error" not in info
            assert "killed by SIGKILL" in info["env_replayed"]
