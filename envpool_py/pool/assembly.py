"""Put the parts of a pool together: the options of its executors, recovery, and recording."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import seeding
from envpool_py.engine import asking, recreation
from envpool_py.engine.recovery import Policy, Recovery
from envpool_py.env import checks
from envpool_py.env.executor import ResetFn
from envpool_py.env.request import Request
from envpool_py.record.recorder import Recorder
from envpool_py.worker.workers import SubprocEnvWorker


def assemble(
    pool: Any,
    policy: Policy | None,
    record: Path | None,
    reset_fn: ResetFn | None,
    options: dict[str, Any],
) -> None:
    """Configure workers and executors, and add recovery and recording to the engine.

    ``policy`` is None if failed envs are not recreated, ``record`` is None if nothing is recorded.
    ``options``: the options of the pool that a record stores.
    """
    engine, autoreset_mode, validate = pool.engine, options["autoreset_mode"], options["validate"]

    def ask(i: int, request: Request) -> Any:
        return asking.ask(engine, np.array([i], dtype=np.intp), [request])[0]

    for i, worker in enumerate(pool.workers):
        if isinstance(worker, SubprocEnvWorker):
            worker.join(functools.partial(ask, i), functools.partial(engine.hosts.of, i))
    roots = seeding.per_env(
        np.random.SeedSequence() if options["episode_seeds"] else None, range(pool.env_num)
    )
    has_schedule = options["episode_seeds"] or reset_fn is not None
    if has_schedule or autoreset_mode is not None or validate != checks.FIRST:
        common = {"autoreset_mode": autoreset_mode, "reset_fn": reset_fn, "validate": validate}
        if reset_fn is not None and record is not None:
            common["tell_asked"] = True  # only if needed: a custom worker may not accept it
        recreation.configure(
            engine,
            [
                Request("configure", kwargs={"env_id": i, "root": root, **common})
                for i, root in enumerate(roots)
            ],
        )
    if record is not None:
        facts = {
            **options,
            "pool": type(pool).__name__,
            "num_envs": pool.env_num,
            "roots": roots,
            "reset_fn": reset_fn is not None,
        }
        engine.observers.append(Recorder(engine.block, record, facts))
    engine.places.see(range(pool.env_num))
    if policy is not None:
        engine.recovery = Recovery(engine, policy, autoreset_mode)
    if not options["reset_first"]:
        engine.states.take_as_reset()
