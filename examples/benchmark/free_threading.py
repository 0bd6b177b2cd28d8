"""Measure envs that compute, in threads and in processes: run it by a Python without the GIL.

    python3.14t examples/benchmark/free_threading.py
    python3.14t examples/benchmark/free_threading.py --repeats 7 --json free_threading.json

All pools step whole batches with random actions, each in a fresh process, in turns with the others.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np

from envpool_py import DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv
from envpool_py.bench.measure import ask

_LIMIT = 120.0  # seconds that one process may take

ENVS = {"CartPole-v1": 64, "HalfCheetah-v5": 16}
POOLS: dict[str, Any] = {
    "loop": None,
    "DummyVectorEnv": (DummyVectorEnv, {}),
    "2 threads": (ThreadVectorEnv, {"num_threads": 2}),
    "2 processes": (ShmemVectorEnv, {"num_processes": 2}),
    "1 process + caller": (ShmemVectorEnv, {"num_processes": 1, "caller_steps": True}),
}


def measure(env_id: str, name: str, seconds: float) -> float:
    """Steps per second: the median over batches."""
    num_envs, spent = ENVS[env_id], []
    env_fns = [functools.partial(gym.make, env_id)] * num_envs
    space = gym.make(env_id).action_space
    space.seed(0)
    batches = [np.array([space.sample() for _ in range(num_envs)]) for _ in range(100)]
    if POOLS[name] is None:
        envs = [env_fn() for env_fn in env_fns]
        for i, env in enumerate(envs):
            env.reset(seed=i)

        def step(actions: Any) -> None:
            for env, action in zip(envs, actions, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
    else:
        kind, options = POOLS[name]
        pool = kind(env_fns, autoreset_mode="same_step", **options)
        pool.reset(seed=0)
        step = pool.step
    end = time.perf_counter() + seconds
    for actions in itertools.cycle(batches):
        begun = time.perf_counter()
        step(actions)
        spent.append(time.perf_counter() - begun)
        if time.perf_counter() > end:
            break
    if POOLS[name] is not None:
        pool.close()
    return num_envs / statistics.median(spent)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=2.0, help="of one measurement; default: %(default)s")
    add("--repeats", type=int, default=5, help="default: %(default)s")
    add("--json", metavar="FILE", help="write the medians")
    add("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return
    rates: dict[str, list[float]] = {}
    for _, env_id, name in itertools.product(range(args.repeats), ENVS, POOLS):
        job = json.dumps([env_id, name, args.seconds])
        rate = ask([sys.executable, __file__, "--one", job], _LIMIT)
        rates.setdefault(f"{env_id}, {name}", []).append(rate)
    medians = {key: statistics.median(some) for key, some in rates.items()}
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if gil else 'without'} the GIL")
    print("| | " + " | ".join(ENVS) + " |\n|" + " :-- |" * (len(ENVS) + 1))
    for name in POOLS:
        cells = []
        for env_id in ENVS:
            rate = medians[f"{env_id}, {name}"]
            cells.append(f"{rate:.0f} ({rate / medians[f'{env_id}, loop']:.2f})")
        print(f"| {name} | " + " | ".join(cells) + " |")
    if args.json:
        Path(args.json).write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
