"""Measure one pool: ``python one.py JSON``, in the Python where its library is installed.

The JSON is a job, or null for the versions of the installed packages. The answer is a line of JSON
on stdout; all other output goes to stderr.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import psutil
import workloads
from ceiling import Work
from contestants import CONTESTANTS, LIBRARIES, leave_out_torch, module
from workloads import Workload

from envpool_py.bench.measure import compute, step_batches

_OTHERS = ("numpy", "pettingzoo", "mpe2", "torch", "ale-py", "mujoco", "envpool-py")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in (*(package for package, _ in LIBRARIES.values()), *_OTHERS):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def measure(
    contestant: str,
    workload: tuple[Any, ...],
    num_processes: int,
    thinks: list[float],
    seconds: float,
    per_row: float = 0.0,
    torch: bool = True,
) -> list[dict[str, Any]]:
    """A record for each time that the caller computes; the bare env has no caller.

    The caller takes ``per_row`` more for each row of a batch.
    """
    if not torch:
        leave_out_torch()
    work, started = Workload(*workload), time.perf_counter()
    if contestant == "bare":
        running, thinks = workloads.bare(work.env, work.faces[0]), [0.0]
    else:
        known = CONTESTANTS[contestant]
        if known.library in LIBRARIES:
            module(known.library)  # to import it is no part of the start
        given = work.env, known.face, work.num_envs
        env_fns, batches = workloads.env_fns(*given), workloads.batches(*given)
        masked = work.env in workloads.GAMES and workloads.GAMES[work.env].masked
        started = time.perf_counter()
        running = known.start(
            Work(env_fns, batches, work.num_envs, work.wait_num, num_processes, masked, work.env)
        )
    startup, after_start = time.perf_counter() - started, _memory()
    found = []
    for think in thinks:
        computation = functools.partial(_compute, think, per_row)
        step_batches(running, computation, work.num_envs, min(seconds / 3, 1.0))
        before = _clocks()
        timing = step_batches(running, computation, work.num_envs, seconds)._asdict()
        del timing["caller"]
        tree, caller, machine = (b - a for a, b in zip(before, _clocks(), strict=True))
        found.append(
            {
                "think": think,
                **timing,
                "cpu_seconds": tree,
                "caller_seconds": caller,
                "others_seconds": max(machine - tree, 0.0),
                "startup_seconds": startup,
                "memory_bytes": max(after_start, _memory()),
            }
        )
    running.close()
    return found


def _compute(think: float, per_row: float, rows: int) -> None:
    compute(think + per_row * rows)


def _tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _memory() -> int:
    """Return the memory of this process and its descendants; shared pages count once."""
    return sum(process.memory_full_info().pss for process in _tree())


def _clocks() -> tuple[float, float, float]:
    """CPU seconds of this process and its descendants, of this process, of the machine."""
    times = [process.cpu_times() for process in _tree()]
    machine = psutil.cpu_times()
    busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    return sum(each.user + each.system for each in times), time.process_time(), busy


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    multiprocessing.set_start_method("fork")  # for every pool, so that starts can be compared
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # many envs need many pipes
    with answer:
        json.dump(versions() if told is None else measure(**told), answer)
