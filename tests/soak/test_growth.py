"""What grows slowly: descriptors, processes and memory over many pools and many steps."""

import functools
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from envpool_py.testing import CountingEnv
from tests.faults.helpers import kill
from tests.support import envs
from tests.support.helpers import children, descriptors
from tests.support.places import PLACES

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 16 << 20
"""Bytes of memory that may be added: what an allocator keeps, and no leak of a few bytes a step."""
GUARDED = [
    ("dummy", {"on_error": "restart"}),
    ("shmem-fork-packed", {"on_error": "restart", "step_timeout": 30.0}),
]
"""Pools with what a fault would need at hand."""
PLAIN = [("dummy", {}), ("shmem-fork-packed", {}), ("thread", {})]


def memory(pid):
    """Return the bytes that a process holds alone."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * PAGE


@pytest.mark.parametrize("count", [10, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("place", "options"), PLAIN + GUARDED)
def test_many_pools(place, options, count):
    for number in range(5 + count):
        if number == 5:
            gc.collect()
            before = memory(os.getpid()), len(descriptors()), children()
        with PLACES[place]([envs.CountEnv] * 3, **options) as pool:
            pool.reset()
            pool.step([0, 0, 0])
    gc.collect()
    assert len(descriptors()) <= before[1]
    assert children() <= before[2]
    assert memory(os.getpid()) - before[0] < GROWTH


@pytest.mark.parametrize(
    ("place", "options", "count"),
    [
        *((place, options, 100_000) for place, options in GUARDED),
        *(pytest.param(*one, 10_000_000, marks=pytest.mark.soak) for one in PLAIN + GUARDED),
    ],
)
def test_many_steps(place, options, count):
    """Step 256 envs; measured from a tenth on, when all that is kept for good is there."""
    num = 256
    fns = [functools.partial(CountingEnv, 100)] * num  # cheap envs
    with PLACES[place](fns, autoreset_mode="same_step", **options) as pool:
        pool.reset(seed=1)
        pids = {os.getpid(), *pool.apply(lambda _: os.getpid())}
        actions = np.zeros(num, np.int64)
        rounds = -(-count // num)
        for n in range(rounds):
            if n == rounds // 10:
                gc.collect()
                before, opened = {pid: memory(pid) for pid in pids}, len(descriptors())
            pool.step(actions)
        gc.collect()
        assert len(descriptors()) <= opened
        for pid in pids:
            assert memory(pid) - before[pid] < GROWTH


def open_here(_env):
    """Return the number of descriptors and child processes of the process that has the env."""
    return len([*Path("/proc/self/fd").iterdir()]), len(children())


WAYS = ("recycle", "swap", "restart")


class HoldsAFile(CountingEnv):
    """An env with a descriptor, which ``close`` closes."""

    def __init__(self):
        super().__init__(length=1)
        self.file = Path(os.devnull).open()  # noqa: SIM115 - held until close

    def close(self):
        self.file.close()


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("place", "way"),
    [
        *((place, way) for place in ("dummy", "shmem-fork-packed") for way in WAYS),
        ("shmem-fork-packed", "kill"),
    ],
)
def test_many_recreated_envs(place, way, count):
    options = {"recycle": 1, "autoreset_mode": "same_step"} if way == "recycle" else {}
    with PLACES[place]([HoldsAFile] * 2, **options) as pool:
        pool.reset(seed=0)
        for number in range(2 + count):
            if number == 2:  # a process that is forked later inherits more than the first ones
                before = len(descriptors()), len(children()), pool.apply(open_here)
            if way == "swap":
                pool.restart([1], env_fns=[HoldsAFile])
            elif way == "restart":
                pool.restart([1])
            elif way == "kill":
                kill(pool, 0)
            if way != "recycle":
                pool.reset()
            pool.step([0, 0])
        assert (len(descriptors()), len(children()), pool.apply(open_here)) == before
