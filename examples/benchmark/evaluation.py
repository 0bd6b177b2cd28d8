"""Seconds of ``evaluate_policy`` of Stable-Baselines3 and of our ``evaluate``, in turns.

    python examples/benchmark/evaluation.py --episodes 64 --json evaluation.json

16 envs have episodes of 1 to 100 steps, and steps of a mean of 5 ms that vary: they sleep. The
policy is the same network of Stable-Baselines3.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import torch
from rollouts import Uneven
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

import envpool_py


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--longest", type=int, default=100, help="steps of an episode")
    parser.add_argument("--mean-ms", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the seconds of each round")
    args = parser.parse_args()

    torch.set_num_threads(1)
    env_fns = [
        functools.partial(Uneven, i, args.mean_ms / 1e3, longest=args.longest)
        for i in range(args.num_envs)
    ]
    venv = VecMonitor(SubprocVecEnv(env_fns, start_method="fork"))
    pool = envpool_py.ShmemVectorEnv(env_fns, wait_num=1, context="fork")
    model = PPO("MlpPolicy", venv, device="cpu", seed=0)
    rows = []
    with pool:
        for _ in range(args.rounds):
            begun = time.perf_counter()
            evaluate_policy(model, venv, args.episodes)
            between = time.perf_counter()
            envpool_py.evaluate(pool, lambda obs, _: model.predict(obs)[0], args.episodes)
            ended = time.perf_counter()
            rows.append({"sb3": between - begun, "ours": ended - between})
            print(f"evaluate_policy {between - begun:.2f} s, evaluate {ended - between:.2f} s")
    venv.close()
    ratio = statistics.median(row["sb3"] / row["ours"] for row in rows)
    print(f"median ratio: {ratio:.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
