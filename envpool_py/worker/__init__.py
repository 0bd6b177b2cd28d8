"""Workers: each is the handle on one env; a custom worker class may run envs in its own way."""

from envpool_py.env.request import Request
from envpool_py.worker.builtin_env_workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker
from envpool_py.worker.env_worker import EnvWorker

__all__ = ["DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"]
