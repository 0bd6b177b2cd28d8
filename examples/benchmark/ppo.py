"""Measure how long PPO of Stable-Baselines3 trains with its own VecEnvs and with ours.

    python examples/benchmark/ppo.py
    python examples/benchmark/ppo.py --env CartPole-v1 --threads 1 --updates 8 --json ppo.json

Each env is trained in a fresh process for each number of torch threads. All models of a process
have the same seed and train in turns, an update each, so that all see the same machine. The first
update is not measured. The weights must be equal at the end, or the script fails.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np
import stable_baselines3.common.vec_env as sb3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from envpool_py.bench.measure import ask
from envpool_py.sb3 import ShmemVecEnv

SB3_DUMMY = "SB3 DummyVecEnv"
_LIMIT = 600.0  # seconds that one process may take


class Task(NamedTuple):
    """What is trained: ``num_envs * num_steps`` steps before each update."""

    num_envs: int
    num_steps: int
    num_epochs: int
    policy: str = "MlpPolicy"


TASKS = {
    "CartPole-v1": Task(16, 64, 10),
    "HalfCheetah-v5": Task(16, 64, 10),
    "PongNoFrameskip-v4": Task(8, 32, 4, "CnnPolicy"),
}


def make_env(env_id: str) -> gym.Env:
    """Make an env as SB3's ``make_vec_env`` or ``make_atari_env`` does; runs in workers."""
    if TASKS[env_id].policy == "MlpPolicy":
        return Monitor(gym.make(env_id))
    gym.register_envs(importlib.import_module("ale_py"))
    return AtariWrapper(Monitor(gym.make(env_id)))


def vec_envs(num_cores: int) -> dict[str, Callable[[list[Callable[[], gym.Env]]], Any]]:
    """What is compared. All processes are forked."""
    shmem = functools.partial(ShmemVecEnv, start_method="fork")
    num_others = max(num_cores - 1, 1)
    return {
        SB3_DUMMY: sb3.DummyVecEnv,
        "SB3 SubprocVecEnv": functools.partial(sb3.SubprocVecEnv, start_method="fork"),
        f"ShmemVecEnv, num_processes={num_cores}": functools.partial(
            shmem, num_processes=num_cores
        ),
        "ShmemVecEnv, caller_steps=True": functools.partial(
            shmem, num_processes=num_others, caller_steps=True
        ),
    }


def train(env_id: str, threads: int, updates: int) -> list[dict[str, Any]]:
    """Train a model with each VecEnv in this process; 0 threads are torch's default."""
    task, num_cores = TASKS[env_id], len(os.sched_getaffinity(0))
    env_fns = [functools.partial(make_env, env_id)] * task.num_envs
    # All processes are forked before torch computes.
    venvs = {name: make(env_fns) for name, make in vec_envs(num_cores).items()}
    if threads:
        torch.set_num_threads(threads)
    models = {
        name: PPO(
            task.policy,
            venv,
            n_steps=task.num_steps,
            batch_size=256,
            n_epochs=task.num_epochs,
            device="cpu",
            seed=0,
        )
        for name, venv in venvs.items()
    }
    kinds = "learn", "rollout", "rewards", "returns"
    found: dict[str, dict[str, list[Any]]] = {name: {kind: [] for kind in kinds} for name in models}
    states: dict[str, Any] = {}
    for _ in range(updates + 1):
        for name, model in models.items():
            one_update(model, found[name], states)
    for venv in venvs.values():
        venv.close()
    common = {"env": env_id, "threads": torch.get_num_threads(), "default": not threads}
    common |= {"cores": num_cores, "steps": task.num_envs * task.num_steps}
    return [
        {**common, "vec_env": name, **found[name], "weights": digest(model)}
        for name, model in models.items()
    ]


