"""Measure our pools beside TorchRL's AsyncEnvPool, on the workloads of its own benchmark.

    python examples/benchmark/torchrl_async.py
    python examples/benchmark/torchrl_async.py --seconds 5 --repeats 3 --json torchrl.json

Needs torchrl. "free-x8": eight envs without work. "stall-x32": 32 envs whose steps take 1 ms, and
whose reset, after 200 steps, takes 200 ms. The caller steps again whatever is ready, one row or
more. Each measurement runs in a fresh process, in turns. TorchRL's envs are native ones, so that no
conversion from Gymnasium is measured. The start-up is the time to construct and reset the pool.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.bench.measure import MeasurementError, ask

_LIMIT = 300.0  # seconds that one process may take


class Workload(NamedTuple):
    """``episode``: its steps; ``step`` and ``reset`` are in seconds; ``spread``: of the steps."""

    num_envs: int
    episode: int
    step: float
    reset: float
    spread: float = 0.0


WORKLOADS = {"free-x8": Workload(8, 200, 0.0, 0.0), "stall-x32": Workload(32, 200, 1e-3, 0.2)}


class Env(gym.Env):
    """Waits, and observes the number of the step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, work: Workload) -> None:
        self._work, self._t = work, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._t = 0
        if self._work.reset:
            time.sleep(self._work.reset)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step, whatever the action."""
        del action
        self._t += 1
        if self._work.step:
            spread = self._work.spread
            time.sleep(self._work.step * random.uniform(1 - spread, 1 + spread))  # noqa: S311
        return np.full(4, self._t, np.float32), 1.0, self._t >= self._work.episode, False, {}


def native(work: Workload) -> Any:
    """The same env as a native one of TorchRL."""
    import torch  # noqa: PLC0415 - our pools need no torch
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import Binary, Categorical, Composite, Unbounded  # noqa: PLC0415
    from torchrl.envs import EnvBase  # noqa: PLC0415

    class Native(EnvBase):
        def __init__(self) -> None:
            super().__init__(batch_size=[])
            self.observation_spec = Composite(observation=Unbounded((4,)))
            self.action_spec = Categorical(2)
            self.reward_spec = Unbounded((1,))
            self.done_spec = Composite(
                done=Binary(1, dtype=torch.bool), terminated=Binary(1, dtype=torch.bool)
            )
            self._env = Env(work)

        def _row(self, obs: Any, over: bool, **more: Any) -> Any:
            flags = torch.tensor([over])
            found = {"observation": torch.from_numpy(obs), "done": flags, "terminated": flags}
            return TensorDict({**found, **more}, [])

        def _reset(self, tensordict: Any = None, **_: Any) -> Any:
            del tensordict
            return self._row(self._env.reset()[0], over=False)

        def _step(self, tensordict: Any) -> Any:
            obs, reward, over, _, _ = self._env.step(tensordict["action"])
            return self._row(obs, over=over, reward=torch.tensor([reward]))

        def _set_seed(self, seed: int | None) -> None:
            del seed

    return Native()


def measure_torchrl(
    work: Workload, seconds: float, *, threads: int, **options: Any
) -> dict[str, Any]:
    """Transitions of an ``AsyncEnvPool``; 0 threads are torch's default."""
    import torch  # noqa: PLC0415
    from torchrl.envs import AsyncEnvPool  # noqa: PLC0415

    warnings.simplefilter("ignore")
    if threads:
        torch.set_num_threads(threads)
    begun = time.perf_counter()
    env = AsyncEnvPool([functools.partial(native, work)] * work.num_envs, **options)
    ready = env.reset()
    startup = time.perf_counter() - begun
    actions = torch.arange(work.num_envs) % 2
    env.async_step_and_maybe_reset_send(ready.set("action", actions))

    def step() -> int:
        _, ready = env.async_step_and_maybe_reset_recv(min_get=1)
        count = len(ready)
        env.async_step_and_maybe_reset_send(ready.set("action", actions[:count]))
        return count

    found = measure(step, seconds)
    env.async_step_and_maybe_reset_recv(min_get=work.num_envs)
    env.close()
    return {"startup": startup, **found}


