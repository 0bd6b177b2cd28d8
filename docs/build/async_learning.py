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


STYLE = """
svg { --paper: #fff; --ink: #24292f; --line: #d0d7de; --PPO: #57606a; --AsyncPPO: #1f6feb; }
@media (prefers-color-scheme: dark) {
svg { --paper: #0d1117; --ink: #e6edf3; --line: #30363d; --PPO: #9ea7b3; --AsyncPPO: #58a6ff; } }
text { fill: var(--ink); font: 14px Helvetica, Arial, sans-serif; }
.axis { stroke: var(--line); } .run { fill: none; stroke-width: 1; opacity: 0.35; }
.mean { fill: none; stroke-width: 3; }
"""


def draw() -> None:
    """One panel per env: each seed as a thin line, the mean over the seeds as a thick one."""
    runs = json.loads(FILE.read_text(encoding="utf-8"))
    width, height, left, top = 330, 200, 60, 46
    parts = []
    for panel, (env_id, by_name) in enumerate(runs.items()):
        x0, y0 = left + panel * (width + 80), top + height
        values = np.array([run for each in by_name.values() for run in each])
        most_x, most_y = values[..., 0].max(), values[..., 1].max()
        parts.append(f'<text x="{x0}" y="{top - 18}" font-weight="bold">{env_id}</text>')
        for share in (0, 0.5, 1):
            x, y = x0 + share * width, y0 - share * height
            parts += [
                f'<line class="axis" x1="{x0}" x2="{x0 + width}" y1="{y}" y2="{y}"/>',
                f'<text x="{x0 - 8}" y="{y + 5}" text-anchor="end">{share * most_y:.0f}</text>',
                f'<text x="{x}" y="{y0 + 20}" text-anchor="middle">{share * most_x:,.0f}</text>',
            ]
        for number, (name, each) in enumerate(by_name.items()):
            shown = np.array(each) / (most_x, most_y) * (width, -height) + (x0, y0)
            for kind, run in [*(("run", run) for run in shown), ("mean", shown.mean(axis=0))]:
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
                stroke = f'style="stroke: var(--{name})"'
                parts.append(f'<polyline class="{kind}" {stroke} points="{points}"/>')
            x, y = x0 + 12, top + 8 + 22 * number
            parts += [
                f'<line class="mean" {stroke} x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}"/>',
                f'<text x="{x + 32}" y="{y + 5}">{name}</text>',
            ]
    size = f"{left + 2 * (width + 80) - 50} {top + height + 50}"
    label = "Return over env steps of PPO and AsyncPPO, five seeds each and their mean"
    bottom = (
        f'<text x="{left}" y="{top + height + 42}">env steps; mean return of 20 episodes</text>'
    )
    FILE.with_suffix(".svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img"'
        f' aria-label="{label}">\n<style>{STYLE}</style>\n'
        '<rect width="100%" height="100%" rx="12" style="fill: var(--paper)"/>\n'
        + "\n".join([*parts, bottom, "</svg>\n"]),
        encoding="utf-8",
    )
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
