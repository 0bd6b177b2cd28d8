"""Stable-Baselines3's interface over a pool; needs neither Stable-Baselines3 nor torch.

``AsyncRollouts`` alone needs both; they are imported when it is first used.
"""

import importlib as _importlib
from typing import Any as _Any

from envpool_py.sb3.common import vec_env
from envpool_py.sb3.common.env_util import make_vec_env
from envpool_py.sb3.common.monitor import Monitor
from envpool_py.sb3.common.vec_env import *  # noqa: F403 - every name of that package
from envpool_py.sb3.registration import register

__all__ = ["Monitor", "make_vec_env", "register"]
__all__ += vec_env.__all__


def __getattr__(name: str) -> _Any:
    if name == "AsyncRollouts":
        return _importlib.import_module("envpool_py.sb3.async_rollouts").AsyncRollouts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