class Clock(BaseCallback):
    """Appends the seconds of each rollout to a list."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self.seconds = seconds

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.started = time.perf_counter()

    def _on_rollout_end(self) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def one_update(model: Any, found: dict[str, list[Any]], states: dict[str, Any]) -> None:
    """Collect a rollout and learn from it.

    ``found`` gets the seconds of both, the mean reward of a step, and the mean return of the last
    100 episodes, None before the first one ends.

    The models of one process share torch's and NumPy's random generators. ``states`` keeps the
    states of the generators, so that each model has the same random numbers.
    """
    number = len(found["learn"])
    if number not in states:
        states[number] = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    torch.set_rng_state(states[number][0])
    np.random.set_state(states[number][1])  # noqa: NPY002
    num_steps = model.n_steps * model.n_envs
    begun = time.perf_counter()
    model.learn(num_steps, callback=Clock(found["rollout"]), reset_num_timesteps=not number)
    found["learn"].append(time.perf_counter() - begun)
    found["rewards"].append(float(model.rollout_buffer.rewards.mean()))
    episodes = [episode["r"] for episode in model.ep_info_buffer]
    found["returns"].append(float(np.mean(episodes)) if episodes else None)


def digest(model: Any) -> str:
    """Of all weights."""
    arrays = [value.numpy().tobytes() for value in model.policy.state_dict().values()]
    return hashlib.sha256(b"".join(arrays)).hexdigest()


def markdown(rows: list[dict[str, Any]]) -> str:
    """A row for each env and number of threads: milliseconds of an update, and of its rollout."""
    import pandas as pd  # noqa: PLC0415 - who trains for docs/build/cores.py may not have it

    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        times = pd.DataFrame({"learn": row["learn"][1:], "rollout": row["rollout"][1:]})
        learn, rollout = 1e3 * times.median()
        dummy = next(each for each in rows if _key(each) == _key(row))
        ratio = (pd.Series(dummy["learn"][1:]) / times["learn"]).median()
        cell = f"{learn:.0f} ({rollout:.0f}), {ratio:.2f}"
        lines.setdefault(_key(row), {})[row["vec_env"]] = cell
    frame = pd.DataFrame(lines.values(), index=list(lines))
    table = [["", *frame.columns], [":--", *("--:" for _ in frame.columns)]]
    table += [[index, *row] for index, row in zip(frame.index, frame.values, strict=True)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in table) + "\n"


def _key(row: dict[str, Any]) -> str:
    threads = f"{row['threads']} torch thread" + ("s" if row["threads"] > 1 else "")
    return f"{row['env']}, {threads}" + (" (default)" if row["default"] else "")


def check(rows: list[dict[str, Any]]) -> None:
    """Exit with an error if models of one env and number of threads differ."""
    for key in {_key(row) for row in rows}:
        some = [row for row in rows if _key(row) == key]
        if len({(row["weights"], *row["rewards"], *row["returns"]) for row in some}) > 1:
            sys.exit(f"{key}: the VecEnvs gave different weights or returns")


def main() -> None:
    """Print the table; the rows of SB3's DummyVecEnv come first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--env", action="append", choices=TASKS, help="default: all")
    add("--threads", action="append", type=int, help="of torch, 0: its default; default: 1 and 0")
    add("--updates", type=int, default=5, help="default: %(default)s")
    add("--json", metavar="FILE", help="write all measurements")
    add("--read", action="append", metavar="FILE", help="measure nothing, use what --json wrote")
    add("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        answer = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        with answer:
            json.dump(train(*json.loads(args.one)), answer)
        return
    rows: list[dict[str, Any]] = []
    for path in args.read or ():
        rows += json.loads(Path(path).read_text())
    for env_id in [] if args.read else args.env or TASKS:
        for threads in args.threads or (1, 0):
            job = json.dumps([env_id, threads, args.updates])
            rows += ask([sys.executable, __file__, "--one", job], _LIMIT)
            print(f"{_key(rows[-1])}: returns {rows[-1]['returns']}", file=sys.stderr)
            if args.json:
                Path(args.json).write_text(json.dumps(rows, indent=1))
    rows.sort(key=lambda row: (list(TASKS).index(row["env"]), row["default"]))
    check(rows)
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()
