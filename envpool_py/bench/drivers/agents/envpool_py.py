"""Our own pools of PettingZoo envs; in turns they are stepped as Tianshou's are, and reset so."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv
from envpool_py.bench.games import GAMES, legal
from envpool_py.bench.job import Job, Running
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv, SB3MultiAgentVecEnv

_SAME_STEP = "same_step"


def parallel_dummy(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    pool = ParallelVectorEnv(env_fns, "dummy", job.wait_num, autoreset_mode=_SAME_STEP)
    return _run_parallel(pool, batches)


def parallel_shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core."""
    pool = ParallelVectorEnv(
        env_fns,
        wait_num=job.wait_num,
        autoreset_mode=_SAME_STEP,
        num_processes=job.num_processes,
    )
    return _run_parallel(pool, batches)


def _run_parallel(pool: ParallelVectorEnv, batches: list[Any]) -> Running:
    pool.reset(seed=0)
    agents = pool.possible_agents
    width = len(agents)
    actions = itertools.cycle([dict(zip(agents, batch.T, strict=True)) for batch in batches])
    if not pool.is_async:

        def advance() -> int:
            return width * len(pool.step(next(actions))[4]["env_id"])

        return Running(advance, pool.close)

    ids = np.arange(len(pool))

    def advance_some() -> int:
        nonlocal ids
        some = {agent: column[: len(ids)] for agent, column in next(actions).items()}
        ids = pool.step(some, ids)[4]["env_id"]
        return width * len(ids)

    return Running(advance_some, pool.close)


def sb3_shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, agents as the envs of a VecEnv."""
    pool = SB3MultiAgentVecEnv(env_fns, num_processes=job.num_processes)
    pool.seed(0)
    pool.reset()
    actions = itertools.cycle([batch.reshape(-1) for batch in batches])
    return Running(lambda: len(pool.step(next(actions))[1]), pool.close)


def sb3_dummy(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process, agents as the envs of a VecEnv."""
    pool = SB3MultiAgentVecEnv(env_fns, "dummy")
    pool.seed(0)
    pool.reset()
    actions = itertools.cycle([batch.reshape(-1) for batch in batches])
    return Running(lambda: len(pool.step(next(actions))[1]), pool.close)


def turns_dummy(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process, rows as Tianshou has them."""
    pool = DummyVectorEnv(_turns(env_fns), job.wait_num)
    return _run_turns(job, pool, batches)


def turns_shmem(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, rows as Tianshou has them."""
    pool = ShmemVectorEnv(_turns(env_fns), job.wait_num, num_processes=job.num_processes)
    return _run_turns(job, pool, batches)


def _turns(env_fns: list[Any]) -> list[Any]:
    return [functools.partial(_in_turns, env_fn) for env_fn in env_fns]


def _in_turns(env_fn: Any) -> PettingZooEnv:
    return PettingZooEnv(env_fn())


def _run_turns(job: Job, pool: BaseVectorEnv, batches: list[Any]) -> Running:
    seen, _ = pool.reset(seed=0)
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
