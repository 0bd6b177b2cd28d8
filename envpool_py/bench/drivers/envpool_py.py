"""Our own pools."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from envpool_py.bench.job import Job, Running

# Observations as Gymnasium and SB3 return them: one array for each leaf.
_OPTIONS: dict[str, Any] = {"autoreset_mode": "same_step", "columns": True}


def dummy(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    pool = DummyVectorEnv(env_fns, job.wait_num, **_OPTIONS)
    return _run(pool, batches)


def subproc(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, rows in shared memory, by ``SubprocVectorEnv``."""
    pool = SubprocVectorEnv(env_fns, job.wait_num, num_processes=job.num_processes, **_OPTIONS)
    return _run(pool, batches)


def subproc_each(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, rows in shared memory, by ``SubprocVectorEnv``."""
    pool = SubprocVectorEnv(env_fns, job.wait_num, **_OPTIONS)
    return _run(pool, batches)


def shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, rows in shared memory."""
    pool = ShmemVectorEnv(env_fns, job.wait_num, num_processes=job.num_processes, **_OPTIONS)
    return _run(pool, batches)


def shmem_views(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, rows in shared memory and not copied from there."""
    pool = ShmemVectorEnv(
        env_fns, job.wait_num, num_processes=job.num_processes, copy=False, **_OPTIONS
    )
    return _run(pool, batches)


def shmem_caller(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, the caller's own one of them, rows in shared memory."""
    return _run(_with_caller(job, env_fns), batches)


def shmem_caller_views(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """As ``shmem_caller``, and rows are not copied from the shared memory."""
    return _run(_with_caller(job, env_fns, copy=False), batches)


def _with_caller(job: Job, env_fns: list[Any], **options: Any) -> BaseVectorEnv:
    processes = max(job.num_processes - 1, 1)
    return ShmemVectorEnv(
        env_fns,
        job.wait_num,
        num_processes=processes,
        caller_steps=True,
        **_OPTIONS,
        **options,
    )


def shmem_each(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, rows in shared memory."""
    pool = ShmemVectorEnv(env_fns, job.wait_num, **_OPTIONS)
    return _run(pool, batches)


def _run(pool: BaseVectorEnv, batches: list[Any]) -> Running:
    pool.reset(seed=0)
    actions = itertools.cycle(batches)
    if not pool.is_async:

        def advance() -> int:
            return len(pool.step(next(actions))[1])

        return Running(advance, pool.close)

    ids = np.arange(len(pool))

    def advance_some() -> int:
        nonlocal ids
        info = pool.step(next(actions)[: len(ids)], ids)[4]
        ids = np.array([each["env_id"] for each in info])
        return len(ids)

    return Running(advance_some, pool.close)
