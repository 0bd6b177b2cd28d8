"""Step envs on all nodes of a Ray cluster; print the envs per node and the cost of a step.

    ray start --head                       # on the first machine
    ray start --address=FIRST_MACHINE:6379 # on each other machine
    python examples/ray_cluster.py --address auto

Without an address, Ray is started on this machine alone. Kill a node while it runs: its envs are
reported once, and recreated on the other nodes.
"""

from __future__ import annotations

import argparse
import collections
import time

import gymnasium as gym
import numpy as np
import ray

from envpool_py import RayVectorEnv


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--address", help="of the cluster; auto: the one on this machine")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--envs-per-actor", type=int, default=8)
    parser.add_argument("--num-cpus", type=float, default=0.25, help="that each actor reserves")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()

    ray.init(args.address, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    env_fns = [lambda: gym.make("CartPole-v1")] * args.num_envs
    options = {"envs_per_actor": args.envs_per_actor, "num_cpus": args.num_cpus}
    with RayVectorEnv(env_fns, autoreset_mode="same_step", on_error="restart", **options) as pool:
        nodes = pool.apply(lambda _: ray.util.get_node_ip_address())
        for node, count in collections.Counter(nodes).items():
            print(f"node {node}: {count} envs")
        pool.reset(seed=0)
        rng = np.random.default_rng(0)
        steps = lost = 0
        start, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < start + args.seconds:
            infos = pool.step(rng.integers(2, size=args.num_envs))[4]
            lost += sum("env_error" in info.get("final_info", {}) for info in infos)
            steps += len(infos)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    ray.shutdown()
    print(f"{lost} episodes lost")
    print(f"{steps / wall:.0f} steps a second, {cpu / steps * 1e6:.0f} µs of the driver's CPU each")


if __name__ == "__main__":
    main()
