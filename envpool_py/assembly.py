"""Put the parts of a pool together: what its executors are told, recovery, and recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envpool_py import checks, recreation, seeding
from envpool_py.engine import Engine
from envpool_py.record.history import History
from envpool_py.record.recorder import Recorder
from envpool_py.recovery import Policy, Recovery
from envpool_py.worker.base import Request
from envpool_py.worker.executor import ResetFn


class EpisodeOptions(NamedTuple):
    """How episodes begin and are looked at, and what is kept of them.

    ``autoreset``: None, ``"next_step"`` or ``"same_step"``. ``episode_seeds``, ``reset_fn``,
    ``validate``: as for a pool. ``replay``: failed envs are restored. ``record``: the file of a
    record; None for none.
    """

    autoreset: str | None
    episode_seeds: bool
    reset_fn: ResetFn | None
    validate: str
    replay: bool
    record: Path | None


def assemble(
    engine: Engine, options: EpisodeOptions, policy: Policy | None, header: dict[str, Any]
) -> None:
    """Tell the executors what is not the default, and add what watches them.

    Args:
        engine: of the pool; its envs are made.
        options: of the pool.
        policy: how envs are recreated; None where they are not.
        header: further facts of the pool, for a record.
    """
    num_envs = len(engine.all_ids)
    roots: list[int | None] = [None] * num_envs
    if options.episode_seeds:
        roots = seeding.per_env(np.random.SeedSequence(), range(num_envs))
    plain = options.autoreset is None and options.validate == checks.FIRST
    if not plain or options.episode_seeds or options.reset_fn is not None:
        watched = options.replay or options.record is not None
        # Only where it is needed: a custom worker may not know of it.
        tell = {"tell_asked": True} if watched and options.reset_fn is not None else {}
        recreation.configure(
            engine,
            [
                Request(
                    "configure",
                    kwargs={
                        "env_id": i,
                        "autoreset_mode": options.autoreset,
                        "root": roots[i],
                        "reset_fn": options.reset_fn,
                        "validate": options.validate,
                        **tell,
                    },
                )
                for i in range(num_envs)
            ],
        )
    if options.record is not None:
        facts = {
            "num_envs": num_envs,
            "autoreset_mode": options.autoreset,
            "validate": options.validate,
            "roots": roots,
            "episode_seeds": options.episode_seeds,
            "reset_fn": options.reset_fn is not None,
            **header,
        }
        engine.observers.append(Recorder(engine, options.record, facts))
    engine.places.see(range(num_envs))
    history = History(engine, options.autoreset) if options.replay else None
    if history is not None:
        engine.observers.append(history)
    if policy is not None:
        engine.recovery = Recovery(engine, policy, options.autoreset, history)
