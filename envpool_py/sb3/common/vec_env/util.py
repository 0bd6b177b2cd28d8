"""Functions of VecEnvs: find wrappers, copy statistics, describe observation spaces.

They find Stable-Baselines3's wrappers and ours, in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.sb3.called_in_workers import class_names, is_named
from envpool_py.sb3.common.preprocessing import parts_of
from envpool_py.sb3.common.vec_env.base_vec_env import require
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize


def unwrap_vec_wrapper(env: Any, vec_wrapper_class: type[Any]) -> Any:
    """The outermost wrapper of this class around a VecEnv; None where there is none."""
    names = class_names(vec_wrapper_class)
    return next((layer for layer in _wrappers(env) if is_named(type(layer), names)), None)


def unwrap_vec_normalize(env: Any) -> Any:
    """The outermost ``VecNormalize`` around a VecEnv; None where there is none."""
    return unwrap_vec_wrapper(env, VecNormalize)


def is_vecenv_wrapped(env: Any, vec_wrapper_class: type[Any]) -> bool:
    """Whether a VecEnv has a wrapper of this class around it."""
    return unwrap_vec_wrapper(env, vec_wrapper_class) is not None


def sync_envs_normalization(env: Any, eval_env: Any) -> None:
    """Copy the statistics of every ``VecNormalize`` around ``env`` to that around ``eval_env``.

    UnsuitableEnvError if ``eval_env`` has fewer wrappers than ``env``, or another wrapper where
    ``env`` has a ``VecNormalize``.
    """
    names = class_names(VecNormalize)
    others = _wrappers(eval_env)
    for number, layer in enumerate(_wrappers(env), start=1):
        other = next(others, None)
        is_normalize = is_named(type(layer), names)
        found = "missing" if other is None else type(other).__name__
        require(
            other is not None and (not is_normalize or is_named(type(other), names)),
            f"wrapper number {number} of eval_env is {found}, but that of env is"
            f" {type(layer).__name__}; wrap both alike",
        )
        if is_normalize:
            for name in vars(layer).keys() & {"obs_rms", "ret_rms"}:
                setattr(other, name, copy.deepcopy(getattr(layer, name)))


def _wrappers(env: Any) -> Iterator[Any]:
    while "venv" in vars(env):
        yield env
        env = env.venv


def obs_space_info(
    obs_space: gym.Space[Any],
) -> tuple[list[Any], dict[Any, tuple[int, ...]], dict[Any, np.dtype[Any]]]:
    """Keys, shapes and dtypes of an observation space.

    The keys of a Tuple are its indices; a space that is neither Dict nor Tuple has the key None.
    """
    parts = parts_of(obs_space) or {None: obs_space}
    shapes = {key: part.shape for key, part in parts.items()}
    return list(parts), shapes, {key: part.dtype for key, part in parts.items()}


def dict_to_obs(obs_space: gym.Space[Any], obs_dict: dict[Any, NDArray[Any]]) -> Any:
    """Observations in the form of their space, from arrays by the keys of ``obs_space_info``."""
    if isinstance(obs_space, gym.spaces.Dict):
        return obs_dict
    is_tuple = isinstance(obs_space, gym.spaces.Tuple)
    return tuple(obs_dict[n] for n in range(len(obs_dict))) if is_tuple else obs_dict[None]
