"""SuperSuit's vector envs, with agents as sub-envs; envs are reset in the step that ends them."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from envpool_py.bench.job import Job, Running

_supersuit = importlib.import_module("supersuit")


def inside(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(env_fns, 0, batches)


def processes(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, each with its share of the envs."""
    return _run(env_fns, job.num_processes, batches)


def _run(env_fns: list[Any], num_cpus: int, batches: list[Any]) -> Running:
    one = _supersuit.pettingzoo_env_to_vec_env_v1(env_fns[0]())
    pool = _supersuit.concat_vec_envs_v1(one, len(env_fns), num_cpus, base_class="gymnasium")
    pool.reset(seed=0)
    actions = itertools.cycle([batch.reshape(-1) for batch in batches])
    return Running(lambda: len(pool.step(next(actions))[1]), pool.close)
