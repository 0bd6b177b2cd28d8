"""Stable-Baselines3's interface over the pool; works without Stable-Baselines3 and torch."""

from envpool_py.sb3.common.env_util import make_vec_env
from envpool_py.sb3.common.monitor import Monitor
from envpool_py.sb3.common.vec_env import (
    DummyVecEnv,
    PoolVecEnv,
    ShmemVecEnv,
    StackedObservations,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
    is_vecenv_wrapped,
    sync_envs_normalization,
    unwrap_vec_normalize,
    unwrap_vec_wrapper,
)
from envpool_py.sb3.registration import register

__all__ = [
    "DummyVecEnv",
    "Monitor",
    "PoolVecEnv",
    "ShmemVecEnv",
    "StackedObservations",
    "SubprocVecEnv",
    "VecCheckNan",
    "VecEnv",
    "VecEnvWrapper",
    "VecExtractDictObs",
    "VecFrameStack",
    "VecMonitor",
    "VecNormalize",
    "VecTransposeImage",
    "VecVideoRecorder",
    "is_vecenv_wrapped",
    "make_vec_env",
    "register",
    "sync_envs_normalization",
    "unwrap_vec_normalize",
    "unwrap_vec_wrapper",
]
