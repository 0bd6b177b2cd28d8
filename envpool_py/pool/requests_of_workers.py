"""The requests of a pool's workers: the pool answers them by its own calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from gymnasium.error import ClosedEnvironmentError

from envpool_py.env.request import Request
from envpool_py.worker.builtin_env_workers import BuiltinEnvWorker
from envpool_py.worker.custom_worker_host import CustomWorkerHost

#: The pool's call for each kind of request that has a reply.
_METHODS = {"get_attr": "get_env_attr", "set_attr": "set_env_attr"}
_METHODS |= {name: name for name in ("call", "apply", "render")}

#: What to call in place of ``worker.step`` and ``worker.seed``: a pool tracks all rows of its envs.
_CALL_INSTEAD = {"step": "step([action], [{}])", "seed": "reset([{}], seed=...)"}


def join_workers(pool: Any, base: type) -> None:
    """Let the built-in workers of a pool use the calls of its class ``base``.

    A subclass may override these calls by ones that use the workers.
    """
    ref = weakref.ref(pool)  # a worker must not keep a pool that its user has dropped
    for i, worker in enumerate(pool.workers):
        host = partial(pool.engine.hosts.of, i)
        if isinstance(worker, BuiltinEnvWorker) and not isinstance(host(), CustomWorkerHost):
            worker.join(partial(_answer, ref, base, i), host)


def _answer(pool_ref: Callable[[], Any], base: type, i: int, request: Request) -> Any:
    """Answer a request to the worker of env ``i``; ValueError for a kind that has a row."""
    if request.kind not in _METHODS:
        instead = _CALL_INSTEAD.get(request.kind, "reset([{}])").format(i)
        raise ValueError(f"env {i}: {request.kind}: this worker is in a pool; call pool.{instead}")
    pool = pool_ref()
    if pool is None:
        raise ClosedEnvironmentError(f"env {i}: the pool of this worker is closed")
    call = getattr(base, _METHODS[request.kind])
    replies = call(pool, *request.args, id=i, **request.kwargs)
    return None if replies is None else replies[0]
