"""Put the parts of a pool together: what its executors are told, recovery, and recording."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py import checks, seeding
from envpool_py.record.history import History
from envpool_py.record.recorder import Recorder
from envpool_py.recovery import Policy, Recovery
from envpool_py.worker.base import Request
from envpool_py.worker.executor import ResetFn
from envpool_py.worker.workers import SubprocEnvWorker

if TYPE_CHECKING:
    from envpool_py.pool import BaseVectorEnv


def assemble(
    pool: BaseVectorEnv,
    policy: Policy | None,
    record: Path | None,
    *,
    autoreset_mode: str | None,
    episode_seeds: bool,
    reset_fn: ResetFn | None,
    validate: str,
    on_error: str,
    columns: bool,
    reset_first: bool,
) -> None:
    """Configure workers and executors, and add recovery and recording to the engine.

    ``policy`` is None if envs are not recreated, ``record`` if nothing is recorded.
    """
    engine = pool.engine

    def ask(i: int, request: Request) -> Any:
        return engine.asking.ask(np.array([i], dtype=np.intp), [request])[0]

    for i, worker in enumerate(pool.workers):
        if isinstance(worker, SubprocEnvWorker):
            worker.join(functools.partial(ask, i), functools.partial(engine.hosts.of, i))
    num_envs = pool.env_num
    roots: list[int | None] = [None] * num_envs
    if episode_seeds:
        roots = seeding.per_env(np.random.SeedSequence(), range(num_envs))
    has_schedule = episode_seeds or reset_fn is not None
    if has_schedule or autoreset_mode is not None or validate != checks.FIRST:
        options: dict[str, Any] = {
            "autoreset_mode": autoreset_mode,
            "reset_fn": reset_fn,
            "validate": validate,
        }
        if reset_fn is not None and (on_error == "replay" or record is not None):
            options["tell_asked"] = True  # only where needed: a custom worker may not know it
        engine.recreation.configure(
            [
                Request("configure", kwargs={"env_id": i, "root": root, **options})
                for i, root in enumerate(roots)
            ]
        )
    if record is not None:
        facts = {
            "num_envs": num_envs,
            "autoreset_mode": autoreset_mode,
            "validate": validate,
            "roots": roots,
            "episode_seeds": episode_seeds,
            "reset_fn": reset_fn is not None,
            "pool": type(pool).__name__,
            "on_error": on_error,
            "columns": columns,
            "reset_first": reset_first,
        }
        engine.observers.append(Recorder(engine, record, facts))
    if has_schedule or policy is not None:
        engine.recreation.follow_schedule()
    history = History(engine, autoreset_mode) if on_error == "replay" else None
    if history is not None:
        engine.observers.append(history)
    if policy is not None:
        engine.recovery = Recovery(engine, policy, autoreset_mode, history)
    if not reset_first:
        engine.states.take_as_reset()
