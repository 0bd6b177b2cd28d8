"""The signatures of the pool classes and of ``make``, made from ``envpool_py.env.pool_options``.

Type checkers and editors read ``**options: Unpack[PoolKeywords]``. ``help``, ``inspect.signature``
and the API page read the signature and docstring that ``spell_out`` writes.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import gymnasium as gym

from envpool_py.env.pool_options import CLASSES, ResetFn
from envpool_py.errors import EnvError

T = TypeVar("T", bound="Callable[..., Any]")


class PoolKeywords(TypedDict, total=False):
    """The keywords of all pools and of ``make``."""

    strict_timeout: bool
    copy: bool
    reset_first: bool
    measure: bool
    record: str | os.PathLike[str] | None
    episode_seeds: bool
    reset_fn: ResetFn | None
    recycle: int | None
    validate: str
    on_error: str
    max_restarts: int | None
    restart_backoff: float
    on_restart: Callable[[int, EnvError], object] | None
    autoreset_mode: str | gym.vector.AutoresetMode | None
    columns: bool


class ProcessKeywords(TypedDict, total=False):
    """The keywords of pools with worker processes."""

    threads_per_process: int | None
    affinity: bool
    step_timeout: float | None
    caller_steps: bool
    concurrent: bool


class ThreadPoolKeywords(PoolKeywords, total=False):
    """The keywords of ``ThreadVectorEnv``."""

    step_timeout: float | None


class ProcessPoolKeywords(PoolKeywords, ProcessKeywords, total=False):
    """The keywords of ``ShmemVectorEnv``, ``SubprocVectorEnv`` and ``make``."""


class AllKeywords(ProcessPoolKeywords, total=False):
    """The keywords of ``BaseVectorEnv``, those of processes only with workers that have some."""

    num_processes: int | None


_ARGS = re.compile(r"\nArgs:\n(?: {4}.*\n?)*|\Z")
_ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {8}.*)*", re.MULTILINE)
_PARAMETERS = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for kind in CLASSES
    for name, parameter in inspect.signature(kind, eval_str=True).parameters.items()
}


def spell_out(options: Any, **defaults: Any) -> Callable[[T], T]:
    """List these options in the signature, type hints and docstring, in place of ``**options``.

    A decorator of functions and classes. The way they are called does not change. ``defaults``:
    those that differ from the options' own.
    """
    added = [
        _PARAMETERS[name].replace(default=defaults.get(name, _PARAMETERS[name].default))
        for name in options.__annotations__
    ]

    def decorate(target: T) -> T:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        signature = inspect.signature(function)
        kept = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*kept, *added])
        del function.__annotations__["options"]
        function.__annotations__.update((each.name, each.annotation) for each in added)
        if target.__doc__:  # python -OO has none
            owners = [*CLASSES, *reversed(getattr(target, "__mro__", (target,)))]
            docs = [inspect.cleandoc(owner.__doc__ or "") for owner in owners]
            meanings = {entry[1]: entry[0] for doc in docs for entry in _ENTRY.finditer(doc)}
            names = [each.name for each in [*kept, *added] if each.name != "self"]
            text = "\n".join(["\nArgs:", *(meanings[name] for name in names), ""])
            target.__doc__ = _ARGS.sub(lambda _: text, docs[-1] + "\n", count=1)
        return target

    return decorate
