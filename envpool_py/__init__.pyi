# The public names for type checkers: the module imports many of them only when they are first used,
# by a function ``__getattr__`` that would let a type checker take any misspelt name.

from envpool_py.collector import AsyncCollector as AsyncCollector
from envpool_py.collector import Rollout as Rollout
from envpool_py.collector import evaluate as evaluate
from envpool_py.errors import EnvError as EnvError
from envpool_py.errors import EnvTimeoutError as EnvTimeoutError
from envpool_py.errors import ReplayError as ReplayError
from envpool_py.errors import WorkerDiedError as WorkerDiedError
from envpool_py.pettingzoo import ParallelVectorEnv as ParallelVectorEnv
from envpool_py.pettingzoo import PettingZooEnv as PettingZooEnv
from envpool_py.pettingzoo import SB3MultiAgentVecEnv as SB3MultiAgentVecEnv
from envpool_py.pool.base import BaseVectorEnv as BaseVectorEnv
from envpool_py.pool.keywords import PoolOptions as PoolOptions
from envpool_py.pool.make import make as make
from envpool_py.pool.pool_classes import DummyVectorEnv as DummyVectorEnv
from envpool_py.pool.pool_classes import ShmemVectorEnv as ShmemVectorEnv
from envpool_py.pool.pool_classes import SubprocVectorEnv as SubprocVectorEnv
from envpool_py.pool.pool_classes import ThreadVectorEnv as ThreadVectorEnv
from envpool_py.ray import RayEnvWorker as RayEnvWorker
from envpool_py.ray import RayVectorEnv as RayVectorEnv
from envpool_py.replayer import Replay as Replay
from envpool_py.replayer import replay as replay
from envpool_py.sessions.async_env import AsyncEnv as AsyncEnv
from envpool_py.wrappers import AtariInfo as AtariInfo
from envpool_py.wrappers import ContinuousToDiscrete as ContinuousToDiscrete
from envpool_py.wrappers import MultiDiscreteToDiscrete as MultiDiscreteToDiscrete
from envpool_py.wrappers import NormalizeReward as NormalizeReward
from envpool_py.wrappers import RunningMeanStd as RunningMeanStd
from envpool_py.wrappers import TruncatedAsTerminated as TruncatedAsTerminated
from envpool_py.wrappers import VectorEnvNormObs as VectorEnvNormObs
from envpool_py.wrappers import VectorEnvWrapper as VectorEnvWrapper

from . import collector as collector
from . import envpool as envpool
from . import errors as errors
from . import gymnasium as gymnasium
from . import pettingzoo as pettingzoo
from . import ray as ray
from . import sb3 as sb3
from . import seeding as seeding
from . import sessions as sessions
from . import testing as testing
from . import tianshou as tianshou
from . import worker as worker
from . import wrappers as wrappers

__version__: str
