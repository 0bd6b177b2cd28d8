"""The options of pools as keywords: types, names of other libraries, refusals.

Default, meaning and check of an option are in ``envpool_py.options``; here are only the
types that type checkers and editors read, because they must be written out, and ``spell_out``,
which writes signatures and docstrings.

Each function and class that makes a pool calls ``check_options``, and ``check_env_kwargs`` if it
takes arguments of the env as keywords; so none ignores an option, and none passes the name of an
option to the env unless the env has a parameter of that name.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypedDict, TypeVar

from envpool_py.env_by_name import Env, takes
from envpool_py.options import (
    CLASSES,
    Autoreset,
    Context,
    NumProcesses,
    OnError,
    ProcessOptions,
    ResetFn,
    Validate,
    autoreset_mode_of,
)

T = TypeVar("T", bound="Callable[..., Any]")

_ARGS = re.compile(r"\nArgs:\n(?: {4}.*\n?)*|\Z")
_ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {8}.*)*", re.MULTILINE)
_PARAMETERS = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for cls in CLASSES
    for name, parameter in inspect.signature(cls, eval_str=True).parameters.items()
}
for _name in ("context", "start_method"):
    _PARAMETERS[_name] = _PARAMETERS["recycle"].replace(name=_name, annotation=Context)


class CommonOptions(TypedDict, total=False):
    """The options that every class and function takes which makes a pool."""

    on_error: OnError
    max_restarts: int | None
    restart_backoff: float
    on_restart: Callable[[int, Any], object] | None
    episode_seeds: bool
    reset_fn: ResetFn | None
    recycle: int | None
    validate: Validate
    record: str | os.PathLike[str] | None
    measure: bool
    strict_timeout: bool
    columns: bool
    reset_first: bool


class InProcessOptions(CommonOptions, total=False):
    """The options of ``DummyVectorEnv``, as keywords; of all pools."""

    autoreset_mode: Autoreset
    copy: bool


class WorkerOptions(TypedDict, total=False):
    """The options of worker processes."""

    threads_per_process: int | None
    affinity: bool
    step_timeout: float | None
    caller_steps: bool | None
    fresh_process: bool


class StartOptions(WorkerOptions, total=False):
    """The options of worker processes, and how they are started: two names of one option."""

    context: Context
    start_method: Context


class ProcessPoolOptions(InProcessOptions, WorkerOptions, total=False):
    """The keywords of ``ShmemVectorEnv``, ``SubprocVectorEnv`` and ``make``, after their own."""


class PoolOptions(InProcessOptions, StartOptions, total=False):
    """The options of a pool of worker processes, for a dict of them that type checkers check.

    ``options: PoolOptions = {"on_error": "restart"}``; ``SubprocVectorEnv(env_fns, **options)``
    """

    num_processes: NumProcesses


#: Options that only pools with processes take; of these, threads take ``step_timeout``.
PROCESS_OPTIONS = {"context", "start_method", *ProcessOptions.__annotations__}
#: All our options, and the arguments that a function has instead of ``env_fns``.
OWN_NAMES = {*ProcessPoolOptions.__annotations__, *PROCESS_OPTIONS, "wait_num", "timeout"}
OWN_NAMES |= {"backend", "env_kwargs", "wrappers"}

#: Arguments of other libraries' pools, and the names of ours.
FOREIGN_NAMES = {
    "asynchronous": "ShmemVectorEnv, or backend='shmem' in envpool_py.make",
    "batch_size": "wait_num",
    "n_envs": "num_envs in envpool_py.make; a pool class has one env per env_fn",
    "num_threads": "num_processes, the number of worker processes, or threads_per_process, which"
    " limits the threads of libraries; only a pool of threads (backend='thread') takes it",
    "num_workers": "num_processes",
    "seed": "an argument of reset(seed=...)",
    "vec_env_cls": "backend in envpool_py.make, or a pool class",
    "vectorization_mode": "backend in envpool_py.make, or a pool class",
}

#: Our options that are meant by names of other libraries.
MEANT_NAMES = dict.fromkeys(("asynchronous", "vec_env_cls", "vectorization_mode"), "backend")
MEANT_NAMES |= {"batch_size": "wait_num", "n_envs": "num_envs"}
MEANT_NAMES |= dict.fromkeys(("num_workers", "num_threads", "max_concurrency"), "num_processes")

#: What says how to pass an option to something that does not take it.
_HINTS = dict.fromkeys(PROCESS_OPTIONS, "ShmemVectorEnv and SubprocVectorEnv take it") | {
    "num_envs": "it has one env per env_fn; envpool_py.make(env, num_envs) makes copies",
    "backend": "the class decides; envpool_py.make takes it",
    "concurrent": "for envs that wait, use ThreadVectorEnv, or backend='thread' in envpool_py.make",
    "env_kwargs": "pass env_fns that make the env with them, such as functools.partial",
    "wrappers": "pass env_fns that wrap the env",
    "step_timeout": "an env that hangs in this process cannot be ended; ShmemVectorEnv,"
    " SubprocVectorEnv and ThreadVectorEnv take it",
}


class Fixed(NamedTuple):
    """An option that an interface decides: the only value that it accepts, and why."""

    value: Any
    reason: str


_ALL_ROWS = "it waits for all envs; a pool with wait_num or timeout has partial batches"
#: What the interfaces decide that wait for all envs.
WHOLE = dict.fromkeys(("timeout", "wait_num"), Fixed(None, _ALL_ROWS))


def check_options(
    known: Callable[..., Any] | Collection[str],
    name: str,
    options: Mapping[str, Any],
    fixed: Mapping[str, Fixed] = {},
) -> dict[str, Any]:
    """Return the options without those that are ``fixed``.

    Args:
        known: the names that are accepted, or the function whose parameters they are.
        name: the name of the function or class in messages.
        options: as the user gave them.
        fixed: the options that the interface decides.

    Raises:
        TypeError: it has no such option; the message names ours for one of another library.
        ValueError: another value of an option in ``fixed``.
    """
    known = {*(inspect.signature(known).parameters if callable(known) else known)}
    known |= {"start_method"} if "context" in known else set()
    for option, (value, reason) in fixed.items():
        if option in options:
            given = options[option]
            given = autoreset_mode_of(given) if option == "autoreset_mode" else given
            if type(given) is not type(value) or given != value:
                raise ValueError(f"{name}: {option} must be {value!r}, because {reason}")
    rest = {option: value for option, value in options.items() if option not in fixed}
    unknown = sorted(rest.keys() - known)
    if not unknown:
        return rest
    first, text = unknown[0], f"{name} does not take {', '.join(unknown)}"
    names = {*known, *fixed, *FOREIGN_NAMES, *_HINTS}
    found = "".join(difflib.get_close_matches(first, names, 1, 0.75))
    meant, foreign = MEANT_NAMES.get(found, found), found in FOREIGN_NAMES.keys() - known
    if foreign:
        text = f"{found} is an argument of other libraries; here it is {FOREIGN_NAMES[found]}"
    if meant in fixed:
        text += f"; {meant} must be {fixed[meant].value!r}, because {fixed[meant].reason}"
    elif meant == "num_processes" and "num_threads" in known:
        text += f"; {name} takes num_threads"
    elif name == "DummyVecEnv" and first in PROCESS_OPTIONS:
        text += "; use SubprocVecEnv or ShmemVecEnv: make_vec_env(..., vec_env_cls=ShmemVecEnv)"
    elif meant in _HINTS.keys() - known and (not foreign or meant == "num_processes"):
        also = "" if meant == first else f"; {name} does not take {meant}"
        text += f"{also}; {_HINTS[meant]}"
    elif found in known:
        text += f"; did you mean {found}?"
    elif not foreign:
        where = f"as env_kwargs={{{first!r}: ...}}", f"in its env_fn: lambda: Env({first}=...)"
        text += f"; pass arguments of the env {where['env_kwargs' not in known]}"
    raise TypeError(text)


def check_env_kwargs(
    name: str,
    place: str,
    env: Env,
    kwargs: Mapping[str, Any],
    own: Mapping[str, str],
    fixed: Mapping[str, Fixed] = {},
) -> None:
    """Raise a TypeError for an argument like an option of a pool, unless the env has it, too."""
    for key in kwargs:
        if (text := advice(key, place, own, fixed)) and not takes(env, key):
            raise TypeError(f"{name}: {text}")


def advice(
    key: str, place: str, own: Mapping[str, str], fixed: Mapping[str, Fixed] = {}
) -> str | None:
    """Say what to write for an argument that is, or is like, an option of a pool; None: it is none.

    ``place``: where the function takes options; ``own``: its name of some of them; ``fixed``: as in
    ``check_options``.
    """
    names = {*OWN_NAMES, *FOREIGN_NAMES, *MEANT_NAMES, *MEANT_NAMES.values(), *own.values()}
    like = difflib.get_close_matches(key, names, 1, 0.85)
    if not like:
        return None
    meant = MEANT_NAMES.get(like[0], like[0])
    if meant in fixed:
        start = "" if key == meant else f"{key}: "
        return f"{start}{meant} must be {fixed[meant].value!r}, because {fixed[meant].reason}"
    if like[0] in own.values() or meant in own:
        return f"{key}: here it is {own.get(meant, like[0])}"
    if meant in FOREIGN_NAMES:
        return f"{key}: here it is {FOREIGN_NAMES[meant]}"
    what = "is an option of the pool" if key in OWN_NAMES else f"is no option; {meant} is"
    return f"{key} {what}; pass {place}={{{meant!r}: ...}}"


def one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    """Return the value of an option that has two names, one of which has a value."""
    if value is not None and other is not None:
        raise TypeError(f"{name} and {alias} are the same option; pass one of them")
    return other if value is None else value


def spell_out(keywords: Any, decided: Collection[str] = (), **defaults: Any) -> Callable[[T], T]:
    """List these keywords in the signature, type hints and docstring, in place of ``**options``.

    A decorator of functions and classes. The way they are called does not change. ``decided``:
    those that are left out; ``defaults``: those that differ from the options' own.
    """
    added = [
        _PARAMETERS[name].replace(default=defaults.get(name, _PARAMETERS[name].default))
        for name in typing.get_type_hints(keywords)
        if name not in decided
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
