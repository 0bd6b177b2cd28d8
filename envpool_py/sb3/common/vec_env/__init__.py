"""VecEnvs and their wrappers, by the names of ``stable_baselines3.common.vec_env``."""

from envpool_py.sb3.common.vec_env.base_vec_env import VecEnv, VecEnvWrapper
from envpool_py.sb3.common.vec_env.dummy_vec_env import DummyVecEnv
from envpool_py.sb3.common.vec_env.pool_vec_env import PoolVecEnv
from envpool_py.sb3.common.vec_env.stacked_observations import StackedObservations
from envpool_py.sb3.common.vec_env.subproc_vec_env import ShmemVecEnv, SubprocVecEnv
from envpool_py.sb3.common.vec_env.util import (
    is_vecenv_wrapped,
    sync_envs_normalization,
    unwrap_vec_normalize,
    unwrap_vec_wrapper,
)
from envpool_py.sb3.common.vec_env.vec_check_nan import VecCheckNan
from envpool_py.sb3.common.vec_env.vec_extract_dict_obs import VecExtractDictObs
from envpool_py.sb3.common.vec_env.vec_frame_stack import VecFrameStack
from envpool_py.sb3.common.vec_env.vec_monitor import VecMonitor
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize
from envpool_py.sb3.common.vec_env.vec_transpose import VecTransposeImage
from envpool_py.sb3.common.vec_env.vec_video_recorder import VecVideoRecorder

__all__ = [
    "DummyVecEnv",
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
    "sync_envs_normalization",
    "unwrap_vec_normalize",
    "unwrap_vec_wrapper",
]
