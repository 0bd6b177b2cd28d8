"""The threads and cores that a worker process may use."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from envpool_py.errors import warn

#: Whether this process has warned of torch's threads: an entry if so.
_WARNED: list[bool] = []


def limit_threads(num_threads: int | None) -> None:
    """Limit the threads with which libraries compute in this process.

    None: no limit. Environment variables that the user has set are kept. Libraries that were loaded
    before a fork do not read them again: torch is set directly, others through threadpoolctl if
    installed.
    """
    if num_threads is None:
        return
    for limit in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "NUMEXPR_NUM", "VECLIB_MAXIMUM"):
        os.environ.setdefault(f"{limit}_THREADS", str(num_threads))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(num_threads)
    found = thread_pools()
    # To set the number that a library has already would start its threads.
    if found is not None and any(one["num_threads"] != num_threads for one in found.info()):
        found.limit(limits=num_threads)  # until the process ends, because nothing restores it


@functools.cache
def thread_pools() -> Any | None:
    """Return the thread pools of all loaded libraries, found by threadpoolctl; None: not installed.

    A process that forks others makes the search, which is slow, once for all.
    """
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None


_preparing = threading.Lock()  # a second thread would save, and restore, the limits of the first


@contextlib.contextmanager
def ready_to_fork(num_threads: int | None) -> Iterator[None]:
    """Limit threads and freeze garbage within the block, so that no forked process has to."""
    with contextlib.ExitStack() as stack:
        if _preparing.acquire(blocking=False):  # else each process sets its own limit
            stack.callback(_preparing.release)
            if not gc.get_freeze_count():  # a collection would copy every page in a process
                gc.freeze()
                stack.callback(gc.unfreeze)
            thread_pools.cache_clear()  # a library may have been loaded since
            if num_threads is not None and (found := thread_pools()) is not None:
                stack.enter_context(found.limit(limits=num_threads))
        yield


def pin(number: int) -> None:
    """Let process ``number`` of a pool run on one core only, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        cores = usable_cores()
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def warn_of_torch(num_processes: int) -> None:
    """Warn once if torch's threads and so many worker processes outnumber the cores."""
    torch: Any = sys.modules.get("torch")
    threads = torch.get_num_threads() if hasattr(torch, "get_num_threads") else 1
    cores = len(usable_cores())
    if _WARNED or threads == 1 or not num_processes or threads + num_processes <= cores:
        return
    _WARNED.append(True)
    warn(
        f"torch computes with {threads} threads, beside {num_processes} worker processes on"
        f" {cores} cores, and they slow each other down; call torch.set_num_threads(1), or set"
        " OMP_NUM_THREADS=1 before torch is imported",
        RuntimeWarning,
    )


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
