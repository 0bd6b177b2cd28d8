"""What is pickled on its way to a worker process, and whose fault it is where it cannot be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, cast

import cloudpickle

from envpool_py.errors import EnvError, from_signal_handler
from envpool_py.worker.base import Request
from envpool_py.worker.channel import ID_MASK


def pickled_fn(env_fn: Callable[[], Any], i: int) -> bytes:
    """The ``env_fn`` of env ``i``.

    Raises:
        EnvError: it cannot be pickled.
    """
    try:
        return cast("bytes", cloudpickle.dumps(env_fn))
    except Exception as error:
        if from_signal_handler(error):
            raise
        message = f"env {i}: env_fn cannot be pickled: {type(error).__name__}: {error}"
        raise EnvError(message, (i,), "env_fn") from error


def pickled_requests(pairs: list[tuple[int, Request]]) -> bytes:
    """Requests with their tokens: ``[([token, ...], pickled request), ...]``.

    A request is unpickled once for each of its envs, so that no env sees what another does to its
    arguments; one that several envs share is pickled once.

    Raises:
        TypeError: the arguments of one cannot be pickled.
    """
    tokens: dict[int, list[int]] = {}
    bodies: dict[int, bytes] = {}
    for token, request in pairs:
        if id(request) not in bodies:
            bodies[id(request)] = _pickled(token, request)
        tokens.setdefault(id(request), []).append(token)
    return pickle.dumps([(tokens[key], body) for key, body in bodies.items()])


def _pickled(token: int, request: Request) -> bytes:
    try:
        return pickle.dumps(request, protocol=5)
    except Exception as error:  # cloudpickle may still know a way
        if from_signal_handler(error):
            raise
    try:
        return cast("bytes", cloudpickle.dumps(request, protocol=5))
    except Exception as error:
        if from_signal_handler(error):
            raise
        raise TypeError(
            f"env {token & ID_MASK}: the arguments of {request.kind} cannot be pickled: {error}"
        ) from error


def dumps(value: Any, what: str) -> bytes:
    """``value`` pickled; ``what`` names it in the message.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # noqa: BLE001, S110 - pickling runs the user's code; cloudpickle may know a way
        pass
    try:
        return cast("bytes", cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        raise TypeError(f"the {what} cannot be pickled: {error}") from error
