"""Workers: the handle on one env, and what carries many of them."""

from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.dummy import DummyEnvWorker
from envpool_py.worker.shmem import ShmemEnvWorker
from envpool_py.worker.subproc import SubprocEnvWorker

__all__ = ["DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"]
