"""The options of pools. Each stands here once, with its default, its meaning and its check.

The values are frozen and go whole to where they act: ``ProcessOptions`` to the worker processes,
``EnvOptions`` to the executor of each env, ``RecoveryOptions`` to recovery, ``BatchOptions`` to the
pool. ``split`` makes them from keywords.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

#: The values of ``autoreset_mode``: the names of Gymnasium's modes, in lower case.
NEXT_STEP, SAME_STEP = "next_step", "same_step"
#: The values of ``validate``: check the first reset and the first step of each env; all rows; none.
FIRST, ALWAYS, OFF = "first", "always", "off"

#: The spellings of ``autoreset_mode``: ours, and Gymnasium's.
_OurModes: TypeAlias = Literal["next_step", "same_step", "disabled"]
_Names: TypeAlias = Literal["NEXT_STEP", "SAME_STEP", "DISABLED"]
_Values: TypeAlias = Literal["NextStep", "SameStep", "Disabled"]
Autoreset: TypeAlias = _OurModes | _Names | _Values | gym.vector.AutoresetMode | None
Validate: TypeAlias = Literal["first", "always", "off"]
OnError: TypeAlias = Literal["raise", "restart"]
#: Worker processes: so many; as many as is best; one for each env.
NumProcesses: TypeAlias = int | Literal["auto"] | None
#: How worker processes are started; None: as multiprocessing does.
Context: TypeAlias = Literal["fork", "spawn", "forkserver"] | BaseContext | None
Backend: TypeAlias = Literal["dummy", "subproc", "shmem", "thread", "ray"]

#: Maps (env_id, episode) to the (seed, options) of the reset that begins the episode.
ResetFn: TypeAlias = Callable[[int, int], tuple[int | None, dict[str, Any] | None]]

INTEGER = (int, np.integer)
NUMBER = (int, float, np.number)


def check_number(what: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raise a TypeError unless ``value`` is of one of these types and no bool."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{what}, got {value!r}")


def check_count(name: str, value: int | None) -> int | None:
    """Return ``value``, an int of 1 or more, or None."""
    if value is None:
        return None
    check_number(f"{name} must be an int or None", value, INTEGER)
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    return int(value)


def check_timeout(name: str, timeout: float | None) -> float | None:
    """Return ``timeout`` in seconds, positive, or None."""
    if timeout is None:
        return None
    check_number(f"{name} must be seconds or None", timeout, NUMBER)
    if not timeout > 0:
        raise ValueError(f"{name} must be positive, got {timeout}")
    return float(timeout)


def autoreset_mode_of(mode: object) -> str | None:
    """Return ``NEXT_STEP``, ``SAME_STEP`` or None for any spelling; else ValueError.

    The spellings: ours, Gymnasium's enum and its names and values, whatever their case.
    """
    name = getattr(mode, "name", mode)
    known = {"nextstep": NEXT_STEP, "samestep": SAME_STEP, "disabled": None}
    if mode is None:
        return None
    if not isinstance(name, str) or (key := name.replace("_", "").lower()) not in known:
        text = "autoreset_mode must be 'next_step', 'same_step', 'disabled' or None"
        raise ValueError(f"{text}, got {mode!r}")
    return known[key]


def _convert_fields(options: Any, **checks: Callable[[str, Any], Any]) -> None:
    """Replace the value of each field by what its check returns for name and value."""
    for name, check in checks.items():
        object.__setattr__(options, name, check(name, getattr(options, name)))


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """The options of a pool's batches, and of what it measures and records.

    Args:
        strict_timeout: after ``timeout`` a batch may be empty, with its usual shapes and dtypes.
        columns: True: Dict and Tuple observations are a dict or tuple of arrays ``(k, ...)``.
            False: they are an object array ``(k,)``, one dict or tuple per env.
        copy: False: a batch of all envs in order is a view of shared memory, and a row of it is
            valid only until its env is stepped or reset again; any other batch is a copy.
        reset_first: False: a step before the first reset reaches the env and is no error.
        measure: count and time steps and resets, for ``stats()``; about a microsecond per step.
        record: a new file for ``envpool_py.replay``, with all requests and result checksums; not
            with ``reset_fn``.
    """

    strict_timeout: bool = False
    columns: bool = False
    copy: bool = True
    reset_first: bool = True
    measure: bool = False
    record: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        path = self.record
        if path is None:
            return
        if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
            raise TypeError(f"record must be the path of a file, got {type(path).__name__}")
        if os.path.lexists(path):
            hint = "remove it, or pass a new name for each run"
            raise FileExistsError(f"record: {path} exists and is not overwritten; {hint}")
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"record: {Path(path).parent} is no directory; create it first")


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """The options of each env, for its executor.

    Args:
        autoreset_mode: ``"next_step"``, ``"same_step"`` or a ``gymnasium.vector.AutoresetMode``:
            as in Gymnasium, whose spellings are taken too. None or ``"disabled"``: call ``reset``
            yourself; a step after the end of an episode reaches the env and warns once.
        episode_seeds: seed every reset from the env's seed and the number of the episode.
        reset_fn: ``(env_id, episode) -> (seed, options)``, called for every reset, automatic or
            not, that has neither a seed nor options. Its result must depend on its arguments alone:
            every worker process has a copy of the function, and of an iterator in it.
        recycle: recreate each env after this number of episodes, at its reset, for simulators that
            leak; the new env is seeded as after a restart. None: never.
        validate: which rows are checked for NaN, bounds and ``observation_space.contains``.
            ``"first"``: the first reset and the first step of each env, with a warning.
            ``"always"``: every row, with an error of that env. ``"off"``: none.
    """

    autoreset_mode: Autoreset = None
    episode_seeds: bool = False
    reset_fn: ResetFn | None = None
    recycle: int | None = None
    validate: Validate = "first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "autoreset_mode", autoreset_mode_of(self.autoreset_mode))
        _convert_fields(self, recycle=check_count)
        if self.reset_fn is not None and not callable(self.reset_fn):
            raise TypeError(f"reset_fn must be callable, got {type(self.reset_fn).__name__}")
        if self.reset_fn is not None and self.episode_seeds:
            raise ValueError("episode_seeds and reset_fn both seed every reset; pass one of them")
        if self.validate not in (FIRST, ALWAYS, OFF):
            raise ValueError(f"validate must be 'first', 'always' or 'off', got {self.validate!r}")


@dataclasses.dataclass(frozen=True)
class RecoveryOptions:
    """The options for envs that fail.

    Args:
        on_error: ``"raise"``: an env's error is raised in the caller. ``"restart"``: the env is
            recreated, in a new process if its process has ended; the row of the lost step is
            truncated, with the last observation, reward 0 and the error's text in
            ``info["env_error"]``.
        max_restarts: restarts of an env in a row before its error is raised: without a completed
            episode between them. None: no limit.
        restart_backoff: seconds that an env waits before its second restart in a row, doubled for
            each later one, at most 5; a whole batch waits for all of its envs.
        on_restart: ``(env_id, error)``, called when an env has been recreated, maybe during its
            reset; it must not use the pool.
    """

    on_error: OnError = "raise"
    max_restarts: int | None = 10
    restart_backoff: float = 0.1
    on_restart: Callable[[int, Any], object] | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "restart"):
            raise ValueError(f"on_error must be 'raise' or 'restart', got {self.on_error!r}")
        _convert_fields(self, max_restarts=check_count)
        check_number("restart_backoff must be seconds", self.restart_backoff, NUMBER)
        if not self.restart_backoff >= 0:
            raise ValueError(f"restart_backoff must be 0 or more, got {self.restart_backoff}")
        if self.on_restart is not None and not callable(self.on_restart):
            raise TypeError(f"on_restart must be callable, got {type(self.on_restart).__name__}")
        given = self.on_restart is not None or self.max_restarts != type(self).max_restarts
        if self.on_error == "raise" and given:
            raise ValueError("max_restarts and on_restart need on_error='restart'")


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
    """The options of worker processes.

    Args:
        threads_per_process: threads that each process may compute with; None: no limit.
        affinity: keep each process on one core.
        step_timeout: seconds that a request to an env may take before its process is killed; None:
            no timeout.
        caller_steps: step the last envs in this process, without isolation: as many as a worker
            process has, or half as many with ``wait_num`` or ``timeout``. None: as
            ``envpool_py.make`` finds best; in the pool classes the same as False.
        fresh_process: recreate an env in a new process after an exception, at ``recycle`` and by
            ``restart``, for simulators that leak or can start only once per process; not with
            several envs per process, nor with ``recycle`` in same_step mode. False: in its process,
            which is faster.
        num_processes: the number of worker processes, each with an equal share of the envs. None:
            one per env.
    """

    threads_per_process: int | None = 1
    affinity: bool = False
    step_timeout: float | None = None
    caller_steps: bool | None = False
    fresh_process: bool = False
    num_processes: int | None = None

    def __post_init__(self) -> None:
        _convert_fields(self, threads_per_process=check_count, step_timeout=check_timeout)
        _convert_fields(self, num_processes=check_count)
        if self.caller_steps and self.fresh_process:
            raise ValueError("fresh_process: the caller has one process; pass caller_steps=False")
        if self.caller_steps and self.step_timeout is not None:
            text = "an env that the caller steps cannot be killed; pass caller_steps=False"
            raise ValueError(f"step_timeout: {text}")

    def given(self) -> list[str]:
        fields = dataclasses.fields(self)
        return [one.name for one in fields if getattr(self, one.name) != one.default]


class AllOptions(NamedTuple):
    """All options of a pool."""

    pool: BatchOptions
    env: EnvOptions
    recovery: RecoveryOptions
    process: ProcessOptions


CLASSES: tuple[type, ...] = (BatchOptions, EnvOptions, RecoveryOptions, ProcessOptions)


def split(keywords: Mapping[str, Any]) -> AllOptions:
    """Make the options from these keywords, all of which are options.

    Raises:
        TypeError, ValueError, OSError: an option is wrong.
    """
    options = AllOptions(
        *(cls(**{k: v for k, v in keywords.items() if k in cls.__annotations__}) for cls in CLASSES)
    )
    if options.pool.record is not None and options.env.reset_fn is not None:
        text = "record: not possible with reset_fn, whose results it cannot hold; use episode_seeds"
        raise ValueError(f"{text}=True, or pass seeds and options to reset()")
    if options.env.recycle is not None and options.process.fresh_process:
        if options.pool.record is not None:
            raise ValueError("record: not possible with recycle and fresh_process; drop one")
        if options.env.autoreset_mode == SAME_STEP:
            raise ValueError(
                "recycle: not possible with fresh_process in same_step mode, where the row that"
                " ends an episode would wait for a new process; pass autoreset_mode='next_step'"
            )
    return options
