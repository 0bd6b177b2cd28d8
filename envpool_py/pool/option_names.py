"""The names of options: ours, those of other libraries, and who decides an option.

Each function and class that makes a pool calls ``check_options``, and ``check_env_kwargs`` if it
takes arguments of the env as keywords; so none ignores an option, and none passes the name of an
option to the env unless the env has a parameter of that name.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from envpool_py.env.pool_options import autoreset_mode_of
from envpool_py.env_names import Env, takes
from envpool_py.pool.option_signatures import AllKeywords, ProcessKeywords

#: Options that only pools with processes take.
OF_PROCESSES = {"context", "start_method", "num_processes", *ProcessKeywords.__annotations__}
_WAITS = {"wait_num", "timeout"}
#: All our options, and the arguments that a function has instead of ``env_fns``.
_OWN = {*AllKeywords.__annotations__, *OF_PROCESSES, *_WAITS, "backend", "env_kwargs", "wrappers"}

#: Arguments of other libraries' pools, and the names of ours.
FOREIGN = {
    "asynchronous": "ShmemVectorEnv, or backend='shmem' in envpool_py.make",
    "batch_size": "wait_num",
    "n_envs": "num_envs in envpool_py.make; a pool class has one env per env_fn",
    "num_threads": "threads_per_process, which limits the threads of libraries, or num_processes",
    "num_workers": "num_processes",
    "seed": "an argument of reset(seed=...)",
    "vec_env_cls": "backend in envpool_py.make, or a pool class",
    "vectorization_mode": "backend in envpool_py.make, or a pool class",
}

#: What says how to pass an option to something that does not take it.
_HINTS = {
    "num_envs": "it has one env per env_fn; envpool_py.make(env, num_envs) makes copies",
    "backend": "the class decides; envpool_py.make takes it",
    "env_kwargs": "pass env_fns that make the env with them, such as functools.partial",
    "wrappers": "pass env_fns that wrap the env",
}


class Fixed(NamedTuple):
    """An option that an interface decides: the only value that it accepts, and why."""

    value: Any
    reason: str


_ALL_ROWS = "it waits for all envs; a pool with wait_num or timeout has partial batches"
#: What the interfaces decide that wait for all envs.
WHOLE = {"wait_num": Fixed(None, _ALL_ROWS), "timeout": Fixed(None, _ALL_ROWS)}


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
    known = inspect.signature(known).parameters if callable(known) else known
    for option, (value, reason) in fixed.items():
        if option in options and not _same(option, options[option], value):
            raise ValueError(f"{name}: {option} must be {value!r}, because {reason}")
    rest = {option: value for option, value in options.items() if option not in fixed}
    if unknown := sorted(rest.keys() - set(known)):
        raise TypeError(_refusal(unknown, name, known))
    return rest


def _same(option: str, given: Any, value: Any) -> bool:
    if option == "autoreset_mode":
        given = autoreset_mode_of(given)
    return type(given) is type(value) and bool(given == value)


def _refusal(unknown: list[str], name: str, known: Collection[str]) -> str:
    first = unknown[0]
    if first in FOREIGN:
        return f"{first} is an argument of other libraries; here it is {FOREIGN[first]}"
    text = f"{name} does not take {', '.join(unknown)}"
    if first in OF_PROCESSES:
        if first == "step_timeout":
            text += "; an env that hangs can only be ended with its process"
        return text + "; ShmemVectorEnv and SubprocVectorEnv take it"
    if first in _HINTS:
        return f"{text}; {_HINTS[first]}"
    if like := difflib.get_close_matches(first, known, 1):
        return f"{text}; did you mean {like[0]}?"
    if "env_kwargs" in known:
        return f"{text}; pass arguments of the env as env_kwargs={{{first!r}: ...}}"
    return text


def check_env_kwargs(name: str, place: str, env: Env, kwargs: Mapping[str, Any]) -> None:
    """Raise a TypeError for an argument of the env that is an option of a pool, or a misspelt one.

    An argument that the env itself has a parameter for is the env's. ``place``: where ``name``
    takes options.
    """
    for key in kwargs:
        if key in FOREIGN and not takes(env, key):
            text = f"{key} is an argument of other libraries; here it is {FOREIGN[key]}"
            raise TypeError(f"{name}: {text}")
        like = [key] if key in _OWN else difflib.get_close_matches(key, _OWN, 1, 0.85)
        if like and not takes(env, key):
            meant = "is an option of the pool" if key in _OWN else f"is no option; {like[0]} is"
            raise TypeError(f"{name}: {key} {meant}; pass {place}={{{like[0]!r}: ...}}")


def one_of(name: str, value: Any, options: dict[str, Any], alias: str) -> Any:
    """Return the value of an option that has two names; it is removed from ``options``."""
    other = options.pop(alias, None)
    if value is not None and other is not None:
        raise TypeError(f"{name} and {alias} are the same option; pass one of them")
    return other if value is None else value
