"""``ThreadEnvWorker``: an ``EnvWorker`` whose env is in a thread of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envpool_py.threads.thread_supervisor import ThreadSupervisor
from envpool_py.worker.env_workers import SubprocEnvWorker


class ThreadEnvWorker(SubprocEnvWorker):
    """A worker whose env is in a thread of this process, which starts with the first request.

    Args:
        env_fn: makes the env; called once, in the thread.
    """

    make_supervisor = ThreadSupervisor

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
