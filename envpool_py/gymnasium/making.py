"""``make_vec``: a ``VectorEnv`` from an id, as ``gymnasium.make_vec``."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, VectorizeMode

from envpool_py import env_by_name
from envpool_py.env_by_name import Env
from envpool_py.errors import closed_on_error
from envpool_py.gymnasium.vector_env import VectorEnv, VectorOptions
from envpool_py.pool.keywords import PROCESS_OPTIONS, WHOLE, Fixed, PoolOptions, check_env_kwargs
from envpool_py.pool.make import make

_OF_FACE = {"shared_memory", "copy", "observation_mode", "daemon", "worker"}
_OWN = {"num_envs": "num_envs", "backend": "vectorization_mode", "wrappers": "wrappers"}
_OWN |= {"env_kwargs": "the keywords of make_vec, which are the env's"}
_ONE = ("num_envs", 1)
_NO_PROCESSES = Fixed(None, "vectorization_mode='sync' has no worker processes; pass 'async'")
_SYNC = dict.fromkeys(PROCESS_OPTIONS | {"max_concurrency"}, _NO_PROCESSES)
_BACKENDS: dict[Any, Any] = {None: "auto", "sync": "dummy", "async": "shmem"}


def make_vec(
    id: Env | None = None,  # noqa: A002 - Gymnasium's name
    num_envs: int = 1,
    vectorization_mode: Literal["sync", "async"] | VectorizeMode | None = None,
    vector_kwargs: VectorOptions | PoolOptions | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Make a ``VectorEnv`` of ``num_envs`` copies of one env; the arguments are Gymnasium's.

    ``"envpool_py.gymnasium:make_vec"`` can be the ``vector_entry_point`` of a registered env:
    ``gymnasium.make_vec(id, num_envs)`` then makes a ``VectorEnv`` of it.

    Args:
        id: an id, a spec or a callable, as in ``envpool_py.make``.
        num_envs: the number of envs.
        vectorization_mode: ``"sync"``: in this process; ``"async"``: in worker processes; None:
            measured, as by ``envpool_py.make``.
        vector_kwargs: arguments of ``VectorEnv`` and of the pool: ``on_error``, ``step_timeout``,
            ``num_processes``, ``copy``, ...
        wrappers: applied to each env, the first innermost.
        **kwargs: passed to ``gymnasium.make``, or to the callable.

    Raises:
        TypeError: in ``kwargs``, an option of the pool that the env has no parameter for.
    """
    found: Any = id
    if id is None:  # gymnasium.make_vec calls a vector entry point without it
        found = sys._getframe(1).f_locals.get("env_spec")  # noqa: SLF001
        if not isinstance(found, EnvSpec):
            text = "the id is missing; only gymnasium.make_vec may leave it out"
            raise TypeError(f"make_vec: {text}")
    if not (isinstance(found, (str, EnvSpec)) or callable(found)):
        raise gym.error.Error(f"Invalid id type: {type(found)}. Expected `str` or `EnvSpec`")
    found = env_by_name.find(found)
    spec, own = None, dict(kwargs)
    if isinstance(found, EnvSpec):
        own = {**copy.deepcopy(found.kwargs), **kwargs}
        spec = found
        found = dataclasses.replace(found, kwargs={}, vector_entry_point=None)
    stated: dict[str, Any] = {
        "num_envs": own.pop("num_envs", num_envs),
        "vectorization_mode": own.pop("vectorization_mode", vectorization_mode),
        "vector_kwargs": own.pop("vector_kwargs", vector_kwargs) or {},
        "wrappers": own.pop("wrappers", wrappers) or (),
    }
    mode = stated["vectorization_mode"]
    mode = stated["vectorization_mode"] = getattr(mode, "value", mode)  # of Gymnasium's enum
    if mode not in _BACKENDS:
        raise ValueError(f"Invalid vectorization mode: {mode!r}, valid modes: {list(_BACKENDS)}")
    decided = {**WHOLE, **_SYNC} if mode == "sync" else WHOLE
    check_env_kwargs("make_vec", "vector_kwargs", spec or found, kwargs, _OWN, decided)
    options = dict(stated["vector_kwargs"])
    of_face = {name: options.pop(name) for name in options.keys() & _OF_FACE}
    pool = make(
        found,
        stated["num_envs"],
        backend=_BACKENDS[mode],
        env_kwargs=own,
        wrappers=stated["wrappers"],
        **VectorEnv.options(options, decided),
    )
    with closed_on_error(pool):
        envs = VectorEnv(pool, **of_face)
    if spec is not None:
        given = {key: value for key, value in stated.items() if value and (key, value) != _ONE}
        envs.spec = dataclasses.replace(spec, kwargs={**own, **given})  # as Gymnasium's
    return envs
