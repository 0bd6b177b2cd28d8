"""AgileRL's vector env, a process per env, which resets an env in the step that ends it."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from envpool_py.bench.job import Job, Running

_vector = importlib.import_module("agilerl.vector.pz_async_vec_env")


def async_(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env, observations in shared memory."""
    pool = _vector.AsyncPettingZooVecEnv(env_fns)
    pool.reset(seed=0)
    agents = pool.possible_agents
    actions = itertools.cycle([dict(zip(agents, batch.T, strict=True)) for batch in batches])

    def advance() -> int:
        rewards = pool.step(next(actions))[1]
        return sum(map(len, rewards.values()))

    return Running(advance, pool.close)
