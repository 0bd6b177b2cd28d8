"""What is pickled on its way to a worker process, and whose fault it is where it can't be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from envpool_py.errors import EnvError, from_signal_handler
from envpool_py.worker.base import Request
from envpool_py.worker.tokens import ID_MASK


def pickled_fn(env_fn: Callable[[], Any], i: int) -> bytes:
    """The ``env_fn`` of env ``i``.

    Raises:
        EnvError: it can't be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(env_fn)
    except Exception as error:
        if from_signal_handler(error):
            raise
        message = f"env {i}: env_fn cannot be pickled: {type(error).__name__}: {error}"
        raise EnvError(message, (i,), "env_fn") from error
    return data


def pickled_requests(part: list[tuple[int, Request]]) -> bytes:
    """Requests with their tokens.

    Raises:
        TypeError: the arguments of one can't be pickled.
    """
    try:
        return pickle.dumps(part, protocol=5)
    except Exception as error:  # cloudpickle may still know a way
        if from_signal_handler(error):
            raise
    try:
        data: bytes = cloudpickle.dumps(part, protocol=5)
    except Exception as error:
        if from_signal_handler(error):
            raise
        token, request = next((pair for pair in part if not _can_be_pickled(pair[1])), part[0])
        raise TypeError(
            f"env {token & ID_MASK}: the arguments of {request.kind} cannot be pickled: {error}"
        ) from error
    return data


def _can_be_pickled(request: Request) -> bool:
    try:
        cloudpickle.dumps(request)
    except Exception as error:  # pickling runs the user's code
        if from_signal_handler(error):
            raise
        return False
    return True