def measure_ours(
    work: Workload, seconds: float, *, inline: bool = False, **options: Any
) -> dict[str, Any]:
    """Transitions of one of our pools."""
    begun = time.perf_counter()
    env_fns = [functools.partial(Env, work)] * work.num_envs
    pool = DummyVectorEnv if inline else ShmemVectorEnv
    with pool(env_fns, wait_num=1, autoreset_mode="same_step", columns=True, **options) as envs:
        envs.reset()
        startup = time.perf_counter() - begun
        actions = np.arange(work.num_envs) % 2
        envs.send(actions)

        def step() -> int:
            envs.recv()
            ids = envs.batch_ids
            envs.send(actions[: len(ids)], ids)
            return len(ids)

        return {"startup": startup, **measure(step, seconds)}


def measure(step: Callable[[], int], seconds: float) -> dict[str, Any]:
    """Warm up for a third of the time; then count transitions."""
    rates = []
    for limit in (seconds / 3, seconds):
        count, begun = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < limit:
            count += step()
        rates.append(count / elapsed)
    return {"per_second": rates[-1]}


def contestants(num_envs: int) -> dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]]:
    """What is compared, by name."""
    cores = len(os.sched_getaffinity(0))
    ours: dict[str, dict[str, Any]] = {
        "DummyVectorEnv": {"inline": True},
        "ShmemVectorEnv": {},
        f"ShmemVectorEnv, num_processes={cores}": {"num_processes": cores},
    }
    forked = {"backend": "multiprocessing"}
    torchrl: dict[str, dict[str, Any]] = {
        "threading": {"backend": "threading"},
        "multiprocessing, queue": {**forked, "exchange": "queue"},
        "multiprocessing, shm": {**forked, "exchange": "shm"},
        f"multiprocessing, shm, {cores} processes": {
            **forked,
            "exchange": "shm",
            "envs_per_worker": -(-num_envs // cores),
        },
    }
    found: dict[str, Any] = {name: (measure_ours, options) for name, options in ours.items()}
    for (name, options), threads in itertools.product(torchrl.items(), (1, 0)):
        label = f"TorchRL {name}, {threads or 'default'} torch threads"
        found[label] = measure_torchrl, {"threads": threads, **options}
    return found


def one(workload: str, name: str, seconds: float) -> dict[str, Any]:
    """One measurement, in this process."""
    work = WORKLOADS[workload]
    function, options = contestants(work.num_envs)[name]
    return function(work, seconds, **options)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Medians, and in brackets the least and the greatest transitions per second."""
    lines = ["| workload | pool | transitions/s | start-up |", "| :-- | :-- | --: | --: |"]
    for key in dict.fromkeys((row["workload"], row["pool"]) for row in rows):
        some = [row for row in rows if (row["workload"], row["pool"]) == key]
        rates = [row["per_second"] for row in some]
        startup = statistics.median(row["startup"] for row in some)
        cell = f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        lines.append(f"| {key[0]} | {key[1]} | {cell} | {startup:.2f} s |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--workload", action="append", choices=WORKLOADS, help="default: all")
    add("--seconds", type=float, default=3.0, help="of one measurement; default: %(default)s")
    add("--repeats", type=int, default=3, help="default: %(default)s")
    add("--json", metavar="FILE", help="write all measurements")
    add("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        answer = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        multiprocessing.set_start_method("fork")  # for every pool, so that starts can be compared
        with answer:
            json.dump(one(*json.loads(args.one)), answer)
        return
    rows: list[dict[str, Any]] = []
    for _, workload in itertools.product(range(args.repeats), args.workload or WORKLOADS):
        for name in contestants(WORKLOADS[workload].num_envs):
            job = json.dumps([workload, name, args.seconds])
            load = os.getloadavg()[0]
            try:
                found = ask([sys.executable, __file__, "--one", job], _LIMIT)
            except MeasurementError as error:
                print(f"{workload}, {name}: {error}", file=sys.stderr)
                continue
            rows.append({"workload": workload, "pool": name, "load": load, **found})
            print(json.dumps(rows[-1]), file=sys.stderr)
            if args.json:
                Path(args.json).write_text(json.dumps(rows, indent=1))
    rows.sort(key=lambda row: list(WORKLOADS).index(row["workload"]))
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()
