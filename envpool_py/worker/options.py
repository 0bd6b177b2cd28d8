"""The options of pools with worker processes, checked."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import warnings
from multiprocessing.context import BaseContext

import numpy as np


def check_context(context: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context of that name; None is what multiprocessing itself would take."""
    if context is None or isinstance(context, str):
        names = multiprocessing.get_all_start_methods()
        if context is not None and context not in names:
            raise ValueError(f"context must be one of {', '.join(names)}, got {context!r}")
        context = multiprocessing.get_context(context)
    elif not isinstance(context, BaseContext):
        raise TypeError(
            f"context must be a start method or a multiprocessing context, got {context!r}"
        )
    torch = sys.modules.get("torch")
    if context.get_start_method() == "fork" and torch is not None:
        with contextlib.suppress(AttributeError):
            if torch.cuda.is_initialized():
                warnings.warn(
                    "worker processes are forked from a process that uses CUDA, which CUDA does not"
                    ' survive; pass context="spawn" or context="forkserver"',
                    RuntimeWarning,
                    stacklevel=2,
                )
    return context


def check_step_timeout(step_timeout: float | None) -> float | None:
    """``step_timeout`` in seconds, positive, or None."""
    if step_timeout is None:
        return None
    if isinstance(step_timeout, bool) or not isinstance(step_timeout, (int, float, np.number)):
        raise TypeError(f"step_timeout must be seconds or None, got {step_timeout!r}")
    if not step_timeout > 0:
        raise ValueError(f"step_timeout must be positive, got {step_timeout}")
    return float(step_timeout)


def check_count(name: str, value: object) -> int | None:
    """An int from 1 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int or None, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    return int(value)
