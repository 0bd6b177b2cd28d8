"""EnvPool's interface on any Gymnasium env: change the import, keep the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from envpool_py.env_by_name import Env, find, takes
from envpool_py.envpool import atari
from envpool_py.envpool.face import EnvPool, GymnasiumEnvPool
from envpool_py.errors import closed_on_error
from envpool_py.options import Backend, check_count
from envpool_py.pool.arguments import check_num_envs, check_wait_num
from envpool_py.pool.keywords import (
    OWN_NAMES,
    Fixed,
    PoolOptions,
    advice,
    check_env_kwargs,
    check_options,
)
from envpool_py.pool.make import make as make_pool

__all__ = ["EnvPool", "GymnasiumEnvPool", "make", "make_dm", "make_gym", "make_gymnasium"]

_DECIDED = {
    "autoreset_mode": Fixed("next_step", "EnvPool resets an env at its next step"),
    "columns": Fixed(True, "EnvPool returns arrays"),
    "copy": Fixed(True, "EnvPool's batches are yours"),
}

#: EnvPool's names of our options.
_OWN = {"num_envs": "num_envs", "wait_num": "batch_size", "num_processes": "num_threads"}
_OWN |= {"env_kwargs": "the keywords of make, which are the env's", "seed": "seed"}
_OF_MAKE = {"batch_size", "env_kwargs", "num_envs", "seed"}


class MakeOptions(PoolOptions, total=False):
    """The ``options`` of ``make``: those of ``envpool_py.make``."""

    backend: Backend | Literal["auto"]
    wrappers: Sequence[Callable[[Any], Any]]
    wait_num: int | None
    timeout: float | None


@overload
def make(task_id: Env, env_type: Literal["dm"], **kwargs: Any) -> EnvPool: ...
@overload
def make(
    task_id: Env,
    env_type: Literal["gymnasium", "gym"] = "gymnasium",
    *,
    num_envs: int = 1,
    batch_size: int | None = None,
    num_threads: int = 0,
    seed: Any = 42,
    options: MakeOptions | PoolOptions | None = None,
    **kwargs: Any,
) -> GymnasiumEnvPool: ...
def make(
    task_id: Env,
    env_type: str = "gymnasium",
    *,
    num_envs: int = 1,
    batch_size: int | None = None,
    num_threads: int = 0,
    seed: Any = 42,
    thread_affinity_offset: int = -1,
    max_num_players: int = 1,
    gym_reset_return_info: bool = True,
    options: MakeOptions | PoolOptions | None = None,
    **env_kwargs: Any,
) -> Any:
    """Make a pool with EnvPool's interface.

    Args:
        task_id: an id, a spec or a callable, as in ``envpool_py.make``.
        env_type: ``"gymnasium"`` or ``"gym"``: a ``GymnasiumEnvPool``; ``"dm"``: ``dm_env``.
        num_envs: how many envs.
        batch_size: the rows of a batch; None or 0 is ``num_envs``.
        num_threads: the number of worker processes, or of threads with ``backend="thread"`` in
            ``options``; 0 measures a throw-away env and chooses.
        seed: env ``i`` takes ``seed + i``, or entry ``i``, at its first reset; None: no seed.
        thread_affinity_offset: from 0 on each worker process stays on one core.
        max_num_players: must be 1.
        gym_reset_return_info: must be True.
        options: others of ``envpool_py.make``: ``on_error``, ``backend``, ``wrappers``, ...
        **env_kwargs: for ``gymnasium.make``, for example ``max_episode_steps``, or the callable.

    Raises:
        TypeError, ValueError: an argument is wrong, or the envs' spaces differ.
        ImportError: ``env_type="dm"`` without the package ``dm_env``.
        EnvError, gymnasium.error.Error: the env cannot be made.
    """
    config = {**locals()}  # EnvPool's arguments; these are ours:
    del config["task_id"], config["env_type"], config["options"], config["env_kwargs"]
    if env_type not in ("gymnasium", "gym", "dm"):
        raise ValueError(f"env_type must be 'gymnasium', 'gym' or 'dm', got {env_type!r}")
    if max_num_players != 1 or not gym_reset_return_info:
        raise ValueError("max_num_players must be 1, and gym_reset_return_info True")
    if isinstance(task_id, str):
        atari.check(task_id, env_kwargs)
    num_envs = check_num_envs(num_envs)
    num_threads = check_count("num_threads", num_threads or None) or 0
    config["batch_size"] = size = check_wait_num(batch_size or None, num_envs, "batch_size")
    config["env_seed"] = [] if np.ndim(seed) == 0 else list(seed)
    config["seed"] = 0 if config["env_seed"] else seed
    face: Any = GymnasiumEnvPool
    if env_type == "dm":
        from envpool_py.envpool.dm import DMEnvPool as face  # noqa: N813, PLC0415 - an extra
    own: Any = {"affinity": True} if thread_affinity_offset >= 0 else {}
    given = {**own, **(options or {})}
    if num_threads:
        given.setdefault("backend", "shmem")
        count = "num_threads" if given["backend"] == "thread" else "num_processes"
        if given.setdefault(count, num_threads) != num_threads:
            raise TypeError(f"num_threads and {count} are the same option; pass one of them")
    fixed = {"wait_num": Fixed(size, "batch_size says it"), **_DECIDED}
    spec = find(task_id)
    for name in given.keys() - OWN_NAMES - {"num_threads"} | given.keys() & _OF_MAKE:
        if name not in _OF_MAKE and (text := advice(name, "options", _OWN)):
            raise TypeError(f"envpool.make: {text}")
        if name in _OF_MAKE or given.get("backend") != "ray" or takes(spec, name):
            raise TypeError(f"envpool.make: pass {name} to make itself, not in options")
    given = check_options(given, "envpool.make", given, fixed)
    given |= {name: each.value for name, each in fixed.items()}
    check_env_kwargs("envpool.make", "options", spec, env_kwargs, _OWN, _DECIDED)
    pool = make_pool(task_id, num_envs, env_kwargs=env_kwargs, **given)
    with closed_on_error(pool):
        config |= {k: getattr(spec, k, None) for k in ("max_episode_steps", "reward_threshold")}
        return face(pool, {**config, **env_kwargs}, task_id)


def make_gymnasium(task_id: Env, **kwargs: Any) -> GymnasiumEnvPool:
    """``make`` with ``env_type="gymnasium"``."""
    return make(task_id, "gymnasium", **kwargs)


def make_dm(task_id: Env, **kwargs: Any) -> EnvPool:
    """``make`` with ``env_type="dm"``: batches are a ``dm_env.TimeStep`` of arrays."""
    return make(task_id, "dm", **kwargs)


make_gym = make_gymnasium
