"""Workers: the parent's handles on envs, and what carries requests out."""

from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker

__all__ = ["DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"]
