"""Compare a pool with bare pipes: one process per env, a pipe for each, and nothing else.

    python examples/benchmark/pipes.py
    python examples/benchmark/pipes.py --num-envs 64 --seconds 3 --rounds 5 --json pipes.json

The loop with pipes steps whole batches as a pool does, but checks nothing, loses final
observations, and ends with the first crash. The envs wait 2 ms in each step. Both take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

sys.path += [str(Path(__file__).resolve().parents[each]) for each in (1, 2)]

import numpy as np
from simulator import Simulator

import envpool_py


def step_env(connection: Connection, seed: int) -> None:
    """Step an env by the actions that arrive, and reset it at the end of an episode."""
    env = Simulator()
    env.reset(seed=seed)
    while (action := connection.recv()) is not None:
        obs, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            obs, info = env.reset()
        connection.send((obs, reward, terminated, truncated, info))


def rate(step: Callable[[], object], num_envs: int, seconds: float) -> float:
    """Steps per second of all envs, after some batches that are not counted."""
    for _ in range(20):
        step()
    begun, batches = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        step()
        batches += 1
    return num_envs * batches / passed


def of_pipes(num_envs: int, seconds: float) -> float:
    """Steps per second of the loop with pipes."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(num_envs)]
    processes = [
        context.Process(target=step_env, args=(theirs, seed), daemon=True)
        for seed, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()

    def step() -> object:
        for ours, _ in pipes:
            ours.send(0)
        obs, reward, terminated, truncated, infos = zip(
            *(ours.recv() for ours, _ in pipes), strict=True
        )
        return np.stack(obs), np.array(reward), np.array(terminated), np.array(truncated), infos

    found = rate(step, num_envs, seconds)
    for (ours, _), process in zip(pipes, processes, strict=True):
        ours.send(None)
        process.join()
    return found


def of_pool(num_envs: int, seconds: float) -> float:
    """Steps per second of the pool that ``make`` chooses."""
    with envpool_py.make(Simulator, num_envs) as pool:
        pool.reset(seed=0)
        return rate(lambda: pool.step([0] * num_envs), num_envs, seconds)


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for _ in range(args.rounds):
        pair = {"pipes": of_pipes, "ours": of_pool}
        rows.append({name: each(args.num_envs, args.seconds) for name, each in pair.items()})
        print({name: round(value) for name, value in rows[-1].items()}, flush=True)
    print(f"ratio {median(row['ours'] / row['pipes'] for row in rows):.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
