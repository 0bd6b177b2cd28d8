"""Measure what a worker process costs: start, memory, file descriptors and close.

    python examples/benchmark/start.py --method fork --case halfcheetah
    python examples/benchmark/start.py --rounds 5 --json start.json

Each pool has one process per env and is in a fresh program, in turns with the others. "start" is
until the first batch after a reset; "memory" is that of a worker process, shared pages counted in
parts (PSS); "descriptors" are those of the program for each process.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np

_TORCH, _SLOW = "START_TORCH", "START_SLOW"  # variables that worker processes inherit

if os.environ.get(_TORCH):  # as in a program that trains: also where this file is imported again
    import torch  # noqa: F401
gym.register("Slow-v0", entry_point="takes_a_second:Env")
sys.path.append(os.environ.get(_SLOW, ""))

_MODULE = """
import time
import gymnasium as gym
import numpy as np
end = time.thread_time() + 1
while time.thread_time() < end:
    pass

class Env(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}
    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}
"""


class Own(gym.Env[Any, Any]):
    """An env of the main script."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return np.zeros(4, np.float32), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        return np.zeros(4, np.float32), 0.0, False, False, {}


CASES: dict[str, tuple[Any, int]] = {
    "cartpole": (functools.partial(gym.make, "CartPole-v1"), 128),
    "cartpole-x8": (functools.partial(gym.make, "CartPole-v1"), 8),
    "halfcheetah": (functools.partial(gym.make, "HalfCheetah-v5"), 32),
    "pong": (functools.partial(gym.make, "ale_py:ALE/Pong-v5"), 16),
    "own": (Own, 32),
    "slow-import": (functools.partial(gym.make, "Slow-v0"), 32),
}
"""The env_fn and the number of envs: ``own`` is of the main script."""
POOLS = ["ours", "gymnasium", "sb3", "tianshou"]
METHODS = ["fork", "forkserver", "spawn"]
FACTS = {"start": "s", "memory": "MB", "descriptors": "", "close": "s"}


def _made(pool: str, env_fns: list[Any]) -> Any:
    """Make a pool with multiprocessing's start method of this program."""
    if pool == "gymnasium":
        return gym.vector.AsyncVectorEnv(env_fns)
    if pool == "sb3":
        from stable_baselines3.common.vec_env import SubprocVecEnv  # noqa: PLC0415

        return SubprocVecEnv(env_fns, start_method=multiprocessing.get_start_method())
    if pool == "tianshou":
        from tianshou.env import ShmemVectorEnv  # noqa: PLC0415
    else:
        from envpool_py import ShmemVectorEnv  # noqa: PLC0415
    return ShmemVectorEnv(env_fns)


def _memory(pid: int | None) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) * 1024 / 1e6


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def measure(pool: str, case: str, method: str) -> dict[str, float]:
    """Make a pool in this program, take the first batch, and close it."""
    multiprocessing.set_start_method(method)
    env_fn, num_envs = CASES[case]
    # Imports the pool's library: a program does that once.
    _made(pool, [functools.partial(gym.make, "CartPole-v1")]).close()
    _close_servers()
    before, begun = _descriptors(), time.perf_counter()
    envs = _made(pool, [env_fn] * num_envs)
    envs.reset()
    envs.step(np.zeros((num_envs, 6), np.float32) if case == "halfcheetah" else [0] * num_envs)
    found = {"start": time.perf_counter() - begun}
    found["memory"] = statistics.fmean(
        _memory(one.pid) for one in multiprocessing.active_children()
    )
    found["descriptors"] = (_descriptors() - before) / num_envs
    begun = time.perf_counter()
    envs.close()
    return {**found, "close": time.perf_counter() - begun}


def _close_servers() -> None:
    """End multiprocessing's fork server, which the first pool has started."""
    from multiprocessing import forkserver  # noqa: PLC0415

    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # noqa: SLF001


def _in_program(pool: str, case: str, method: str, torch: bool) -> dict[str, float]:
    words = [sys.executable, __file__, "--one", pool, "--case", case, "--method", method]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "takes_a_second.py").write_text(_MODULE)
        env = {**os.environ, _SLOW: folder, "OMP_NUM_THREADS": "1", _TORCH: "1" if torch else ""}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{pool}, {case}, {method}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Medians of the rounds; in brackets, how many times as much as Gymnasium's."""
    lines = []
    for method, torch, case in dict.fromkeys((r["method"], r["torch"], r["case"]) for r in rows):
        some = [r for r in rows if (r["method"], r["torch"], r["case"]) == (method, torch, case)]
        head = f"{case} x {CASES[case][1]}, {method}{', torch' * torch}"
        lines += ["", f"| {head} | {' | '.join(FACTS)} |", "| :-- " * (len(FACTS) + 1) + "|"]
        medians: dict[str, dict[str, float]] = {}
        for row in some:
            own = [each for each in some if each["pool"] == row["pool"]]
            medians[row["pool"]] = {f: statistics.median(each[f] for each in own) for f in FACTS}
        for pool, own_medians in medians.items():
            cells = []
            for fact, value in own_medians.items():
                base = medians.get("gymnasium", {}).get(fact)
                ratio = f" ({value / base:.2f})" if base and pool != "gymnasium" else ""
                cells.append(f"{value:.3g} {FACTS[fact]}".strip() + ratio)
            lines.append(f"| {pool} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def main() -> None:
    """Measure in turns, or once in this program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[*CASES], help="default: all")
    parser.add_argument("--method", action="append", choices=METHODS, help="default: all")
    parser.add_argument("--pool", action="append", choices=POOLS, help="default: all")
    parser.add_argument("--torch", action="append", choices=["yes", "no"], help="default: both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the values of each round")
    parser.add_argument("--one", metavar="POOL", help="measure one pool in this program")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.case[0], args.method[0])))
        return
    rows = []
    for method in args.method or METHODS:
        for torch in args.torch or ["no", "yes"]:
            for case in args.case or CASES:
                for _ in range(args.rounds):
                    for pool in args.pool or POOLS:
                        found = _in_program(pool, case, method, torch == "yes")
                        facts = {"pool": pool, "case": case, "method": method}
                        rows.append({**facts, "torch": torch == "yes", **found})
    print(markdown(rows))
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
