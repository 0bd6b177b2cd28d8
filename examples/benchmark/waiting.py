"""Measure pools with envs that wait: threads, processes, TorchRL's threads.

    python examples/benchmark/waiting.py
    python examples/benchmark/waiting.py --seconds 5 --repeats 5 --json waiting.json

A step sleeps 25 to 75 ms. The caller steps again whatever is ready: whole batches, and two sizes of
partial ones. Each pool is in a fresh process, in turns with the others. "ideal": a simulation in
which nothing but the sleep takes time. The memory is what all processes need beyond that of this
program before the pool was made, shared pages counted in parts. TorchRL is measured if installed.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import numpy as np
from torchrl_async import Env, Workload, measure, native

from envpool_py import ShmemVectorEnv, ThreadVectorEnv
from envpool_py.bench.measure import MeasurementError, ask

_LIMIT = 300.0  # seconds that one process may take

POOLS: dict[str, Any] = {
    "ThreadVectorEnv": (ThreadVectorEnv, {}),
    "one process per env": (ShmemVectorEnv, {}),
    "2 processes": (ShmemVectorEnv, {"num_processes": 2}),
    "TorchRL": None,
}


def batch_sizes(num_envs: int) -> list[int]:
    """Whole batches, a quarter, and a sixteenth."""
    return [num_envs, num_envs // 4, num_envs // 16]


def ideal(num_envs: int, wait_num: int, steps: int = 200_000) -> float:
    """Steps per second if nothing but the sleep takes time."""
    draw = functools.partial(random.Random(0).uniform, 0.025, 0.075)  # noqa: S311
    due = sorted(draw() for _ in range(num_envs))
    now = 0.0
    for _ in range(steps // wait_num):
        now = [heapq.heappop(due) for _ in range(wait_num)][-1]
        for _ in range(wait_num):
            heapq.heappush(due, now + draw())
    return steps // wait_num * wait_num / now


def memory() -> int:
    """Bytes of this process and its children; shared pages count once, those of files not."""
    found = 0
    for pid in [os.getpid(), *[child.pid for child in multiprocessing.active_children()]]:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        for kind in ("Pss_Anon", "Pss_Shmem"):
            found += 1024 * int(text.partition(f"\n{kind}:")[2].split()[0])
    return found


def measure_ours(kind: Any, options: dict[str, Any], num_envs: int, seconds: float) -> Any:
    """Rates by the size of the batches, start-up and memory of one of our pools."""
    work = Workload(num_envs, 1 << 30, 0.05, 0.0, 0.5)
    before, begun = memory(), time.perf_counter()
    with kind([functools.partial(Env, work)] * num_envs, **options) as envs:
        envs.reset()
        found: dict[str, Any] = {"startup": time.perf_counter() - begun, "rates": {}}
        actions = np.zeros(num_envs, int)

        def step() -> int:
            envs.recv()
            ids = envs.batch_ids
            envs.send(actions[: len(ids)], ids)
            return len(ids)

        for wait_num in batch_sizes(num_envs):
            envs.wait_num = wait_num
            envs.send(actions)
            found["rates"][wait_num] = measure(step, seconds)["per_second"]
            envs.drain()
        return {**found, "memory": memory() - before}


def measure_torchrl(num_envs: int, seconds: float) -> Any:
    """The same of TorchRL's ``AsyncEnvPool`` with threads."""
    import torch  # noqa: PLC0415 - the other pools need no torch
    from torchrl.envs import AsyncEnvPool  # noqa: PLC0415

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    work = Workload(num_envs, 1 << 30, 0.05, 0.0, 0.5)
    before, begun = memory(), time.perf_counter()
    env = AsyncEnvPool([functools.partial(native, work)] * num_envs, backend="threading")
    ready = env.reset()
    found: dict[str, Any] = {"startup": time.perf_counter() - begun, "rates": {}}
    actions = torch.zeros(num_envs, dtype=torch.int64)

    for wait_num in batch_sizes(num_envs):

        def step(wait_num: int = wait_num) -> int:
            _, ready = env.async_step_and_maybe_reset_recv(min_get=wait_num)
            count = len(ready)
            env.async_step_and_maybe_reset_send(ready.set("action", actions[:count]))
            return count

        env.async_step_and_maybe_reset_send(ready.set("action", actions))
        found["rates"][wait_num] = measure(step, seconds)["per_second"]
        _, ready = env.async_step_and_maybe_reset_recv(min_get=num_envs)
    found["memory"] = memory() - before
    env.close()
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """Medians, and in brackets the least and the greatest rate."""
    lines = []
    for num_envs in dict.fromkeys(row["num_envs"] for row in rows):
        sizes = batch_sizes(num_envs)
        head = [f"{num_envs} envs", *map(str, sizes), "start", "memory"]
        lines += ["", f"| {' | '.join(head)} |"]
        lines.append("| :-- " * (len(sizes) + 3) + "|")
        lines.append(
            "| ideal | " + " | ".join(f"{ideal(num_envs, n):.0f}" for n in sizes) + " | | |"
        )
        for name in dict.fromkeys(row["pool"] for row in rows):
            some = [row for row in rows if (row["num_envs"], row["pool"]) == (num_envs, name)]
            if not some:
                continue
            cells = []
            for n in map(str, sizes):
                rates = [row["rates"][n] for row in some]
                low, high = min(rates), max(rates)
                cells.append(f"{statistics.median(rates):.0f} ({low:.0f} to {high:.0f})")
            startup = statistics.median(row["startup"] for row in some)
            needed = statistics.median(row["memory"] for row in some) / 2**20
            cells += [f"{startup:.2f} s", f"{needed:.0f} MB"]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--num-envs", type=int, action="append", help="default: 16 and 256")
    add("--pool", action="append", choices=POOLS, help="default: all")
    add("--seconds", type=float, default=3.0, help="of one measurement; default: %(default)s")
    add("--repeats", type=int, default=3, help="default: %(default)s")
    add("--json", metavar="FILE", help="write all measurements")
    add("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, *rest = json.loads(args.one)
        multiprocessing.set_start_method("fork")
        found = measure_torchrl(*rest) if name == "TorchRL" else measure_ours(*POOLS[name], *rest)
        print(json.dumps(found))
        return
    rows: list[dict[str, Any]] = []
    sizes, names = args.num_envs or [16, 256], args.pool or list(POOLS)
    for _, num_envs, name in itertools.product(range(args.repeats), sizes, names):
        if name == "TorchRL" and importlib.util.find_spec("torchrl") is None:
            continue
        job, load = json.dumps([name, num_envs, args.seconds]), os.getloadavg()[0]
        try:
            found = ask([sys.executable, __file__, "--one", job], _LIMIT)
        except MeasurementError as error:
            print(f"{num_envs} envs, {name}: {error}", file=sys.stderr)
            continue
        rows.append({"num_envs": num_envs, "pool": name, "load": load, **found})
        print(json.dumps(rows[-1]), file=sys.stderr)
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=1))
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()
