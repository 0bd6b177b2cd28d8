"""Stable-Baselines3's interface over a pool; needs neither Stable-Baselines3 nor torch.

``AsyncRollouts`` alone needs both; they are imported when it is first used.
"""

import typing as _typing

from envpool_py import extras as _packages
from envpool_py.sb3.common import vec_env
from envpool_py.sb3.common.env_util import make_vec_env
from envpool_py.sb3.common.monitor import Monitor
from envpool_py.sb3.common.vec_env import *  # noqa: F403 - every name of that package
from envpool_py.sb3.registration import register

__all__ = ["Monitor", "make_vec_env", "register"]
__all__ += vec_env.__all__

if _typing.TYPE_CHECKING:
    from envpool_py.sb3.async_rollouts import AsyncRollouts as AsyncRollouts
else:  # type checkers would take any misspelt name

    def __getattr__(name: str) -> object:
        if name == "AsyncRollouts":
            needed = f"AsyncRollouts needs Stable-Baselines3; {_packages.hint('sb3')}"
            return _packages.load("envpool_py.sb3.async_rollouts", needed).AsyncRollouts
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
