"""One policy for all agents of simple_spread, by Stable-Baselines3's PPO.

Three agents have to cover three landmarks without colliding; random actions earn about -26 per
agent and episode of 25 steps.

python examples/spread_ppo.py --steps 400000
"""

from __future__ import annotations

import argparse
import functools

import torch
from mpe2 import simple_spread_v3
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from envpool_py.pettingzoo import SB3MultiAgentVecEnv


def main() -> None:
    """Train, and compare with the return of random actions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400_000, help="of all agents together")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the network is small, and the envs need the other cores
    make_env = functools.partial(simple_spread_v3.parallel_env, max_cycles=25)
    venv = VecMonitor(
        SB3MultiAgentVecEnv([make_env] * args.num_envs, num_processes=args.num_processes)
    )
    model = PPO(
        "MlpPolicy",
        venv,
        n_steps=100,
        batch_size=1200,
        n_epochs=10,
        learning_rate=1e-3,
        gamma=0.95,
        ent_coef=0.01,
        seed=1,
        device="cpu",
    )
    before, _ = evaluate_policy(model, venv, n_eval_episodes=96, deterministic=False, warn=False)
    print(f"before: {before:.1f} per agent and episode")
    model.learn(args.steps)
    after, _ = evaluate_policy(model, venv, n_eval_episodes=96, deterministic=False, warn=False)
    venv.close()
    print(f"after: {after:.1f} per agent and episode, {after - before:+.1f}")


if __name__ == "__main__":
    main()
