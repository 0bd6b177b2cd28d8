"""Measure the limits of one driver of `RayVectorEnv`, and extrapolate to large clusters.

    python examples/benchmark/ray_scale.py [--against-tianshou] [--json FILE]

A batch takes the driver CPU time for each remote call and for each env. Both costs are fitted to
runs of envs that do nothing, in few actors; the table extrapolates them to many actors. With
`--against-tianshou` Tianshou's `RayVectorEnv` steps the same envs, in the same run and in both
orders.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray

from envpool_py import RayVectorEnv

# Actors, envs in each, float32 in an observation.
SHAPES = [(1, 1, 4), (1, 4096, 4), (4, 1, 4), (4, 64, 4), (1, 64, 4096)]


class Idle(gym.Env):
    """An env of `size` float32 that takes no time, or `seconds`."""

    def __init__(self, size: int = 4, seconds: float = 0.0) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.row, self.seconds = np.zeros(size, np.float32), seconds

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        """Return zeros."""
        super().reset(seed=seed, options=options)
        return self.row, {}

    def step(self, action: Any) -> tuple:
        """Return zeros after computing for the given time."""
        del action
        end = time.perf_counter() + self.seconds
        while self.seconds and time.perf_counter() < end:
            pass
        return self.row, 0.0, False, False, {}


def start_ray() -> None:
    """Start Ray here, with room for many actors and with workers that are not niced."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - the name that Ray reads
    ray.init(
        "local", num_cpus=64, logging_level="ERROR", log_to_driver=False, include_dashboard=False
    )


def measure(pool: Any, seconds: float) -> tuple[float, float]:
    """Return wall and driver's CPU seconds of a batch; the medians of five runs."""
    actions = np.zeros(len(pool), int)
    pool.reset()
    runs = []
    for number in range(6):
        count, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() < start + seconds / 5:
            pool.step(actions)
            count += 1
        if number:  # the first warms up
            wall = time.perf_counter() - start
            runs.append((wall / count, (time.process_time() - cpu) / count))
    wall, cpu = np.median(runs, axis=0).tolist()
    return wall, cpu


def against_tianshou(seconds: float) -> dict[str, float]:
    """Print steps a second and the driver's CPU for each step, of both; return them."""
    from tianshou.env import RayVectorEnv as Theirs  # noqa: PLC0415 - not needed otherwise

    subjects: dict[str, Callable[[], gym.Env]] = {
        "CartPole": lambda: gym.make("CartPole-v1"),
        "1 ms": lambda: Idle(seconds=1e-3),
    }
    facts: dict[str, float] = {}
    for name, env_fn in subjects.items():
        found: dict[str, list[tuple[float, float]]] = {"Tianshou": [], "envpool_py": []}
        for kind in ("Tianshou", "envpool_py", "envpool_py", "Tianshou"):
            start_ray()  # a fresh one: actors that end, and workers that start, take its time
            fns = [env_fn] * 32
            if kind == "Tianshou":
                pool = Theirs(fns)
            else:
                options = {"envs_per_actor": 8, "num_cpus": 0.01}
                pool = RayVectorEnv(fns, autoreset_mode="same_step", validate="off", **options)
            wall, cpu = measure(pool, seconds)
            pool.close()
            ray.shutdown()
            found[kind].append((wall, cpu))
            print(f"{name} x 32, {kind}: {32 / wall:.0f} steps/s, {cpu / 32 * 1e6:.0f} µs CPU/step")
        theirs, ours = (np.mean(runs, axis=0) for runs in found.values())
        steps, cpu = (theirs / ours).tolist()
        print(f"{name} x 32: {steps:.1f} times the steps, 1/{cpu:.1f} of the CPU", flush=True)
        for kind, (wall, own) in (("tianshou", theirs), ("ours", ours)):
            facts |= {f"{name}, {kind}, steps": 32 / wall, f"{name}, {kind}, cpu": own / 32}
    return facts


def model(seconds: float) -> dict[str, float]:
    """Fit the cost of a call, of an env and of a byte; print the extrapolation, return the costs.

    All are in seconds of CPU time of the driver.
    """
    rows = []
    for actors, per_actor, size in SHAPES:
        fns = [lambda size=size: Idle(size)] * (actors * per_actor)
        with RayVectorEnv(fns, envs_per_actor=per_actor, num_cpus=0.01, validate="off") as pool:
            _, cpu = measure(pool, seconds)
        rows.append((actors, actors * per_actor, actors * per_actor * size * 4, cpu))
        print(f"{actors} actors of {per_actor} envs, {size * 4} bytes each: {cpu * 1e6:.0f} µs CPU")
    table = np.array(rows)
    # Relative errors count: the runs differ a hundredfold.
    weights = 1 / table[:, 3:]
    call, env, byte = np.linalg.lstsq(table[:, :3] * weights, np.ones(len(table)), rcond=None)[0]
    call, env, byte = (max(value, 0.0) for value in (call, env, byte))
    print(f"a call {call * 1e6:.0f} µs, an env {env * 1e6:.2f} µs, a kilobyte {byte * 1e9:.2f} µs")
    for num_envs in (1_000, 10_000, 100_000):
        for per_actor in (8, 64):
            calls, batch = num_envs / per_actor, num_envs / per_actor * call + num_envs * env
            print(
                f"{num_envs} envs, {per_actor} per actor: {calls:.0f} calls, {batch * 1e3:.0f} ms"
                f" CPU and {num_envs * 40 / 1e6:.2f} MB a batch, {1 / batch:.1f} batches/s,"
                f" {num_envs / batch:.0f} steps/s"
            )
    return {"call": call, "env": env, "byte": byte}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against-tianshou", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--json", metavar="FILE", help="write the figures, in seconds")
    args = parser.parse_args()
    if args.against_tianshou:
        facts = against_tianshou(args.seconds)
    else:
        start_ray()
        facts = model(args.seconds)
        ray.shutdown()
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
