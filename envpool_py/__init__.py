"""Many Gymnasium or PettingZoo environments at a time, never waiting for the slowest."""

from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.making import make
from envpool_py.pools import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from envpool_py.vector_env import BaseVectorEnv
from envpool_py.wrappers import (
    ContinuousToDiscrete,
    MultiDiscreteToDiscrete,
    RunningMeanStd,
    TruncatedAsTerminated,
    VectorEnvNormObs,
    VectorEnvWrapper,
)

__all__ = [
    "BaseVectorEnv",
    "ContinuousToDiscrete",
    "DummyVectorEnv",
    "EnvError",
    "EnvTimeoutError",
    "MultiDiscreteToDiscrete",
    "RunningMeanStd",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "TruncatedAsTerminated",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
    "WorkerDiedError",
    "make",
]
