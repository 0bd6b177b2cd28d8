"""What a process and its descendants use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from envpool_py.bench import process_tree
from tests.support.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = """
import os, sys, time
held = bytearray(40_000_000)
held[::4096] = b"1" * len(held[::4096])
end = time.process_time() + 0.05
while time.process_time() < end:
    pass
print(os.getpid(), time.process_time(), flush=True)
sys.stdin.read()
"""
STARTER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}], check=True)"


@contextmanager
def grandchild() -> Iterator[tuple[int, int, float]]:
    """A child, its own child, and the CPU time that the latter had used when it was there."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        pid, used = child.stdout.readline().split()
        yield child.pid, int(pid), float(used)
        assert child.stdin is not None
        child.stdin.close()


def test_descendants_their_time_and_their_memory() -> None:
    alone = process_tree.memory_bytes(process_tree.members(os.getpid()))
    with grandchild() as (child, worker, used):
        found = process_tree.members(os.getpid())
        assert found[0] == os.getpid()
        assert {child, worker} <= set(found)
        assert process_tree.members(worker) == [worker]
        together = process_tree.memory_bytes(found)
        spent = process_tree.cpu_seconds([worker])
    assert alone is not None
    assert together is not None
    assert together >= alone + 40_000_000
    assert spent is not None
    assert spent >= 0.99 * used
    assert wait_until(lambda: worker not in process_tree.members(os.getpid()))


def test_a_process_that_has_ended_counts_nothing() -> None:
    with grandchild() as (_, worker, _):
        pass
    assert process_tree.cpu_seconds([worker]) == 0
    assert process_tree.memory_bytes([worker]) == 0


def test_own_time_is_what_python_says() -> None:
    before = process_tree.cpu_seconds([os.getpid()])
    started = time.process_time()
    while time.process_time() < started + 0.1:
        pass
    after = process_tree.cpu_seconds([os.getpid()])
    assert before is not None
    assert after is not None
    # The kernel brings a running thread's account up to date now and then only.
    assert after - before >= 0.08
    machine = process_tree.machine_cpu_seconds()
    assert machine is not None
    assert machine >= after
    assert process_tree.queued_seconds() >= 0


def test_memory_that_is_left() -> None:
    available = process_tree.available_bytes()
    assert available is not None
    assert available > 1 << 20
