"""Measure the overhead of Gymnasium's and EnvPool's interfaces over a pool, and the originals.

    python faces.py [--env CartPole-v1] [--num-envs 64] [--rounds 20]

Every contestant is stepped for a moment in every round, so that other programs disturb all of them
equally. The table has the best round, in microseconds per batch. Contestants whose library is not
installed are left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np

import envpool_py
import envpool_py.envpool
from envpool_py.gymnasium import VectorEnv

SLICE = 0.1  # seconds


class Contestant(NamedTuple):
    """``make(env, num_envs)`` makes it; ``bare`` names the pool that it is a face of."""

    make: Callable[[str, int], Any]
    bare: str | None = None


def pool(env: str, num_envs: int, **options: Any) -> Any:
    """A pool, which has Gymnasium's next-step autoreset."""
    return envpool_py.make(env, num_envs, autoreset_mode="next_step", columns=True, **options)


def of_gymnasium(env: str, num_envs: int, **options: Any) -> Any:
    """Our ``VectorEnv`` over such a pool."""
    made = functools.partial(envpool_py.make, env, num_envs, **options)
    return VectorEnv(made(**VectorEnv.options({})))


def of_envpool(env: str, num_envs: int, **options: Any) -> Any:
    """EnvPool's interface over such a pool."""
    return envpool_py.envpool.make(env, num_envs=num_envs, seed=0, options=options)


def real_envpool(env: str, num_envs: int) -> Any:
    """EnvPool itself, which steps an env of its own in C++."""
    import envpool  # noqa: PLC0415 - may be missing

    return envpool.make(env, "gymnasium", num_envs=num_envs, seed=0)


def contestants() -> dict[str, Contestant]:
    """All, by name."""
    found: dict[str, Contestant] = {}
    processes = {"backend": "shmem", "num_processes": 2}
    for where, options in {"this process": {"backend": "dummy"}, "2 processes": processes}.items():
        bare = f"pool, {where}"
        found[bare] = Contestant(functools.partial(pool, **options))
        found[f"VectorEnv, {where}"] = Contestant(functools.partial(of_gymnasium, **options), bare)
        found[f"envpool face, {where}"] = Contestant(functools.partial(of_envpool, **options), bare)
    for mode in ("sync", "async"):
        make = functools.partial(gym.make_vec, vectorization_mode=mode)
        found[f"gymnasium, {mode}"] = Contestant(make)
    found["EnvPool (C++ env)"] = Contestant(real_envpool)
    return found


def measure(envs: Any, actions: np.ndarray) -> float:
    """Step for a moment; return the microseconds per batch."""
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < SLICE:
        envs.step(actions[count % len(actions)])
        count += 1
    return elapsed / count * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", metavar="FILE", help="write the microseconds")
    args = parser.parse_args()
    space = gym.make(args.env).action_space
    actions = np.array([[space.sample() for _ in range(args.num_envs)] for _ in range(50)])
    table, running = contestants(), {}
    for name, contestant in table.items():
        try:
            running[name] = contestant.make(args.env, args.num_envs)
        except ImportError:
            print(f"{name}: not installed", file=sys.stderr)
            continue
        running[name].reset()
    found: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(args.rounds):
        for name, envs in running.items():
            found[name].append(measure(envs, actions))
    for envs in running.values():
        envs.close()
    best = {name: min(times) for name, times in found.items()}
    print("| contestant | us per batch | over the bare pool |\n|---|---|---|")
    if args.json:
        Path(args.json).write_text(json.dumps(best, indent=1))
    for name, microseconds in best.items():
        bare = table[name].bare
        more = "" if bare is None else f"{microseconds - best[bare]:+.0f}"
        print(f"| {name} | {microseconds:.0f} | {more} |")


if __name__ == "__main__":
    main()
