"""Tianshou's pools of its ``PettingZooEnv``; the caller resets envs that have ended."""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import numpy as np

from envpool_py.bench.games import GAMES, legal
from envpool_py.bench.job import Job, Running

_env = importlib.import_module("tianshou.env")


def dummy(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(job, _env.DummyVectorEnv(_turns(env_fns), wait_num=job.wait_num), batches)


def subproc(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, rows through pipes."""
    return _run(job, _env.SubprocVectorEnv(_turns(env_fns), wait_num=job.wait_num), batches)


def shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, observations in shared memory."""
    return _run(job, _env.ShmemVectorEnv(_turns(env_fns), wait_num=job.wait_num), batches)


def _turns(env_fns: list[Any]) -> list[Any]:
    return [functools.partial(_in_turns, env_fn) for env_fn in env_fns]


def _in_turns(env_fn: Any) -> Any:
    return _env.PettingZooEnv(env_fn())


def _run(job: Job, pool: Any, batches: list[Any]) -> Running:
    seen, _ = pool.reset()
    actions = itertools.cycle(batches)
    masked = GAMES[job.env].masked
    ids = np.arange(len(pool))

    def advance() -> int:
        nonlocal ids
        some = next(actions)[: len(ids)]
        if masked:
            masks = [seen[i]["mask"] for i in ids]
            some = [legal(mask, number) for mask, number in zip(masks, some, strict=True)]
        obs, _, terminated, truncated, info = pool.step(some, ids)
        if pool.is_async:
            ids = np.array([each["env_id"] for each in info])
        seen[ids] = obs
        ended = ids[terminated | truncated]
        if len(ended):
            seen[ended] = pool.reset(ended)[0]
        return len(ids)

    return Running(advance, pool.close)
