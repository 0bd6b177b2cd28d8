"""PufferLib's vector envs; an env that has ended spends its next step on its reset."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from envpool_py.bench.job import Job, Running

_vector = importlib.import_module("pufferlib.vector")
_emulation = importlib.import_module("pufferlib.emulation")


def serial(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(_make(env_fns, backend=_vector.Serial), batches)


def multiprocessing(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """One process less than there are cores: they and the caller all wait busily.

    A batch is of whole processes: partial batches take as many as there are in it, and are handed
    out in turn.
    """
    num_envs = len(env_fns)
    least = -(-num_envs // job.wait_num) if job.wait_num else max(1, job.num_processes - 1)
    num_workers = next(n for n in range(least, num_envs + 1) if num_envs % n == 0)
    pool = _make(
        env_fns,
        backend=_vector.Multiprocessing,
        num_workers=num_workers,
        batch_size=job.wait_num or num_envs,
        overwork=True,
    )
    return _run(pool, batches)


def _make(env_fns: list[Any], **options: Any) -> Any:
    creators = [functools.partial(_emulated, env_fn) for env_fn in env_fns]
    return _vector.make(
        creators,
        env_args=[[]] * len(env_fns),
        env_kwargs=[{}] * len(env_fns),
        num_envs=len(env_fns),
        **options,
    )


def _emulated(env_fn: Callable[[], Any], buf: Any = None, seed: int = 0) -> Any:
    return _emulation.GymnasiumPufferEnv(env_creator=env_fn, buf=buf, seed=seed)


def _run(pool: Any, batches: list[Any]) -> Running:
    pool.async_reset(0)
    ids = pool.recv()[5]
    actions = itertools.cycle(batches)
    # Whose next row is that of a reset: with partial batches the first rows of the others too.
    has_ended = np.ones(len(batches[0]), bool)
    has_ended[ids] = False

    def advance() -> int:
        nonlocal ids
        pool.send(next(actions)[: len(ids)])
        _, _, terminated, truncated, _, ids, _ = pool.recv()
        steps = len(ids) - int(np.count_nonzero(has_ended[ids]))
        has_ended[ids] = terminated | truncated
        return steps

    return Running(advance, pool.close)
