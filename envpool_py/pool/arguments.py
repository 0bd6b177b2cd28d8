"""Checks of the arguments of pools. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from envpool_py import seeding
from envpool_py.engine.recovery import Policy
from envpool_py.env import checks
from envpool_py.env.executor import NEXT_STEP, SAME_STEP, ResetFn
from envpool_py.env.request import Request
from envpool_py.errors import EnvError, env_error
from envpool_py.seeding import Seed
from envpool_py.worker.base import EnvWorker

#: Reset options: one dict for all envs, or one for each.
Options: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"

_RESET = Request("reset")
_INTEGER = (int, np.integer)
_NUMBER = (int, float, np.number)

#: Gymnasium's modes by the names that ``autoreset_mode`` takes.
AUTORESET_MODES = {
    NEXT_STEP: gym.vector.AutoresetMode.NEXT_STEP,
    SAME_STEP: gym.vector.AutoresetMode.SAME_STEP,
}

#: Arguments of other libraries' pools, and the names of ours.
FOREIGN = {
    "asynchronous": "ShmemVectorEnv, or backend='shmem' in envpool_py.make",
    "batch_size": "wait_num",
    "n_envs": "num_envs in envpool_py.make; a pool class has one env per env_fn",
    "num_workers": "num_processes",
    "vectorization_mode": "backend in envpool_py.make, or a pool class",
}


def check_foreign(options: Mapping[str, Any]) -> None:
    """Raise a TypeError for an argument of another library; the message names ours."""
    for name in sorted(FOREIGN.keys() & options.keys()):
        raise TypeError(f"{name} is an argument of other libraries; here it is {FOREIGN[name]}")


def _check_number(what: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raise a TypeError unless ``value`` is of one of these types and no bool."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{what}, got {value!r}")


def check_env_fns(env_fns: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return the env_fns as a list; raise if it is empty or an entry is not callable."""
    if callable(env_fns) or isinstance(env_fns, (str, Mapping)):
        text = f"env_fns must be a sequence of callables, got {type(env_fns).__name__}"
        raise TypeError(text + hint(env_fns))
    listed = list(env_fns)
    if not listed:
        raise ValueError("env_fns is empty; a pool needs at least one env")
    for i, env_fn in enumerate(listed):
        if not callable(env_fn):
            text = f"env {i}: env_fn must be callable, got {type(env_fn).__name__}"
            raise TypeError(text + hint(env_fn))
    return listed


def hint(env_fn: object) -> str:
    """Return the hint for a message if an id or an env was passed in place of an env_fn."""
    if isinstance(env_fn, str):
        return f"; envpool_py.make({env_fn!r}, num_envs) makes a pool of an id"
    is_env = not callable(env_fn) and hasattr(env_fn, "step")
    kind = type(env_fn).__name__
    return f"; pass a callable that makes a new env, such as lambda: {kind}()" if is_env else ""


def check_num_envs(num_envs: int) -> int:
    """Return ``num_envs``; raise unless it is an int, 1 or more."""
    _check_number("num_envs must be an int", num_envs, _INTEGER)
    if num_envs < 1:
        raise ValueError(f"num_envs must be 1 or more, got {num_envs}")
    return int(num_envs)


def check_wait_num(wait_num: int | None, num_envs: int, name: str = "wait_num") -> int:
    """Return ``wait_num``, 1 to ``num_envs``; None: all."""
    if wait_num is None:
        return num_envs
    _check_number(f"{name} must be an int or None", wait_num, _INTEGER)
    if not 1 <= wait_num <= num_envs:
        raise ValueError(f"{name} should be in [1, {num_envs}], but got {wait_num}")
    return int(wait_num)


def check_timeout(name: str, timeout: float | None) -> float | None:
    """Return ``timeout`` in seconds, positive, or None."""
    if timeout is None:
        return None
    _check_number(f"{name} must be seconds or None", timeout, _NUMBER)
    if not timeout > 0:
        raise ValueError(f"{name} must be positive, got {timeout}")
    return float(timeout)


def check_count(name: str, value: int | None) -> int | None:
    """Return ``value``, an int of 1 or more, or None."""
    if value is None:
        return None
    _check_number(f"{name} must be an int or None", value, _INTEGER)
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    return int(value)


