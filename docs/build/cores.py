"""Steps per second over the number of cores: our pools, and those of three other libraries.

    python docs/build/figures.py measure cores

The script limits itself to 1, 2, 4, 8, 16 cores, as many as there are, and measures every pool in a
fresh process, in turns, for as many rounds as eight minutes allow. A case whose library is missing
is left out. It needs the packages of ``examples/benchmark/cores.txt``, which leaves out torch: only
PPO needs it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import curves
from contestants import LIBRARIES
from workloads import Workload

from envpool_py.bench.measure import MeasurementError, ask
from envpool_py.cli.tables import separated

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "cores.svg"
COUNTS = (16, 8, 4, 2, 1)

LIMIT, LONGEST = 480.0, 60.0
"""Seconds of the whole run, and of one measurement with its start."""

PER_BATCH, PER_ROW = 100e-6, 2e-6
"""CPU time of the policy, in seconds."""

OTHERS = {"gymnasium": "gymnasium-async", "sb3": "sb3-subproc", "tianshou": "tianshou-shmem"}
"""The pools of other libraries; each has one process per env."""


class Pool(NamedTuple):
    """A contestant, with so many rows in a batch, or all; ``free`` leaves a core to the policy."""

    contestant: str
    wait_num: int | None = None
    free: bool = False


class Case(NamedTuple):
    """One panel of the picture."""

    title: str
    env: str
    num_envs: int
    pools: dict[str, Pool]
    policy: tuple[float, float] = (0.0, 0.0)


PEERS = {name: Pool(contestant) for name, contestant in OTHERS.items()}
BEHIND_A_POLICY = {
    "loop": Pool("gymnasium-sync"),
    **PEERS,
    "tianshou-half": Pool("tianshou-shmem", 32),
    "ours": Pool("shmem-caller"),
    "ours-half": Pool("shmem", 32, free=True),
}
CASES = {
    "cartpole": Case("CartPole x 64", "cartpole", 64, BEHIND_A_POLICY, (PER_BATCH, PER_ROW)),
    "halfcheetah": Case(
        "HalfCheetah x 64", "halfcheetah", 64, BEHIND_A_POLICY, (PER_BATCH, PER_ROW)
    ),
    "uneven": Case("Rollouts, 64 uneven envs", "sleep", 64, {**PEERS, "ours": Pool("rollouts")}),
    "wait": Case("256 envs that wait 2 ms", "wait", 256, {**PEERS, "ours": Pool("shmem-each")}),
}
PPO = {"ppo_cartpole": "CartPole-v1", "ppo_halfcheetah": "HalfCheetah-v5"}
PPO_TITLES = {"ppo_cartpole": "PPO, CartPole x 16", "ppo_halfcheetah": "PPO, HalfCheetah x 16"}


@contextlib.contextmanager
def limited(count: int) -> Iterator[None]:
    """This process and those that it starts use so many cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def rate(case: Case, pool: Pool, count: int, seconds: float) -> float:
    """Steps per second of one pool, in a fresh process without torch."""
    per_batch, per_row = case.policy
    alone = pool.contestant == "shmem-caller" and count == 1  # the caller is the only process
    job = {
        "contestant": "dummy" if alone else pool.contestant,
        "workload": Workload(case.env, case.num_envs, pool.wait_num),
        "num_processes": max(count - pool.free, 1),
        "thinks": [per_batch],
        "per_row": per_row,
        "seconds": seconds,
        "torch": False,
    }
    one = str(ROOT / "examples" / "benchmark" / "one.py")
    (row,) = ask([sys.executable, one, json.dumps(job)], LONGEST)
    return row["steps"] / row["seconds"]


def training(env_id: str, ppo_of: Callable[[Sequence[dict[str, Any]]], dict[str, float]]) -> Any:
    """Steps per second of SB3's PPO with its own VecEnvs and with the better one of ours."""
    program = str(ROOT / "examples" / "benchmark" / "ppo.py")
    rows = ask([sys.executable, program, "--one", json.dumps([env_id, 1, 5])], LONGEST)
    found = {key.partition(".")[2]: value for key, value in ppo_of(rows).items()}
    best = max(found["caller"], found["shmem"])
    return {"loop": found["dummy"], "sb3": found["subproc"], "ours": best}


