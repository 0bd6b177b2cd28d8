"""Functions of VecEnvs: what is wrapped around one, and statistics from one to another.

They see Stable-Baselines3's wrappers as well as ours, in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.sb3.common.vec_env.base_vec_env import UnsuitableEnvError, VecEnvWrapper
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize
from envpool_py.sb3.inside import class_names, is_named


def unwrap_vec_wrapper(env: Any, vec_wrapper_class: type[Any]) -> Any:
    """The outermost wrapper of this class around a VecEnv; None where there is none.

    Args:
        env: a VecEnv.
        vec_wrapper_class: of ours or of Stable-Baselines3's, which stand for each other.
    """
    names = class_names(vec_wrapper_class)
    for layer in _layers(env):
        if isinstance(layer, vec_wrapper_class) or is_named(type(layer), names):
            return layer
    return None


def unwrap_vec_normalize(env: Any) -> Any:
    """The outermost ``VecNormalize`` around a VecEnv; None where there is none.

    Args:
        env: a VecEnv.
    """
    return unwrap_vec_wrapper(env, VecNormalize)


def is_vecenv_wrapped(env: Any, vec_wrapper_class: type[Any]) -> bool:
    """Whether a VecEnv has a wrapper of this class around it.

    Args:
        env: a VecEnv.
        vec_wrapper_class: as for ``unwrap_vec_wrapper``.
    """
    return unwrap_vec_wrapper(env, vec_wrapper_class) is not None


def sync_envs_normalization(env: Any, eval_env: Any) -> None:
    """Copy the statistics of every ``VecNormalize`` around ``env`` to its like around ``eval_env``.

    They are copies: what either learns later stays its own.

    Args:
        env: the VecEnv that was trained on.
        eval_env: wrapped like it.

    Raises:
        UnsuitableEnvError: where ``env`` has a ``VecNormalize``, ``eval_env`` has none, or has
            fewer wrappers.
    """
    names = class_names(VecNormalize)
    theirs = list(_layers(eval_env))
    for depth, layer in enumerate(_layers(env)):
        if depth >= len(theirs):
            raise UnsuitableEnvError(
                f"eval_env has {len(theirs)} wrappers, but env has a {type(layer).__name__} as"
                f" number {depth + 1}; wrap both alike"
            )
        other = theirs[depth]
        if not is_named(type(layer), names):
            continue
        if not is_named(type(other), names):
            raise UnsuitableEnvError(
                f"wrapper number {depth + 1} of eval_env is {type(other).__name__}, but that of env"
                f" is {type(layer).__name__}; wrap both alike"
            )
        if hasattr(layer, "obs_rms"):
            other.obs_rms = copy.deepcopy(layer.obs_rms)
        other.ret_rms = copy.deepcopy(layer.ret_rms)


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers around a VecEnv, the outermost first."""
    while isinstance(env, VecEnvWrapper) or "venv" in vars(env):
        yield env
        env = env.venv


def obs_space_info(
    obs_space: gym.Space[Any],
) -> tuple[list[Any], dict[Any, tuple[int, ...]], dict[Any, np.dtype[Any]]]:
    """Keys, shapes and dtypes of an observation space.

    Args:
        obs_space: any; a Tuple has its indices for keys, another than Dict the one key None.
    """
    if isinstance(obs_space, gym.spaces.Dict):
        parts: dict[Any, Any] = dict(obs_space.spaces)
    elif isinstance(obs_space, gym.spaces.Tuple):
        parts = dict(enumerate(obs_space.spaces))
    else:
        parts = {None: obs_space}
    return (
        list(parts),
        {key: part.shape for key, part in parts.items()},
        {key: part.dtype for key, part in parts.items()},
    )


def dict_to_obs(obs_space: gym.Space[Any], obs_dict: dict[Any, NDArray[Any]]) -> Any:
    """Observations in the form of their space, from arrays by the keys of ``obs_space_info``.

    Args:
        obs_space: any.
        obs_dict: one array for each key.
    """
    if isinstance(obs_space, gym.spaces.Dict):
        return obs_dict
    if isinstance(obs_space, gym.spaces.Tuple):
        return tuple(obs_dict[n] for n in range(len(obs_space.spaces)))
    return obs_dict[None]
