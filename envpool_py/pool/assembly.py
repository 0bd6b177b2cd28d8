"""Put the parts of a pool together: the options of its executors, recovery, and recording."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import seeding
from envpool_py.engine import asking, recreation
from envpool_py.engine.recovery import Recovery
from envpool_py.env.options import EnvOptions, Options
from envpool_py.env.request import Request
from envpool_py.record.recorder import Recorder
from envpool_py.worker.workers import SubprocEnvWorker


def assemble(pool: Any, options: Options, named_env: dict[str, Any] | None) -> None:
    """Configure workers and executors, and add recovery and recording to the engine.

    ``named_env``: what a record stores of the env_fns.
    """
    engine = pool.engine

    def ask(i: int, request: Request) -> Any:
        return asking.ask(engine, np.array([i], dtype=np.intp), [request])[0]

    for i, worker in enumerate(pool.workers):
        if isinstance(worker, SubprocEnvWorker):
            worker.join(functools.partial(ask, i), functools.partial(engine.hosts.of, i))
    entropy = np.random.SeedSequence() if options.env.episode_seeds else None
    roots = seeding.per_env(entropy, range(pool.env_num))
    if options.env != EnvOptions():
        recreation.configure(
            engine,
            [
                Request("configure", (options.env,), {"env_id": i, "root": root})
                for i, root in enumerate(roots)
            ],
        )
    if options.pool.record is not None:
        facts = {
            "autoreset_mode": options.env.autoreset_mode,
            "episode_seeds": bool(options.env.episode_seeds),
            "columns": options.pool.columns,
            "reset_first": options.pool.reset_first,
            "validate": options.env.validate,
            "on_error": options.recovery.on_error,
            "env": named_env,
            "pool": type(pool).__name__,
            "num_envs": pool.env_num,
            "roots": roots,
        }
        engine.observers.append(Recorder(engine.block, Path(options.pool.record), facts))
    engine.flight.positions.mark_returned(range(pool.env_num))
    if options.recovery.on_error == "restart":
        engine.flight.recovery = Recovery(engine, options.recovery, options.env.autoreset_mode)
    if not options.pool.reset_first:
        engine.states.mark_as_reset()