def check_worker_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a worker class; check those that are numbers."""
    check_foreign(options)
    checked = dict(options)
    for name in options.keys() & {"num_processes", "num_threads", "step_timeout"}:
        check = check_timeout if name == "step_timeout" else check_count
        checked[name] = check(name, options[name])
    return checked


def check_autoreset_mode(mode: str | gym.vector.AutoresetMode | None) -> str | None:
    """Return the mode as None, ``"next_step"`` or ``"same_step"``."""
    if isinstance(mode, gym.vector.AutoresetMode):
        return next((name for name, known in AUTORESET_MODES.items() if known is mode), None)
    if mode not in (None, NEXT_STEP, SAME_STEP):
        raise ValueError(f"autoreset_mode must be None, 'next_step' or 'same_step', got {mode!r}")
    return mode


def check_resets(reset_fn: ResetFn | None, validate: str, *, episode_seeds: bool) -> None:
    """Check ``reset_fn``, which cannot be combined with ``episode_seeds``, and ``validate``."""
    if reset_fn is not None and not callable(reset_fn):
        raise TypeError(f"reset_fn must be callable, got {type(reset_fn).__name__}")
    if reset_fn is not None and episode_seeds:
        raise ValueError("episode_seeds and reset_fn both seed every reset; pass one of them")
    if validate not in (checks.FIRST, checks.ALWAYS, checks.OFF):
        raise ValueError(f"validate must be 'first', 'always' or 'off', got {validate!r}")


def check_record(path: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of a record, whose file must not exist; None: no record."""
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"record must be the path of a file, got {type(path).__name__}")
    if os.path.lexists(path):
        raise FileExistsError(f"record: {path} exists and is not overwritten; pass another path")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"record: {Path(path).parent} is no directory; create it first")
    return Path(path)


def check_policy(
    on_error: str,
    max_restarts: int | None,
    restart_backoff: float,
    on_restart: Callable[[int, EnvError], object] | None,
) -> Policy | None:
    """Return how envs that fail are recreated; None if they are not."""
    if on_error not in ("raise", "restart"):
        raise ValueError(f"on_error must be 'raise' or 'restart', got {on_error!r}")
    max_restarts = check_count("max_restarts", max_restarts)
    _check_number("restart_backoff must be seconds", restart_backoff, _NUMBER)
    if not restart_backoff >= 0:
        raise ValueError(f"restart_backoff must be 0 or more, got {restart_backoff}")
    if on_restart is not None and not callable(on_restart):
        raise TypeError(f"on_restart must be callable, got {type(on_restart).__name__}")
    if on_error != "raise":
        return Policy(max_restarts, float(restart_backoff), on_restart)
    if on_restart is not None:
        raise ValueError("on_restart is never called with on_error='raise'; pass 'restart'")
    return None


def common_space(name: str, own: Sequence[gym.Space[Any] | None]) -> gym.Space[Any] | None:
    """Return the space that all envs have; ValueError if two differ."""
    for i, space in enumerate(own):
        if space != own[0]:
            raise ValueError(f"env {i}: {name} is {space}, but that of env 0 is {own[0]}")
    return own[0]


def make_workers(
    worker_fn: Callable[[Callable[[], Any]], EnvWorker],
    env_fns: Sequence[Callable[[], Any]],
    workers: list[EnvWorker],
) -> None:
    """Append one worker per env, all of one class; an error of an env_fn names the env."""
    for i, env_fn in enumerate(env_fns):
        try:
            worker = worker_fn(env_fn)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise env_error(error, i, "env_fn") from error
        if not isinstance(worker, EnvWorker):
            raise TypeError(f"worker_fn must return an EnvWorker, got {type(worker).__name__}")
        workers.append(worker)
        if type(worker) is not type(workers[0]):
            raise TypeError(
                f"env {i}: worker_fn returned {type(worker).__name__}, but"
                f" {type(workers[0]).__name__} for env 0; all workers of a pool are of one class"
            )


def reset_requests(
    ids: Sequence[int], seed: Seed, options: Options, kwargs: Mapping[str, Any]
) -> list[Request]:
    """Return one reset request per id, each with its own seed and options."""
    if seed is None and options is None and not kwargs:
        return [_RESET] * len(ids)
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
        own = dict(kwargs)
        if one_seed is not None:
            own["seed"] = one_seed
        if one is not None:
            own["options"] = dict(one)
        requests.append(Request("reset", kwargs=own))
    return requests
