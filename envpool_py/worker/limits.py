"""What a worker process takes of the machine: threads and cores."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_threads(num_threads: int) -> None:
    """Have this process, and what it imports later, compute with so many threads.

    What the user has set in the environment stands. Libraries that were loaded before the fork no
    longer look there: torch is told directly, the others through threadpoolctl if installed.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, str(num_threads))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_threads)
    with contextlib.suppress(ImportError):
        # The limit holds until it is taken back, and nobody does.
        importlib.import_module("threadpoolctl").threadpool_limits(num_threads)


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
