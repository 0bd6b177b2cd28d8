"""Many Gymnasium or PettingZoo environments at a time, never waiting for the slowest."""

from envpool_py.errors import EnvError, WorkerDiedError
from envpool_py.pools import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from envpool_py.vector_env import BaseVectorEnv

__all__ = [
    "BaseVectorEnv",
    "DummyVectorEnv",
    "EnvError",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "WorkerDiedError",
]
