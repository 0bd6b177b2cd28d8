"""Envs in worker processes, rows and actions in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from envpool_py.worker.subproc import SubprocEnvWorker


class ShmemEnvWorker(SubprocEnvWorker):
    """The env lives in a process; observations, rewards, flags and actions lie in shared memory.

    Args:
        env_fn: makes the env; called once, in the process.
        context: the start method, its name or a multiprocessing context; None is multiprocessing's
            own choice.
    """

    def __init__(self, env_fn: Callable[[], Any], context: str | BaseContext | None = None) -> None:
        super().__init__(env_fn, share_memory=True, context=context)
