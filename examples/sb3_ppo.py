"""PPO of Stable-Baselines3 learns CartPole over worker processes.

python examples/sb3_ppo.py
python examples/sb3_ppo.py --vec-env dummy --num-envs 4
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from envpool_py.sb3 import DummyVecEnv, ShmemVecEnv, SubprocVecEnv, make_vec_env

VEC_ENVS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv, "shmem": ShmemVecEnv}


def falling(start: float) -> Callable[[float], float]:
    """From ``start`` to 0 in the course of the training."""
    return lambda left: start * left


def main() -> None:
    """Train, then evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--vec-env", choices=VEC_ENVS, default="shmem")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so small a network is quicker on one core; the envs have the others

    # In place of `from stable_baselines3.common.env_util import make_vec_env`; all else is as ever.
    venv = make_vec_env(
        "CartPole-v1",
        args.num_envs,
        seed=0,
        vec_env_cls=VEC_ENVS[args.vec_env],
        vec_env_kwargs={} if args.vec_env == "dummy" else {"num_processes": 2},
    )
    model = PPO(
        "MlpPolicy",
        venv,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=falling(1e-3),
        clip_range=falling(0.2),
        device="cpu",
        seed=0,
    )
    begin = time.perf_counter()
    model.learn(args.steps)
    print(f"{args.steps} steps in {time.perf_counter() - begin:.0f} s")
    mean, std = evaluate_policy(model, venv, n_eval_episodes=20)
    venv.close()
    print(f"mean return {mean:.1f}, standard deviation {std:.1f}")


if __name__ == "__main__":
    main()