def jobs(installed: set[str], ppo_of: Any, seconds: float) -> Iterator[tuple[str, str, Any]]:
    """The case, the pools and the measurement of each job; a missing library is named."""
    mujoco = "mujoco" in installed
    for name, case in CASES.items():
        if name == "halfcheetah" and not mujoco:
            print("halfcheetah: left out, mujoco is not installed")
            continue
        for key, pool in case.pools.items():
            library = key.partition("-")[0]
            package = LIBRARIES[library][0] if library in LIBRARIES else "gymnasium"
            if package in installed:
                yield name, key, lambda n, c=case, p=pool: rate(c, p, n, seconds)
            else:
                print(f"{name}.{key}: left out, {package} is not installed")
    for name, env_id in PPO.items():
        if {"torch", "stable-baselines3"} <= installed and (mujoco or "Half" not in env_id):
            yield name, "all", lambda _, e=env_id: training(e, ppo_of)
        else:
            print(f"{name}: left out, torch, Stable-Baselines3 or mujoco is not installed")


def measured(
    ppo_of: Any, seconds: float = 1.0, limit: float = LIMIT, rounds: int = 9
) -> dict[str, float]:
    """Medians by case, pool and number of cores, and how long it took."""
    begun = time.monotonic()
    one = str(ROOT / "examples" / "benchmark" / "one.py")
    todo = [*jobs({*ask([sys.executable, one, "null"], LONGEST)}, ppo_of, seconds)]
    counts = [n for n in COUNTS if n <= len(os.sched_getaffinity(0))]
    rates: dict[str, list[float]] = defaultdict(list)
    failed: set[Any] = set()
    for turn in range(rounds):
        turned = time.monotonic()
        for job, count in itertools.product(todo, counts):
            name, pool, measure = job
            if (turn and name in PPO) or (count, job) in failed:  # PPO has rounds of its own
                continue
            what = f"{name}.{pool}.{count}"
            if time.monotonic() - begun > limit - LONGEST:
                print(f"{what}: no time is left in round {turn + 1}")
                continue
            try:
                with limited(count):
                    found = measure(count)
            except MeasurementError as error:
                failed.add((count, job))
                print(f"{what}: left out: {error}")
                continue
            for key, value in (found if name in PPO else {pool: found}).items():
                rates[f"{name}.{key}.{count}"].append(value)
                print(f"{name}.{key}.{count}: {separated(value)} steps/s", flush=True)
        now = time.monotonic()
        if now - begun + (now - turned) > limit - LONGEST:
            break
    medians = {key: median(own) for key, own in rates.items()}
    minutes = (time.monotonic() - begun) / 60
    print(f"{turn + 1} rounds in {minutes:.1f} minutes, on {counts} cores")
    return {**medians, "minutes": minutes}


NAMES = {
    "ours": "envpool_py, whole batches",
    "ours-half": "envpool_py, half batches",
    "loop": "a loop in this process",
    "gymnasium": "Gymnasium's AsyncVectorEnv",
    "sb3": "Stable-Baselines3's SubprocVecEnv",
    "tianshou": "Tianshou's ShmemVectorEnv",
    "tianshou-half": "the same, half batches",
}
COLOURS = {
    "ours": "#1f6feb #58a6ff",
    "ours-half": "#0a3069 #a5d6ff",
    "loop": "#8c959f #6e7681",
    "gymnasium": "#bc4c00 #f0883e",
    "sb3": "#1a7f37 #3fb950",
    "tianshou": "#8250df #bc8cff",
    "tianshou-half": "#bf3989 #f778ba",
}


def drawn(values: dict[str, float]) -> str:
    """The picture of these figures, as SVG."""
    counts = sorted({int(key.rpartition(".")[2]) for key in values if "." in key})
    place = {n: (k + 0.5) / len(counts) for k, n in enumerate(counts)}
    titles = {name: case.title for name, case in CASES.items()} | PPO_TITLES
    panels = []
    for name, title in titles.items():
        lines = []
        for key, text in NAMES.items():
            points = [(place[n], values.get(f"{name}.{key}.{n}")) for n in counts]
            known = [(x, value) for x, value in points if value is not None]
            lines += [curves.Curve(text, known)] if known else []
        if lines:
            panels.append(curves.Panel(title, lines, {x: str(n) for n, x in place.items()}))
    colours = {NAMES[key]: both for key, both in COLOURS.items()}
    label = "Env steps per second over the number of cores, of our pools and of three libraries"
    return curves.drawn(panels, colours, label, "number of cores; env steps per second")
