"""Tianshou's vector envs; the caller resets envs that have ended."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np

from envpool_py.bench.job import Job, Running

_env = importlib.import_module("tianshou.env")


def dummy(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(_env.DummyVectorEnv(env_fns, wait_num=job.wait_num), batches)


def subproc(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, rows through pipes."""
    return _run(_env.SubprocVectorEnv(env_fns, wait_num=job.wait_num), batches)


def shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, observations in shared memory."""
    return _run(_env.ShmemVectorEnv(env_fns, wait_num=job.wait_num), batches)


def _run(pool: Any, batches: list[Any]) -> Running:
    pool.seed(0)
    pool.reset()
    actions = itertools.cycle(batches)
    ids = np.arange(len(pool))

    def advance() -> int:
        nonlocal ids
        _, _, terminated, truncated, info = pool.step(next(actions)[: len(ids)], ids)
        if pool.is_async:
            ids = np.array([each["env_id"] for each in info])
        ended = ids[terminated | truncated]
        if len(ended):
            pool.reset(ended)
        return len(ids)

    return Running(advance, pool.close)
