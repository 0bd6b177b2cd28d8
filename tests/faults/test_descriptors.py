"""What a worker process takes: two descriptors of the program, part of a file for its stack."""

import multiprocessing
import os
import re
import signal
from functools import partial
from multiprocessing import connection

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ShmemVectorEnv, WorkerDiedError
from envpool_py.errors import PACKAGE_FOLDER
from envpool_py.worker import messages, supervisor, watchdog
from envpool_py.worker.host import RemoteHost
from tests.faults.helpers import BROKEN, count_fns, kill, reset_pool
from tests.support import envs
from tests.support.helpers import descriptors, no_process_left
from tests.support.places import slow


def parent_is_alive(_):
    return multiprocessing.parent_process().is_alive()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a process needs pipes of its own")
@pytest.mark.parametrize(("method", "count"), [("fork", 2), *slow(("spawn", 2), ("forkserver", 3))])
def test_the_descriptors_of_a_process_and_what_multiprocessing_knows_of_it(method, count):
    with ShmemVectorEnv(count_fns(1), context=multiprocessing.get_context(method)) as pool:
        assert f"context={method!r}" in repr(pool)
        assert pool.reset()[0].tolist() == [[0, 0, 0]]
        before = len(descriptors())
    with no_process_left(), ShmemVectorEnv(count_fns(3), context=method) as pool:
        pool.reset()
        assert f"context={method!r}" in repr(pool)
        assert len(descriptors()) - before == 2 * count
        assert pool.apply(parent_is_alive) == [True] * 3
        process = pool.workers[1].process
        assert process in multiprocessing.active_children()
        assert connection.wait([process.sentinel], 0) == []
        process.join(0.01)
        assert process.is_alive()
        process.kill()
        assert connection.wait([process.sentinel], 60) == [process.sentinel]
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        with pytest.raises(WorkerDiedError, match="env 1: .*killed by SIGKILL"):
            pool.step([0], [1])


@pytest.mark.parametrize(
    ("place", "proc", "ids"),
    [
        ("shmem-fork", False, (2, 0)),
        ("shmem-fork-packed", True, (2, 0)),
        *slow(("shmem-spawn-packed", True, (1,))),
    ],
)
def test_the_stack_is_that_of_the_process_that_has_died(place, proc, ids, monkeypatch):
    if not proc:  # as on macOS
        for module in (watchdog, supervisor):
            monkeypatch.setattr(module, "SHARES_STACKS", False)
    with reset_pool(place, BROKEN) as pool:
        for i in ids:
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*SIGSEGV .envs.py") as caught:
                pool.step(["SIGSEGV"], [i])
            frames = re.findall(r"^  File .* in (\w+)$", str(caught.value), re.MULTILINE)
            assert "_fault" in frames
            assert frames[-1] == "step", "the frames of the env alone, the most recent first"
            assert PACKAGE_FOLDER not in str(caught.value)
            pool.restart([i])
            pool.reset([i])
            kill(pool, i)
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*SIGKILL") as caught:
                pool.step([""], [i])
            assert "envs.py" not in str(caught.value)
            pool.reset()


class WideSpace(gym.spaces.Box):
    unpickled = 0

    def __setstate__(self, state):
        WideSpace.unpickled += 1
        super().__setstate__(state)


class Wide(envs.CountEnv):
    def __init__(self, high=255):
        super().__init__(0)
        self.observation_space = WideSpace(0, high, (210, 160, 3), np.uint8)


@pytest.mark.parametrize("num_processes", [4, 2])
def test_equal_observation_spaces_are_sent_unpickled_and_kept_once(num_processes, monkeypatch):
    sent, note = [], RemoteHost._note_made

    def noting(self, i, data):
        sent.append(len(data))
        note(self, i, data)

    monkeypatch.setattr(RemoteHost, "_note_made", noting)
    fns = [Wide, Wide, partial(Wide, 9), Wide]
    before = WideSpace.unpickled
    with ShmemVectorEnv(fns, context="fork", num_processes=num_processes) as pool:
        assert WideSpace.unpickled == before + 2
        assert sum(size == messages.DIGEST_BYTES for size in sent) == {4: 0, 2: 1}[num_processes]
        assert len(sent) == 4
        first, second, other, last = pool.observation_space
        assert first is second is last
        assert (first.high.max(), other.high.max()) == (255, 9)
        actions = pool.action_space  # which have a generator of random numbers each
        assert len({id(space) for space in actions}) == 4
        pool.restart([1])
        assert pool.observation_space[1] is first


def test_long_stacks_of_neighbours_are_not_mixed(tmp_path):
    with (tmp_path / "stacks").open("w+b") as file:
        for number in range(3):
            os.lseek(file.fileno(), number << 20, os.SEEK_SET)
            os.write(file.fileno(), f"stack {number} ".encode() * 9000)
        parts = [watchdog.Stacks(file.fileno(), number) for number in range(3)]
        parts[1].erase()
        found = [part.dump() for part in parts]
    assert found == [b"stack 0 " * 9000, b"", b"stack 2 " * 9000]
