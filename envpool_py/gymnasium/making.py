"""``make_vec``: a ``VectorEnv`` from an id, as ``gymnasium.make_vec``."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envpool_py.errors import closed_on_error
from envpool_py.gymnasium.vector_env import VectorEnv
from envpool_py.pool.backends import make

_BACKENDS = {None: "auto", "sync": "dummy", "async": "shmem"}


def make_vec(
    id: str | EnvSpec,  # noqa: A002 - Gymnasium's name
    num_envs: int = 1,
    vectorization_mode: str | None = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Make a ``VectorEnv`` of ``num_envs`` copies of one env; the arguments are Gymnasium's.

    Args:
        id: an id of Gymnasium's registry, optionally with its module, or a spec.
        num_envs: the number of envs.
        vectorization_mode: ``"sync"``: in this process; ``"async"``: in worker processes; None:
            measured, as by ``envpool_py.make``.
        vector_kwargs: arguments of ``VectorEnv`` and of the pool.
        wrappers: applied to each env, the first innermost.
        **kwargs: passed to ``gymnasium.make``.
    """
    if isinstance(id, str):
        module, _, name = id.rpartition(":")
        if module:
            importlib.import_module(module)
        id = gym.spec(name)  # noqa: A001
    elif not isinstance(id, EnvSpec):
        raise gym.error.Error(f"Invalid id type: {type(id)}. Expected `str` or `EnvSpec`")
    spec = dataclasses.replace(id, kwargs={})
    own = {**copy.deepcopy(id.kwargs), **kwargs}
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
    options = dict(stated["vector_kwargs"])
    names = options.keys() & {"shared_memory", "copy", "observation_mode", "daemon", "worker"}
    of_face = {name: options.pop(name) for name in names}
    pool = make(
        functools.partial(gym.make, spec),
        stated["num_envs"],
        backend=_BACKENDS[mode],
        env_kwargs=own,
        wrappers=stated["wrappers"],
        **VectorEnv.pool_options(options),
    )
    with closed_on_error(pool):
        envs = VectorEnv(pool, **of_face)
    envs.spec = dataclasses.replace(spec, kwargs={**own, **stated})
    return envs
