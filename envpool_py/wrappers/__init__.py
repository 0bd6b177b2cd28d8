"""Wrappers for pools, and for the single envs of a pool."""

from envpool_py.wrappers.norm_obs import VectorEnvNormObs
from envpool_py.wrappers.old_gym import OldGymEnv
from envpool_py.wrappers.reward import NormalizeReward
from envpool_py.wrappers.running_mean_std import RunningMeanStd
from envpool_py.wrappers.single_envs import (
    AtariInfo,
    ContinuousToDiscrete,
    MultiDiscreteToDiscrete,
    TruncatedAsTerminated,
)
from envpool_py.wrappers.vector import VectorEnvWrapper

__all__ = [
    "AtariInfo",
    "ContinuousToDiscrete",
    "MultiDiscreteToDiscrete",
    "NormalizeReward",
    "OldGymEnv",
    "RunningMeanStd",
    "TruncatedAsTerminated",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
]
