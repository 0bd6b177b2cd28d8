"""TorchRL's batched envs, which reset an env in the step that ends its episode."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

from envpool_py.bench.job import Job, Running

_torch = importlib.import_module("torch")
_envs = importlib.import_module("torchrl.envs")


def serial(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """All envs in this process."""
    return _run(_envs.SerialEnv(len(env_fns), _makers(env_fns)), batches)


def parallel(_job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per env."""
    makers = _makers(env_fns)
    return _run(_envs.ParallelEnv(len(env_fns), makers, mp_start_method="fork"), batches)


def nested(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, each with its share of the envs."""
    num_envs = len(env_fns)
    num_processes = max(n for n in range(1, job.num_processes + 1) if num_envs % n == 0)
    share = num_envs // num_processes
    makers = _makers(env_fns)
    shares = [makers[i : i + share] for i in range(0, num_envs, share)]
    pool = _envs.ParallelEnv(
        num_processes,
        [functools.partial(_envs.SerialEnv, share, each) for each in shares],
        mp_start_method="fork",
    )
    shaped = [batch.reshape(num_processes, share, *batch.shape[1:]) for batch in batches]
    return _run(pool, shaped)


def _run(pool: Any, batches: list[Any]) -> Running:
    pool.set_seed(0)
    data = pool.reset()
    actions = itertools.cycle([_torch.from_numpy(batch) for batch in batches])
    num_envs = pool.batch_size.numel()

    def advance() -> int:
        nonlocal data
        data["action"] = next(actions)
        _, data = pool.step_and_maybe_reset(data)
        return int(num_envs)

    return Running(advance, functools.partial(pool.close, raise_if_closed=False))


def async_pool(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """A process per core, each with its share of the envs, in threads."""
    num_envs = len(env_fns)
    pool = _envs.AsyncEnvPool(
        _makers(env_fns),
        backend="multiprocessing",
        exchange="auto",
        envs_per_worker=-(-num_envs // job.num_processes),
    )
    actions = itertools.cycle([_torch.from_numpy(batch) for batch in batches])
    data = pool.reset()

    def advance() -> int:
        nonlocal data
        data["action"] = next(actions)[: len(data)]
        pool.async_step_and_maybe_reset_send(data)
        rows, data = pool.async_step_and_maybe_reset_recv(min_get=job.wait_num or num_envs)
        return len(rows)

    return Running(advance, functools.partial(pool.close, raise_if_closed=False))


def _makers(env_fns: list[Any]) -> list[Callable[[], Any]]:
    return [functools.partial(_wrapped, env_fn) for env_fn in env_fns]


def _wrapped(env_fn: Callable[[], Any]) -> Any:
    return _envs.GymWrapper(env_fn(), categorical_action_encoding=True)
