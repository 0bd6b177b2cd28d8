"""The threads and cores that a worker process may use."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def limit_threads(num_threads: int | None) -> None:
    """Limit the threads with which libraries compute in this process.

    None: no limit. Environment variables that the user has set are kept. Libraries that were loaded
    before a fork do not read them again: torch is set directly, others through threadpoolctl if
    installed.
    """
    if num_threads is None:
        return
    for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        os.environ.setdefault(f"{library}_NUM_THREADS", str(num_threads))
    os.environ.setdefault("VECLIB_MAXIMUM_THREADS", str(num_threads))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_threads)
    with contextlib.suppress(ImportError):
        # The limit holds until the process ends, because nothing restores it.
        importlib.import_module("threadpoolctl").threadpool_limits(num_threads)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
