"""``make_vec_env``, ``make_atari_env``, and functions of single envs and their wrappers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from typing_extensions import Never

from envpool_py import env_by_name, extras
from envpool_py.pool.keywords import PROCESS_OPTIONS, WHOLE, Fixed, advice
from envpool_py.sb3.called_in_workers import class_names, find_wrapper
from envpool_py.sb3.common.atari_wrappers import AtariWrapper
from envpool_py.sb3.common.monitor import Monitor
from envpool_py.sb3.common.vec_env.base_vec_env import VecEnv
from envpool_py.sb3.common.vec_env.dummy_vec_env import DummyVecEnv

#: Stable-Baselines3's names of our options.
_OWN = {"num_envs": "n_envs", "backend": "vec_env_cls", "wrappers": "wrapper_class"}
_DUMMY = Fixed(None, "DummyVecEnv has no worker processes; pass vec_env_cls=SubprocVecEnv")
_IN_PROCESS = {**WHOLE, **dict.fromkeys(PROCESS_OPTIONS, _DUMMY)}


def unwrap_wrapper(env: Any, wrapper_class: type[Any]) -> Any:
    """The outermost wrapper of this class around an env; None where there is none."""
    return find_wrapper(env, class_names(wrapper_class))


def is_wrapped(env: Any, wrapper_class: type[Any]) -> bool:
    """Whether an env has a wrapper of this class around it."""
    return unwrap_wrapper(env, wrapper_class) is not None


def make_vec_env(
    env_id: env_by_name.Env,
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: Callable[..., Any] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    **unknown: Never,
) -> VecEnv:
    """A VecEnv of ``n_envs`` envs of one kind, each in a ``Monitor``, seeded for the first reset.

    ``env_id`` names an env as in ``envpool_py.make``; an env made by id renders as
    ``"rgb_array"`` unless ``env_kwargs`` has another mode. Env ``i`` takes the seed ``seed + i`` at
    the first reset; None draws the seeds. ``start_index`` shifts what Stable-Baselines3 shifts: its
    action space takes the seed ``seed + start_index + i``, and its file in ``monitor_dir`` is
    ``{start_index + i}.monitor.csv``. ``wrapper_class``, a class or a function, wraps the monitored
    env. ``vec_env_cls`` is ``DummyVecEnv`` unless given. Each ``*_kwargs`` are arguments of the
    env, VecEnv (``on_error``, ``step_timeout``, ...), monitor or wrapper.

    ValueError if ``n_envs`` is below 1, EnvError if an env could not be made, TypeError for any
    other argument.
    """
    decided = _IN_PROCESS if vec_env_cls in (None, DummyVecEnv) else WHOLE
    for key in unknown:
        text = f"{key} is no argument; if it is one of the env: pass env_kwargs={{{key!r}: ...}}"
        raise TypeError(f"make_vec_env: {advice(key, 'vec_env_kwargs', _OWN, decided) or text}")
    found = env_by_name.find(env_id)

    def make(found: Any, number: int) -> Any:
        env = _make(found, env_kwargs or {})
        if seed is not None:
            env.action_space.seed(seed + number)
        filename = None if monitor_dir is None else str(Path(monitor_dir) / str(number))
        env = Monitor(env, filename, **(monitor_kwargs or {}))
        return env if wrapper_class is None else wrapper_class(env, **(wrapper_kwargs or {}))

    # The env is an argument, so that a pool can tell what it is.
    env_fns = [functools.partial(make, found, start_index + i) for i in range(n_envs)]
    venv: VecEnv = (vec_env_cls or DummyVecEnv)(env_fns, **(vec_env_kwargs or {}))
    venv.seed(seed)
    return venv


def make_atari_env(
    env_id: env_by_name.Env,
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> VecEnv:
    """``make_vec_env`` with an ``AtariWrapper`` around each env; needs ``envpool-py[atari]``.

    ``wrapper_kwargs`` are arguments of the ``AtariWrapper``, ``options`` of ``make_vec_env``.
    """
    if isinstance(env_id, str):  # also ids as PongNoFrameskip-v4
        extras.load("ale_py", f"make_atari_env needs ale_py; {extras.hint('atari')}")
    options |= {"wrapper_kwargs": wrapper_kwargs, "env_kwargs": env_kwargs}
    return make_vec_env(
        env_id, n_envs, seed, start_index, monitor_dir, wrapper_class=AtariWrapper, **options
    )


def _make(env_id: Any, kwargs: dict[str, Any]) -> Any:
    if not isinstance(env_id, EnvSpec):
        return env_id(**kwargs)
    try:
        return gym.make(env_id, **{"render_mode": "rgb_array", **kwargs})
    except TypeError:  # without a render mode
        return gym.make(env_id, **kwargs)
