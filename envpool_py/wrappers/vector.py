"""The base class of wrappers around pools: it forwards everything, and can change observations.

Every name that ``BaseVectorEnv`` defines gets a descriptor at the end of this module. So methods
that are added to pools are forwarded too, without the half microsecond per access that a
``__getattribute__`` would take. Attributes that only some pools have go through ``__getattr__``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from typing_extensions import Self

from envpool_py.env import spaces
from envpool_py.pool.base import BaseVectorEnv

# Attributes that a wrapper may declare differently from its pool.
_DECLARED = ("observation_space", "action_space")

Method = TypeVar("Method", bound=Callable[..., Any])


def _observed(method: Method) -> Method:
    """The pool's method, with ``observations`` and ``_returned`` applied to its result."""

    @functools.wraps(method)
    def call(wrapper: VectorEnvWrapper, *args: Any, **kwargs: Any) -> Any:
        obs, *others, infos = getattr(wrapper.venv, method.__name__)(*args, **kwargs)
        batch = (wrapper._changed(obs, infos), *others, infos)  # noqa: SLF001 - its own methods
        return wrapper._returned(batch)  # noqa: SLF001

    return cast("Method", call)


class VectorEnvWrapper(BaseVectorEnv):
    """Forwards all calls and attributes to a pool; the base class of wrappers around pools.

    A subclass overrides the methods that it changes. ``observations`` is called once for each
    observation that the caller gets, from ``reset``, ``step``, ``recv`` and ``drain``, and for the
    ``final_obs`` of an automatic reset.

    An attribute of the pool is read from the pool and set on the pool: ``wrapper.wait_num = 4``
    changes the pool. Any other attribute belongs to the wrapper. So do ``observation_space`` and
    ``action_space``, which a wrapper may replace. If one wrapper is around another, the outer one
    reads the attributes of the inner one; set them on ``wrapper.venv``.

    ``venv``, an argument and an attribute, is the pool, or a wrapper around it; TypeError if it is
    no ``BaseVectorEnv``.
    """

    # BaseVectorEnv's constructor is not called, because a wrapper holds a pool and is not one.
    def __init__(self, venv: BaseVectorEnv) -> None:
        if not isinstance(venv, BaseVectorEnv):
            raise TypeError(f"venv: got {venv!r}, but a wrapper needs a pool")
        self.venv = venv

    def observations(self, obs: Any) -> Any:
        """Change a batch of observations; this one returns it unchanged.

        Args:
            obs: ``k`` rows as the pool returns them: an array ``(k, ...)``, an object array
                ``(k,)``, or, with ``columns=True``, a dict or tuple of arrays ``(k, ...)``; ``k``
                may be 0. The ``final_obs`` in the infos of a batch come first, in a separate call.

        Returns:
            ``k`` rows, in the same order.
        """
        return obs

    reset = _observed(BaseVectorEnv.reset)
    step = _observed(BaseVectorEnv.step)
    recv = _observed(BaseVectorEnv.recv)
    drain = _observed(BaseVectorEnv.drain)
    recv_async = BaseVectorEnv.recv_async  # calls ``recv`` of the wrapper

    def sessions(self) -> Any:
        """Raise TypeError: a wrapper changes batches, and a session has no batch."""
        text = "wrap each env instead, in its env_fn, or use the sessions of wrapper.venv"
        raise TypeError(f"sessions: {type(self).__name__} changes batches; {text}")

    def _changed(self, obs: Any, infos: Any) -> Any:
        if getattr(self.observations, "__func__", None) is VectorEnvWrapper.observations:
            return obs
        ended = list(filter(is_last, infos))
        if ended:
            finals = self.observations(_stack_like(obs, [info["final_obs"] for info in ended]))
            for k, info in enumerate(ended):
                info["final_obs"] = spaces.take(finals, k)
        return self.observations(obs)

    def _returned(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a batch for the caller: the two parts of ``reset``, or the five of ``step``."""
        return batch

    # Of the wrapper's own spaces, which may be others than the pool's.
    single_observation_space = BaseVectorEnv.single_observation_space
    single_action_space = BaseVectorEnv.single_action_space

    def __len__(self) -> int:
        return len(self.venv)

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # An unclosed pool warns itself; it may be in use after its wrapper is gone.
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"

    def __reduce__(self) -> Any:
        # A pool cannot be copied, but a wrapper can: the copy wraps the same pool.
        return object.__new__, (type(self),), vars(self)

    if not TYPE_CHECKING:  # type checkers would take any misspelt name

        def __getattr__(self, name: str) -> Any:
            # For names that are not found otherwise. Special names are not forwarded. Without
            # a venv (during a copy, after a failed constructor) there is no pool to read from.
            if name == "venv" or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.venv, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in _DECLARED or name.startswith("_") or "venv" not in vars(self)
        if own or hasattr(type(self), name) or not _pool_has(self.venv, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.venv, name, value)


class _Forwarded:
    """Reads an attribute from the pool; an attribute of the instance takes precedence."""

    def __init__(self, name: str, pool: str) -> None:
        self.name, self.pool = name, pool

    def __get__(self, instance: Any, owner: type) -> Any:
        pool = BaseVectorEnv if instance is None else getattr(instance, self.pool)
        return getattr(pool, self.name)


class _ForwardedValue(_Forwarded):
    """Reads an attribute from the pool and sets it there; for all but methods."""

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(getattr(instance, self.pool), self.name, value)


def forward_to_pool(cls: type[Any], pool: str) -> None:
    """Give a class a descriptor for each name of a pool that it lacks; ``pool``: its attribute."""
    for base in BaseVectorEnv.__mro__[:-1]:
        for name, attribute in vars(base).items():
            if name.startswith("__") or name in vars(cls):
                continue
            method = isinstance(attribute, (types.FunctionType, classmethod, staticmethod))
            own = method or name.startswith("_")
            setattr(cls, name, (_Forwarded if own else _ForwardedValue)(name, pool))


forward_to_pool(VectorEnvWrapper, "venv")


def _pool_has(venv: BaseVectorEnv, name: str) -> bool:
    """Whether the pool inside all wrappers has this attribute; properties are not evaluated."""
    while isinstance(venv, VectorEnvWrapper):
        venv = venv.venv
    return name in vars(venv) or hasattr(type(venv), name)


def is_last(info: dict[str, Any]) -> bool:
    """Whether the row of this info ends an episode and has the first observation of the next."""
    return "final_obs" in info and "final_info" in info


def _stack_like(batch: Any, rows: list[Any]) -> Any:

    def stack(like: Any, *values: Any) -> Any:
        if like.dtype == object or any(np.shape(value) != like.shape[1:] for value in values):
            return spaces.objects(values)
        return np.asarray(values, dtype=like.dtype)

    return spaces.map_tree(stack, batch, *rows)
