"""The keyword options of the pools: their types, defaults and meanings.

Type checkers and editors read ``**options: Unpack[PoolOptions]``. ``help``, ``inspect.signature``
and the API page read the signature and docstring that ``spell_out`` writes from these types.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_type_hints

import gymnasium as gym

from envpool_py.env.executor import ResetFn
from envpool_py.errors import EnvError
from envpool_py.pool.arguments import check_foreign
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.worker.hosts import hosts_of
from envpool_py.worker.process_group import Processes

T = TypeVar("T", bound="Callable[..., Any]")


class CommonOptions(TypedDict, total=False):
    """The options of all pools and of ``make``; ``BaseVectorEnv`` explains them."""

    strict_timeout: bool
    episode_seeds: bool
    reset_fn: ResetFn | None
    copy: bool
    reset_first: bool
    validate: str
    on_error: str
    max_restarts: int | None
    restart_backoff: float
    on_restart: Callable[[int, EnvError], object] | None
    measure: bool
    record: str | os.PathLike[str] | None


class PoolOptions(CommonOptions, total=False):
    """The options of all pools; ``make`` has other defaults for the two added here."""

    autoreset_mode: str | gym.vector.AutoresetMode | None
    columns: bool


class ProcessOptions(TypedDict, total=False):
    """The options of pools with worker processes.

    Args:
        num_threads: threads that each process may compute with; None: no limit.
        affinity: keep each process on one core.
        step_timeout: seconds that a request to an env may take before its process is killed; None:
            no timeout.
        caller_steps: step the last envs in this process, without isolation: as many as a worker
            process has, or half as many with ``wait_num`` or ``timeout``.
    """

    num_threads: int | None
    affinity: bool
    step_timeout: float | None
    caller_steps: bool


class ProcessPoolOptions(PoolOptions, ProcessOptions, total=False):
    """The options of ``ShmemVectorEnv`` and ``SubprocVectorEnv``."""


class MakeOptions(CommonOptions, ProcessOptions, total=False):
    """The options of ``make``."""


#: Options that only pools with processes take.
OF_PROCESSES = {"context", "num_processes", *ProcessOptions.__annotations__}

_ARGS = re.compile(r"\nArgs:\n(?: {4}.*\n?)*")
_ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {8}.*)*", re.MULTILINE)


def _meanings(owner: Any) -> dict[str, str]:
    """Return the entry of each argument in a docstring."""
    args = _ARGS.search(inspect.cleandoc(owner.__doc__ or ""))
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(args[0])} if args else {}


_SOURCES: tuple[Any, ...] = (BaseVectorEnv.__init__, Processes.__init__, hosts_of)
_PARAMETERS = {
    name: parameter.replace(annotation=types[name])
    for function in _SOURCES
    for types in [get_type_hints(function)]
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
_MEANINGS = _meanings(BaseVectorEnv) | _meanings(ProcessOptions)


def spell_out(options: Any) -> Callable[[T], T]:
    """List these options in the signature, type hints and docstring, in place of ``**options``.

    A decorator of functions and classes. The way they are called does not change.
    """
    added = [_PARAMETERS[name] for name in options.__annotations__]

    def decorate(target: T) -> T:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*kept, *added])
        del function.__annotations__["options"]
        function.__annotations__.update((each.name, each.annotation) for each in added)
        if target.__doc__:  # python -OO has none
            meanings = _MEANINGS | _meanings(target)
            names = [each.name for each in [*kept, *added] if each.name != "self"]
            text = "\n".join(["", "Args:", *(meanings[name] for name in names), ""])
            doc = inspect.cleandoc(target.__doc__) + "\n"
            target.__doc__ = _ARGS.sub(lambda _: text, doc) if _ARGS.search(doc) else doc + text
        return target

    return decorate


def check_options(function: Callable[..., Any], name: str, options: Mapping[str, Any]) -> None:
    """Raise a TypeError if ``function``, which messages call ``name``, has no such option."""
    check_foreign(options)
    known = inspect.signature(function).parameters
    unknown = sorted(options.keys() - known)
    if not unknown:
        return
    text = f"{name} does not take {', '.join(unknown)}"
    if unknown[0] in OF_PROCESSES:
        if unknown[0] == "step_timeout":
            text += "; an env that hangs can only be ended with its process"
        text += "; ShmemVectorEnv and SubprocVectorEnv take it"
    elif like := difflib.get_close_matches(unknown[0], known, 1):
        text += f"; did you mean {like[0]}?"
    elif "env_kwargs" in known:
        text += f"; pass arguments of the env as env_kwargs={{{unknown[0]!r}: ...}}"
    raise TypeError(text)
