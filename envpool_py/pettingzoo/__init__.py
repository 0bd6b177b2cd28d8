"""PettingZoo's envs over a pool: turn-based, simultaneous, and as a VecEnv."""

try:
    import pettingzoo as _pettingzoo
except ImportError as error:
    from envpool_py.extras import hint as _hint

    _text = f"PettingZoo is missing; {_hint('pettingzoo')}"
    raise ImportError(f"envpool_py.pettingzoo: {_text}") from error

from envpool_py.pettingzoo.aec import PettingZooEnv
from envpool_py.pettingzoo.multi_agent_vec_env import SB3MultiAgentVecEnv
from envpool_py.pettingzoo.parallel import ParallelVectorEnv

del _pettingzoo

__all__ = ["ParallelVectorEnv", "PettingZooEnv", "SB3MultiAgentVecEnv"]
