"""Gymnasium's vector envs, with the autoreset they have unless told otherwise."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.bench.job import Job, Running


def sync(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(gym.vector.SyncVectorEnv(env_fns), batches)


def async_(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, observations in shared memory."""
    return _run(gym.vector.AsyncVectorEnv(env_fns), batches)


def _run(pool: gym.vector.VectorEnv[Any, Any, Any], batches: list[Any]) -> Running:
    pool.reset(seed=0)
    actions = itertools.cycle(batches)
    resets = 0  # of the next batch: an env that has ended spends a step on its reset

    def advance() -> int:
        nonlocal resets
        _, reward, terminated, truncated, _ = pool.step(next(actions))
        steps = len(reward) - resets
        resets = int(np.count_nonzero(terminated | truncated))
        return steps

    return Running(advance, pool.close)
