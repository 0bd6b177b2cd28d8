"""Where envs can run: every backend, under every start method, one env per process or several."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
)


class Place(NamedTuple):
    """One row of the table: a pool class, its options, and how many envs to try it with."""

    pool: type[BaseVectorEnv]
    options: dict[str, Any]
    num_envs: int

    def __call__(self, env_fns, **options):
        return self.pool(env_fns, **self.options, **options)


PLACES = {
    # name                       pool              options                                      envs
    "dummy": Place(DummyVectorEnv, {}, 3),
    "subproc-fork": Place(SubprocVectorEnv, {"context": "fork"}, 3),
    "shmem-fork": Place(ShmemVectorEnv, {"context": "fork"}, 3),
    "shmem-fork-packed": Place(ShmemVectorEnv, {"context": "fork", "num_processes": 2}, 3),
    "shmem-fork-caller": Place(
        ShmemVectorEnv, {"context": "fork", "num_processes": 1, "caller_steps": True}, 3
    ),
    "thread": Place(ThreadVectorEnv, {}, 3),
    "thread-packed": Place(ThreadVectorEnv, {"num_threads": 2}, 3),
    "shmem-forkserver": Place(ShmemVectorEnv, {"context": "forkserver"}, 2),
    "shmem-forkserver-packed": Place(
        ShmemVectorEnv, {"context": "forkserver", "num_processes": 2}, 3
    ),
    "shmem-spawn": Place(ShmemVectorEnv, {"context": "spawn"}, 2),
    "shmem-spawn-packed": Place(ShmemVectorEnv, {"context": "spawn", "num_processes": 1}, 3),
}
"""`SubprocVectorEnv` and `ShmemVectorEnv` are the same backend under two names: one place of the
former is enough."""

QUICK = ("dummy", "subproc-fork", "shmem-fork-packed", "shmem-fork-caller", "thread")
"""The places where envs are stepped differently: in the caller's process, in a process each, in
a shared process, both, and in threads. They start in some milliseconds."""

PROCESSES = ("subproc-fork", "shmem-fork-packed")
"""As QUICK, without the pools that have envs in the caller's process."""

BACKENDS = ("dummy", "shmem-fork-packed", "thread")
"""One place of each backend: for what does not depend on how envs are placed."""

LOCAL = BACKENDS
"""As BACKENDS, for what cannot differ on Ray: these tests do not run there."""


def paired(*columns):
    """Return rows in which each value of each column is once or more: as many as the longest has.

    Ray's tests have one place, so that a place may come with some values of the others only.
    """
    longest = max(map(len, columns))
    return [tuple(column[n % len(column)] for column in columns) for n in range(longest)]


def slow(*values):
    """Return these values of a parameter, each one or a tuple, with the mark of the slow tier."""
    return _marked(pytest.mark.slow, values)


def soak(*values):
    """Return these values with the mark of a soak: the cases of a table that a few stand for."""
    return _marked(pytest.mark.soak, values)


def _marked(mark, values):
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=mark) for value in tuples]
