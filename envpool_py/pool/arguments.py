"""Check the arguments of pools and of their resets, and make workers and requests of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from envpool_py import seeding
from envpool_py.env.failures import naming_env
from envpool_py.env.request import Request
from envpool_py.options import INTEGER, check_count, check_number
from envpool_py.worker.env_worker import EnvWorker

#: Reset options: one dict for all envs, or one for each.
Options: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"

_RESET = Request("reset")


def check_env_fns(env_fns: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    if callable(env_fns):
        name = getattr(env_fns, "__name__", type(env_fns).__name__)
        text = f"one env per callable: [{name}] * num_envs, or envpool_py.make({name}, num_envs)"
        raise TypeError(f"env_fns must be a sequence of callables, {got(env_fns)}; pass {text}")
    if isinstance(env_fns, (str, Mapping)):
        raise TypeError(f"env_fns must be a sequence of callables, {got(env_fns)}")
    listed = list(env_fns)
    if not listed:
        raise ValueError("env_fns is empty; a pool needs at least one env")
    for i, env_fn in enumerate(listed):
        if not callable(env_fn):
            raise TypeError(f"env {i}: env_fn must be callable, {got(env_fn)}")
    return listed


def got(env_fn: object) -> str:
    """Return the end of a message, with a hint if an id or an env was passed for an env_fn."""
    kind = type(env_fn).__name__
    if isinstance(env_fn, str):
        return f"got {kind}; envpool_py.make({env_fn!r}, num_envs) makes a pool of an id"
    if not callable(env_fn) and hasattr(env_fn, "step"):
        return f"got {kind}; pass a callable that makes a new env, such as lambda: {kind}()"
    return f"got {kind}"


def check_num_envs(num_envs: int) -> int:
    check_number("num_envs must be an int", num_envs, INTEGER)  # None is refused, too
    check_count("num_envs", num_envs)
    return int(num_envs)


def check_wait_num(wait_num: int | None, num_envs: int, name: str = "wait_num") -> int:
    if wait_num is None:
        return num_envs
    check_number(f"{name} must be an int or None", wait_num, INTEGER)
    if not 1 <= wait_num <= num_envs:
        raise ValueError(f"{name} should be in [1, {num_envs}], but got {wait_num}")
    return int(wait_num)


def check_num_processes(value: int | str | None) -> int | str | None:
    """Return an int of 1 or more, None (one process per env) or ``"auto"``."""
    if not isinstance(value, str):
        return check_count("num_processes", value)
    if value != "auto":
        raise ValueError(f"num_processes must be an int, None or 'auto', got {value!r}")
    return value


def make_workers(
    worker_fn: Callable[[Callable[[], Any]], EnvWorker],
    env_fns: Sequence[Callable[[], Any]],
    workers: list[EnvWorker],
) -> None:
    """Append one worker per env, all of one class; an error of an env_fn names the env."""
    for i, env_fn in enumerate(env_fns):
        with naming_env(i, "env_fn"):
            worker = worker_fn(env_fn)
        if not isinstance(worker, EnvWorker):
            raise TypeError(f"worker_fn must return an EnvWorker, got {type(worker).__name__}")
        workers.append(worker)
        if type(worker) is not type(workers[0]):
            raise TypeError(
                f"env {i}: worker_fn returned {type(worker).__name__}, but"
                f" {type(workers[0]).__name__} for env 0; all workers of a pool are of one class"
            )


def reset_requests(
    ids: Sequence[int], seed: seeding.Seed, options: Options, kwargs: Mapping[str, Any]
) -> list[Request]:
    if seed is None and options is None and not kwargs:
        return [_RESET] * len(ids)
    seeded, with_options = seed is not None, options is not None
    seeds = seeding.per_env(seed, ids)
    if options is None or isinstance(options, Mapping):
        options = [options] * len(ids)
    if isinstance(options, (str, bytes)) or not isinstance(options, Iterable):
        kind = type(options).__name__
        raise TypeError(f"options must be a dict or one for each env, got {kind} {options!r}")
    options = list(options)
    if len(options) != len(ids):
        raise ValueError(f"got {len(options)} options for {len(ids)} envs; pass one per env")
    requests = []
    for i, one_seed, one in zip(ids, seeds, options, strict=True):
        if one is not None and not isinstance(one, Mapping):
            raise TypeError(f"env {i}: options must be a dict or None, got {type(one).__name__}")
        # None in a list is passed to the env; None for all envs is no argument.
        own = {**kwargs, "seed": one_seed} if seeded else {**kwargs}
        if with_options:
            own["options"] = None if one is None else dict(one)
        requests.append(Request("reset", kwargs=own))
    return requests
