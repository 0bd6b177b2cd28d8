"""Env-steps per second of our VecEnvs and of Stable-Baselines3's, and the time that PPO takes.

python examples/sb3_throughput.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3.common.vec_env as sb3
import torch
from stable_baselines3 import PPO

import envpool_py.sb3 as own

VecEnvOf = Callable[[list[Callable[[], gym.Env]]], Any]

VEC_ENVS: dict[str, VecEnvOf] = {
    "SB3 DummyVecEnv": sb3.DummyVecEnv,
    "SB3 SubprocVecEnv": sb3.SubprocVecEnv,
    "DummyVecEnv": own.DummyVecEnv,
    "SubprocVecEnv, 2 processes": lambda fns: own.SubprocVecEnv(fns, num_processes=2),
    "ShmemVecEnv": own.ShmemVecEnv,
    "ShmemVecEnv, 2 processes": lambda fns: own.ShmemVecEnv(fns, num_processes=2),
}


class ImageEnv(gym.Env):
    """A new 84x84x4 image each step; episodes of 200."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self.t = 0
        return np.zeros((84, 84, 4), np.uint8), {}

    def step(self, action: Any) -> Any:
        """Fill an image."""
        self.t += 1
        image = np.full((84, 84, 4), (7 * self.t + int(action)) % 256, np.uint8)
        return image, 1.0, False, self.t >= 200, {}


def cartpole() -> gym.Env:
    """Runs in a worker process."""
    return gym.make("CartPole-v1")


def rate(venv: Any, actions: np.ndarray, seconds: float) -> float:
    """Env-steps per second."""
    steps, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for row in actions:
            venv.step(row)
        steps += actions.size
    return steps / passed


def compare_rates(
    name: str, vec_envs: dict[str, VecEnvOf], env_fns: list[Any], seconds: float, rounds: int
) -> None:
    """The median and the best of some rounds, in which all take their turn."""
    rng = np.random.default_rng(0)
    venvs = {each: make(env_fns) for each, make in vec_envs.items()}
    for venv in venvs.values():
        venv.seed(0)
        venv.reset()
    actions = rng.integers(0, venv.action_space.n, (32, len(env_fns)))
    rates: dict[str, list[float]] = {each: [] for each in venvs}
    for _ in range(rounds + 1):  # the first is for warming up
        for each, venv in venvs.items():
            rates[each].append(rate(venv, actions, seconds))
    print(f"{name} x {len(env_fns)}, env-steps per second, median and best of {rounds} rounds")
    for each, (_, *found) in rates.items():
        print(f"  {each:<28}{statistics.median(found):>10,.0f}{max(found):>10,.0f}")
        venvs[each].close()


def compare_training(vec_envs: dict[str, VecEnvOf], env_fns: list[Any], steps: int) -> None:
    """Seconds of ``learn``, with one seed for all."""
    print(f"PPO, CartPole x {len(env_fns)}, {steps} steps, seconds")
    for each, make in vec_envs.items():
        venv = make(env_fns)
        model = PPO("MlpPolicy", venv, n_steps=128, batch_size=256, device="cpu", seed=0)
        begin = time.perf_counter()
        model.learn(steps)
        print(f"  {each:<28}{time.perf_counter() - begin:>10.1f}")
        venv.close()


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--only", nargs="+", choices=VEC_ENVS, default=list(VEC_ENVS))
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ppo-steps", type=int, default=50_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: VEC_ENVS[name] for name in args.only}
    cartpoles = [cartpole] * args.num_envs
    for name, env_fns in (
        ("CartPole", cartpoles),
        ("84x84x4 images", [ImageEnv] * args.num_envs),
    ):
        compare_rates(name, chosen, env_fns, args.seconds, args.rounds)
    compare_training(chosen, cartpoles, args.ppo_steps)


if __name__ == "__main__":
    main()
