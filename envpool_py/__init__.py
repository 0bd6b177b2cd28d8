"""Step many Gymnasium or PettingZoo environments at once, in whole or partial batches."""

import importlib as _importlib
import sys as _sys
from typing import Any as _Any

from envpool_py.errors import EnvError, EnvTimeoutError, ReplayError, WorkerDiedError
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import PoolOptions
from envpool_py.pool.make import make
from envpool_py.pool.pool_classes import (
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
)
from envpool_py.replayer import Replay, replay
from envpool_py.wrappers import (
    AtariInfo,
    ContinuousToDiscrete,
    MultiDiscreteToDiscrete,
    NormalizeReward,
    RunningMeanStd,
    TruncatedAsTerminated,
    VectorEnvNormObs,
    VectorEnvWrapper,
)

__all__ = [
    "AtariInfo",
    "BaseVectorEnv",
    "ContinuousToDiscrete",
    "DummyVectorEnv",
    "EnvError",
    "EnvTimeoutError",
    "MultiDiscreteToDiscrete",
    "NormalizeReward",
    "PoolOptions",
    "Replay",
    "ReplayError",
    "RunningMeanStd",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "ThreadVectorEnv",
    "TruncatedAsTerminated",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
    "WorkerDiedError",
    "make",
    "replay",
]

__version__ = "0.1.0"

_EXTRAS = dict.fromkeys(["ParallelVectorEnv", "PettingZooEnv", "SB3MultiAgentVecEnv"], "pettingzoo")
_EXTRAS |= {"RayEnvWorker": "ray", "RayVectorEnv": "ray", "AsyncEnv": "sessions.async_env"}
_EXTRAS |= dict.fromkeys(["AsyncCollector", "Rollout", "evaluate"], "collector")
_PACKAGES = ["collector", "envpool", "gymnasium", "pettingzoo", "ray", "sb3", "testing", "wrappers"]
_PACKAGES += ["sessions", "tianshou"]


def __getattr__(name: str) -> _Any:
    """Import a package, what needs an extra (PettingZoo, Ray), or few programs, when first used."""
    if name in _EXTRAS:
        return getattr(_importlib.import_module(f"envpool_py.{_EXTRAS[name]}"), name)
    if name in _PACKAGES:
        return _importlib.import_module(f"envpool_py.{name}")
    text = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(text, name=name, obj=_sys.modules[__name__])  # Python adds a similar name


def __dir__() -> list[str]:
    """List the public names."""
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*special, *__all__, *_EXTRAS, *_PACKAGES, "errors", "seeding", "worker"})
