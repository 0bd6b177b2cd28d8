"""Stable-Baselines3's VecEnvs, which reset an env in the step that ends its episode."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from envpool_py.bench.job import Job, Running

_vec_env = importlib.import_module("stable_baselines3.common.vec_env")


def dummy(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(_vec_env.DummyVecEnv(env_fns), batches)


def subproc(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env.

    Forked, as everybody else's: with its own default each process would first import torch.
    """
    return _run(_vec_env.SubprocVecEnv(env_fns, start_method="fork"), batches)


def _run(pool: Any, batches: list[Any]) -> Running:
    pool.seed(0)
    pool.reset()
    actions = itertools.cycle(batches)

    def advance() -> int:
        return len(pool.step(next(actions))[1])

    return Running(advance, pool.close)
