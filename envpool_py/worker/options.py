"""The options of pools with worker processes, checked."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import warnings
from multiprocessing.context import BaseContext

import numpy as np


def check_context(context: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context of that name; None is what multiprocessing itself would take.

    Raises:
        ValueError: no such start method here.
        TypeError: neither a name nor a context.
    """
    if context is None:
        found: BaseContext = multiprocessing.get_context()
    elif isinstance(context, str):
        names = multiprocessing.get_all_start_methods()
        if context not in names:
            raise ValueError(f"context must be one of {', '.join(names)}, got {context!r}")
        found = multiprocessing.get_context(context)
    elif isinstance(context, BaseContext):
        found = context
    else:
        raise TypeError(
            f"context must be a start method or a multiprocessing context, got {context!r}"
        )
    torch = sys.modules.get("torch")
    if found.get_start_method() == "fork" and torch is not None:
        with contextlib.suppress(AttributeError):
            if torch.cuda.is_initialized():
                warnings.warn(
                    "worker processes are forked from a process that uses CUDA, which CUDA does not"
                    ' survive; pass context="spawn" or context="forkserver"',
                    RuntimeWarning,
                    stacklevel=2,
                )
    return found


def check_step_timeout(step_timeout: float | None) -> float | None:
    """``step_timeout`` in seconds, positive, or None.

    Raises:
        TypeError: no number.
        ValueError: not positive.
    """
    if step_timeout is None:
        return None
    if isinstance(step_timeout, bool) or not isinstance(step_timeout, (int, float, np.number)):
        raise TypeError(f"step_timeout must be seconds or None, got {step_timeout!r}")
    if not step_timeout > 0:
        raise ValueError(f"step_timeout must be positive, got {step_timeout}")
    return float(step_timeout)


def check_num_processes(num_processes: int | None, num_envs: int) -> int:
    """The number of processes for so many envs.

    Raises:
        TypeError: not an int or None.
        ValueError: below 1.
    """
    if num_processes is None:
        return num_envs
    return min(_count("num_processes", num_processes), num_envs)


def check_num_threads(num_threads: int | None) -> int | None:
    """The threads of a process; None is no limit.

    Raises:
        TypeError: not an int or None.
        ValueError: below 1.
    """
    return None if num_threads is None else _count("num_threads", num_threads)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int or None, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    return int(value)
