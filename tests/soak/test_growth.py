"""What grows slowly: descriptors, processes and memory over many pools and many steps."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.support import envs
from tests.support.helpers import children, descriptors
from tests.support.places import BACKENDS, PLACES

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 16 << 20
"""Bytes of memory that may be added: what an allocator keeps, and no leak of a few bytes a step."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guarded": {"on_error": "restart", "step_timeout": 30.0},
}


def memory(pid: int) -> int:
    """Return the bytes that a process holds alone."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * PAGE


def options(place: str, kind: str) -> dict[str, Any]:
    chosen = dict(OPTIONS[kind])
    if place == "dummy":
        chosen.pop("step_timeout", None)
    return chosen


def one_pool(place: str, kind: str) -> None:
    fns: list[Callable[[], Any]] = [functools.partial(envs.CountEnv, tag) for tag in range(3)]
    with PLACES[place](fns, **options(place, kind)) as pool:
        pool.reset()
        pool.step([0, 0, 0])


def many_pools(place: str, kind: str, count: int) -> None:
    for _ in range(5):
        one_pool(place, kind)
    gc.collect()
    before = memory(os.getpid()), len(descriptors()), children()
    for _ in range(count):
        one_pool(place, kind)
    gc.collect()
    assert len(descriptors()) <= before[1]
    assert children() <= before[2]
    assert memory(os.getpid()) - before[0] < GROWTH


class CheapEnv(gym.Env):
    """Costs next to nothing; every episode ends, and some infos say something."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.obs, self.t = np.zeros(4, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        self.t = 0
        return self.obs, {"first": True}

    def step(self, _: Any) -> tuple:
        self.t += 1
        return self.obs, 1.0, self.t >= 100, False, {} if self.t % 50 else {"t": self.t}


def many_steps(place: str, kind: str, count: int) -> None:
    """Step 256 envs; measured from a tenth on, when all that is kept for good is there."""
    num = 256
    fns: list[Callable[[], Any]] = [CheapEnv] * num
    with PLACES[place](fns, autoreset_mode="same_step", **options(place, kind)) as pool:
        pool.reset(seed=1)
        processes = pool.engine.hosts.processes
        hosts = [] if processes is None else processes.hosts
        pids = {os.getpid(), *(host.process.pid for host in hosts)}
        actions = np.zeros(num, np.int64)
        rounds = -(-count // num)
        before: dict[int, int] = {}
        opened = 0
        for n in range(rounds):
            if n == rounds // 10:
                gc.collect()
                before, opened = {pid: memory(pid) for pid in pids}, len(descriptors())
            pool.step(actions)
        gc.collect()
        assert len(descriptors()) <= opened
        for pid in pids:
            assert memory(pid) - before[pid] < GROWTH


@pytest.mark.parametrize("place", BACKENDS)
def test_fifty_pools(place: str) -> None:
    for kind in OPTIONS:
        many_pools(place, kind, 25)


@pytest.mark.soak
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_thousand_pools(place: str, kind: str) -> None:
    many_pools(place, kind, 1000)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_share_of_many_steps(place: str) -> None:
    """With what a fault would need at hand."""
    many_steps(place, "guarded", 200_000)


@pytest.mark.soak
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("place", BACKENDS)
def test_ten_million_steps(place: str, kind: str) -> None:
    many_steps(place, kind, 10_000_000)
