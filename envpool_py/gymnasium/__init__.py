"""Gymnasium's ``VectorEnv`` interface over a pool. Needs Gymnasium 1.4 or newer."""

import gymnasium as _gymnasium

if tuple(map(int, _gymnasium.__version__.split(".")[:2])) < (1, 4):
    raise ImportError(
        f"envpool_py.gymnasium needs gymnasium 1.4 or newer, found {_gymnasium.__version__};"
        ' pip install -U "gymnasium>=1.4"'
    )

from envpool_py.gymnasium.making import make_vec
from envpool_py.gymnasium.vector_env import VectorEnv

__all__ = ["VectorEnv", "make_vec"]
