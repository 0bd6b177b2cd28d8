"""Reward per env step of PPO and of AsyncPPO over five seeds, on envs whose steps are uneven.

    python docs/build/async_learning.py measure  # writes docs/pictures/async_learning.json
    python docs/build/async_learning.py draw  # draws async_learning.svg from this file

Each step also sleeps for a lognormal time of the mean 0.5 ms with a coefficient of variation of 1,
so AsyncPPO has partial batches. MuJoCo's InvertedPendulum runs under `VecNormalize`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import curves
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from envpool_py.sb3 import AsyncRollouts, SubprocVecEnv, VecMonitor, VecNormalize

FILE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "async_learning.json"
NUM_ENVS, SEEDS = 8, range(5)
STEPS = {"CartPole-v1": 50_000, "InvertedPendulum-v5": 50_000}


class AsyncPPO(AsyncRollouts, PPO):
    """PPO that does not wait for the slowest env."""


class Uneven(gym.Wrapper):
    """Each step also sleeps."""

    def __init__(self, env: gym.Env, seed: int) -> None:
        super().__init__(env)
        self.rng = np.random.default_rng(seed)

    def step(self, action: np.ndarray) -> tuple:
        """Step after a while."""
        time.sleep(self.rng.lognormal(np.log(0.5e-3) - np.log(2) / 2, np.log(2) ** 0.5))
        return self.env.step(action)


class Returns(BaseCallback):
    """The mean return of the last 20 episodes, at the end of each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        mean = float(np.mean([episode["r"] for episode in self.model.ep_info_buffer]))
        self.found.append((self.num_timesteps, round(mean, 1)))


def train(algorithm: type[PPO], env_id: str, seed: int) -> list[tuple[int, float]]:
    """Train once; return steps of all envs and mean returns."""

    def make_env(i: int) -> gym.Env:
        return Uneven(gym.make(env_id), 100 * seed + i)

    fns = [functools.partial(make_env, i) for i in range(NUM_ENVS)]
    venv = VecMonitor(SubprocVecEnv(fns, start_method="fork"))
    wrapped = VecNormalize(venv) if env_id.startswith("Inverted") else venv
    settings = {"n_steps": 128, "batch_size": 256, "learning_rate": 1e-3, "device": "cpu"}
    model = algorithm("MlpPolicy", wrapped, seed=seed, stats_window_size=20, **settings)
    returns = Returns()
    model.learn(STEPS[env_id], callback=returns)
    wrapped.close()
    return returns.found


def measure() -> None:
    """Train each algorithm on each env with each seed, in turns; write after each training."""
    runs: dict[str, dict[str, list]] = {}
    torch.set_num_threads(1)
    for env_id in STEPS:
        runs[env_id] = {"PPO": [], "AsyncPPO": []}
        for seed in SEEDS:
            for algorithm in (PPO, AsyncPPO):
                found = train(algorithm, env_id, seed)
                runs[env_id][algorithm.__name__].append(found)
                area = np.mean([mean for _, mean in found])
                print(
                    f"{env_id} {algorithm.__name__} seed {seed}: last {found[-1]}, all {area:.0f}"
                )
                FILE.write_text(json.dumps(runs) + "\n", encoding="utf-8")


COLOURS = {"PPO": "#57606a #9ea7b3", "AsyncPPO": "#1f6feb #58a6ff"}


def draw() -> None:
    """One panel per env: each seed as a thin line, the mean over the seeds as a thick one."""
    runs = json.loads(FILE.read_text(encoding="utf-8"))
    panels = []
    for env_id, by_name in runs.items():
        most = max(x for each in by_name.values() for run in each for x, _ in run)
        lines = []
        for name, each in by_name.items():
            shown = np.array(each) / (most, 1)
            kinds = [*(("run", run) for run in shown), ("mean", shown.mean(axis=0))]
            lines += [curves.Curve(name, run.tolist(), kind) for kind, run in kinds]
        ticks = {share: f"{share * most:,.0f}".replace(",", " ") for share in (0, 0.5, 1)}
        panels.append(curves.Panel(env_id, lines, ticks))
    label = "Return over env steps of PPO and AsyncPPO, five seeds each and their mean"
    axis = "env steps; mean return of 20 episodes"
    picture = curves.drawn(panels, COLOURS, label, axis)
    FILE.with_suffix(".svg").write_text(picture, encoding="utf-8")
    for env_id, by_name in runs.items():
        for name, each in by_name.items():
            means = [np.mean(run, axis=0)[1] for run in each]
            last = [run[-1][1] for run in each]
            print(f"{env_id} {name}: mean return of all rollouts {np.mean(means):.0f}, of the last")
            print(f"  {np.mean(last):.0f}; by seed {np.round(means).tolist()}, {last}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["measure", "draw"])
    {"measure": measure, "draw": draw}[parser.parse_args().action]()
