"""Seconds per rollout of Stable-Baselines3's PPO over those of AsyncPPO, in turns.

    python examples/benchmark/rollouts.py
    python examples/benchmark/rollouts.py --cpu --mean-ms 1
    python examples/benchmark/rollouts.py --env CartPole-v1 --num-envs 8

Without `--env`, steps take lognormal times of the mean `--mean-ms` with a coefficient of variation
of 1: they sleep, or with `--cpu` compute. Their ideal is a rollout in which no env and no core ever
waits: the mean time of a step times `--steps`, and with `--cpu` times envs per core.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO

from envpool_py.sb3 import AsyncRollouts, SubprocVecEnv


class AsyncPPO(AsyncRollouts, PPO):
    """PPO that does not wait for the slowest env."""


class Uneven(gym.Env):
    """Its steps take lognormal times."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, seed: int, mean: float, cpu: bool = False, longest: int = 0) -> None:
        self.longest = longest
        variance = np.log(2)
        self.draw = functools.partial(
            np.random.default_rng(seed).lognormal, np.log(mean) - variance / 2, variance**0.5
        )
        self.wait = self.compute if cpu else time.sleep

    @staticmethod
    def compute(seconds: float) -> None:
        """Use a core for so long."""
        stop = time.thread_time() + seconds
        while time.thread_time() < stop:
            pass

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        """Begin an episode of 1 to ``longest`` steps; 0: it never ends."""
        super().reset(seed=seed, options=options)
        self.left = int(self.np_random.integers(self.longest)) + 1 if self.longest else -1
        return np.zeros(8, np.float32), {}

    def step(self, action: np.ndarray) -> tuple:
        """Take some time."""
        del action
        self.wait(self.draw())
        self.left -= 1
        return np.zeros(8, np.float32), 0.0, not self.left, False, {}


def seconds(model: PPO) -> float:
    """The time of one rollout, without learning."""
    if model._last_obs is None:  # noqa: SLF001
        model.callback = model._setup_learn(10**9)[1]  # noqa: SLF001
    begun = time.perf_counter()
    model.collect_rollouts(model.env, model.callback, model.rollout_buffer, model.n_steps)
    return time.perf_counter() - begun


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", help="an id, in place of uneven envs")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128, help="of each env in a rollout")
    parser.add_argument("--mean-ms", type=float, default=5)
    parser.add_argument("--cpu", action="store_true", help="compute in place of sleeping")
    parser.add_argument("--num-processes", type=int, help="default: one per env")
    parser.add_argument("--wait-num", type=int, help="default: the envs that are ready")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write the seconds of each round")
    args = parser.parse_args()

    torch.set_num_threads(1)
    env_fns = [functools.partial(Uneven, i, args.mean_ms / 1e3, args.cpu) for i in range(64)]
    if args.env is not None:
        env_fns = [functools.partial(gym.make, args.env)] * args.num_envs
    options = {"start_method": "fork", "num_processes": args.num_processes}
    venvs = [SubprocVecEnv(env_fns[: args.num_envs], **options) for _ in range(2)]
    settings = {"n_steps": args.steps, "device": "cpu", "seed": 0}
    whole = PPO("MlpPolicy", venvs[0], **settings)
    ready = AsyncPPO("MlpPolicy", venvs[1], wait_num=args.wait_num, **settings)
    times = []
    for _ in range(args.rounds + 1):
        times.append((seconds(whole), seconds(ready)))
        print("whole batches {:.2f} s  AsyncPPO {:.2f} s".format(*times[-1]))
    of_whole, of_ready = map(statistics.median, zip(*times[1:], strict=True))
    ratio = of_whole / of_ready
    print(f"medians without the first: {of_whole:.3f} s, {of_ready:.3f} s, ratio {ratio:.2f}")
    if args.json:
        rows = [dict(zip(("whole", "async"), each, strict=True)) for each in times]
        Path(args.json).write_text(json.dumps(rows, indent=1))
    if args.env is None:
        share = args.num_envs / len(os.sched_getaffinity(0)) if args.cpu else 1
        ideal = args.mean_ms / 1e3 * args.steps * max(share, 1)
        print(f"ideal {ideal:.3f} s, ratio {of_whole / ideal:.2f}")
    for venv in venvs:
        venv.close()


if __name__ == "__main__":
    main()
