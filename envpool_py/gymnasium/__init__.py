"""Gymnasium's ``VectorEnv`` interface over a pool."""

from envpool_py.gymnasium.making import make_vec
from envpool_py.gymnasium.vector_env import VectorEnv

__all__ = ["VectorEnv", "make_vec"]
