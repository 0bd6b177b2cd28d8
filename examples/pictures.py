"""Make the pictures of the docs: each from a run that this script measures, a PNG under 150 kB.

    python examples/pictures.py timeline crash
    python examples/pictures.py throughput --read benchmark.json
    python examples/pictures.py all --read benchmark.json --out docs/pictures

``throughput`` draws the measurements of ``examples/benchmark/run.py --json benchmark.json``.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where envpool_py is

import gymnasium as gym
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter
from PIL import Image

import envpool_py
from envpool_py.bench import measure, settings, timeline, tune
from envpool_py.bench.settings import Setting
from envpool_py.bench.timeline import Span, Timeline
from envpool_py.cli.tables import duration

BLUE, ORANGE, RED, DARK, GREY = "#1f6feb", "#d9822b", "#c62828", "#24292f", "#c9d1d9"
STYLE = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}
WIDTH = 6.4
"""Of each picture, in inches: few, so that its letters are large on a phone."""

THINK = 300e-6
"""Seconds of CPU time that the caller computes before each batch."""

CALLER = measure.Caller(THINK)
CARTPOLE = functools.partial(gym.make, "CartPole-v1")

NUM_CORES = len(os.sched_getaffinity(0))


class Simulator(gym.Env):
    """An env that waits for a simulator: 4 ms a step, and sometimes ``slow`` seconds.

    The info has the times at which each step and reset began and ended, ``began`` and ``ended``.
    """

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seed: int = 0, slow: float = 0.0, startup: float = 0.0) -> None:
        self._random = np.random.default_rng(seed)
        self._slow = slow
        self.pid = os.getpid()
        time.sleep(startup)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        now = time.perf_counter()
        return np.zeros(4, np.float32), {"began": now, "ended": now}

    def step(self, action: Any) -> Any:
        """Wait."""
        began = time.perf_counter()
        seconds = self._random.uniform(0.003, 0.005)
        if self._random.random() < 0.25:
            seconds += self._slow
        time.sleep(seconds)
        times = {"began": began, "ended": time.perf_counter()}
        return np.zeros(4, np.float32), float(action), False, False, times


def simulators(num_envs: int, slow_env: int, **kwargs: Any) -> list[Callable[[], Simulator]]:
    """Callables that make the envs; one of them is slow now and then."""
    return [
        functools.partial(Simulator, i, 0.02 if i == slow_env else 0.0, **kwargs)
        for i in range(num_envs)
    ]


def policy(num_rows: int) -> None:
    """Compute for 0.3 ms, and for 0.4 ms more for each row."""
    measure.compute(0.0003 + 0.0004 * num_rows)


# --------------------------------------------------------------------------------- timelines


def record_timelines(seconds: float) -> dict[str, Timeline]:
    """Of whole batches and of partial batches of the same eight envs."""
    found = {}
    for name, wait_num in (("Whole batches", None), ("Partial batches, wait_num=4", 4)):
        env_fns = [timeline.noted(env_fn) for env_fn in simulators(8, slow_env=2)]
        with envpool_py.ShmemVectorEnv(env_fns, wait_num, autoreset_mode="same_step") as pool:
            found[name] = timeline.record(pool, 0.15 * seconds, 0.1 * seconds, policy)
    return found


def draw_timeline(args: argparse.Namespace) -> Figure:
    """Whole batches above, partial batches below, on one time axis."""
    found = record_timelines(args.seconds)
    figure = Figure(figsize=(WIDTH, 6.8))
    panels = figure.subplots(2, sharex=True)
    colours = {timeline.STEP: BLUE, timeline.DONE: GREY, timeline.CALLER: DARK}
    for panel, (name, run) in zip(panels, found.items(), strict=True):
        rate = sum(map(len, run.batches)) / run.seconds
        timeline.draw_spans(panel, [run.caller, *run.envs], colours)
        panel.set_yticks(range(9), ["policy", *(f"env {i}" for i in range(8))], fontsize=10)
        panel.set(title=f"{name}: {rate:,.0f} steps/s", xlim=(0, 1e3 * run.seconds))
    panels[1].set_xlabel("time in milliseconds")
    texts = "env steps", "row waits for others", "policy computes"
    _legend(figure, dict(zip(texts, colours.values(), strict=True)))
    return figure


class Crash(NamedTuple):
    """A run in which an env's process is killed; all times in seconds from its begin."""

    env_id: int
    killed: float
    restarted: float
    error: str
    seconds: float
    steps: list[list[Span]]
    """Of each env."""
    batches: list[tuple[float, list[int]]]
    """When each was received, and the ids of its rows."""


def record_crash(seconds: float, kill_by: int = signal.SIGSEGV) -> Crash:
    """Kill env 2 by a signal while it steps; partial batches go on, and the pool restarts it."""
    restarts: list[float] = []

    def on_restart(_env_id: int, _error: Exception) -> None:
        restarts.append(time.perf_counter())

    victim, killed, error = 2, 0.0, ""
    pool = envpool_py.ShmemVectorEnv(
        simulators(6, slow_env=-1, startup=0.06 * seconds),
        wait_num=3,
        on_error="restart",
        on_restart=on_restart,
        autoreset_mode="same_step",
    )
    steps: list[list[Span]] = [[] for _ in range(6)]
    batches: list[tuple[float, list[int]]] = []
    with pool:
        pool.reset(seed=0)
        pids = pool.get_env_attr("pid")
        start = time.perf_counter()
        ids, steps_after = list(range(6)), 0
        while steps_after < 8 or time.perf_counter() - start < 0.25 * seconds:
            if not killed and victim not in ids and time.perf_counter() - start > 0.06 * seconds:
                killed = time.perf_counter() - start
                os.kill(pids[victim], kill_by)
            policy(len(ids))
            *_, infos = pool.step([0] * len(ids), ids)
            ids = pool.batch_ids.tolist()
            batches.append((time.perf_counter() - start, ids))
            for info in infos:
                if "env_error" in info:
                    error = str(info["env_error"])
                else:
                    span = (timeline.STEP, info["began"] - start, info["ended"] - start)
                    steps[info["env_id"]].append(span)
                    steps_after += info["env_id"] == victim and bool(error)
        pool.drain()
    return Crash(victim, killed, restarts[0] - start, error, batches[-1][0], steps, batches)


def draw_crash(args: argparse.Namespace) -> Figure:
    """A line for each env, and a mark for each batch."""
    run = record_crash(args.seconds)
    restarting = "the pool restarts the env"
    colours = {timeline.STEP: BLUE, restarting: ORANGE}
    lines = [list(spans) for spans in run.steps]
    lines[run.env_id].append((restarting, run.killed, run.restarted))
    figure = Figure(figsize=(WIDTH, 4.4))
    panel = figure.subplots()
    timeline.draw_spans(panel, [[], *lines], colours)
    panel.plot([1e3 * at for at, _ in run.batches], [0] * len(run.batches), "|", color=DARK, ms=13)
    panel.plot(1e3 * run.killed, run.env_id + 1, "X", color=RED, ms=12)
    panel.set_yticks(range(7), ["batches", *(f"env {i}" for i in range(6))])
    panel.set(xlabel="time in milliseconds", xlim=(0, 1e3 * run.seconds))
    meanwhile = sum(run.killed < at < run.restarted for at, _ in run.batches)
    panel.set_title(f"Env {run.env_id} crashes: {meanwhile} batches arrive before it is back")
    panel.annotate(
        "SIGSEGV",
        (1e3 * run.killed, run.env_id + 1),
        (10, 0),
        textcoords="offset points",
        va="center",
        color="white",
        weight="bold",
    )
    _legend(figure, {"env steps": BLUE, restarting: ORANGE})
    return figure


def _legend(figure: Figure, colours: dict[str, str]) -> None:
    handles = [Patch(color=colour, label=text) for text, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=11)


# ------------------------------------------------------------------------------------ figures

LIBRARIES = {
    "shmem-caller": "envpool_py, caller_steps",
    "shmem": "envpool_py, processes",
    "gymnasium-sync": "Gymnasium Sync",
    "gymnasium-async": "Gymnasium Async",
    "sb3-dummy": "SB3 Dummy",
    "sb3-subproc": "SB3 Subproc",
    "tianshou-dummy": "Tianshou Dummy",
    "tianshou-shmem": "Tianshou Shmem",
    "pufferlib-serial": "PufferLib Serial",
    "pufferlib-multiprocessing": "PufferLib, 1 process fewer",
    "pufferlib-recommended": "PufferLib, recommended",
    "envpool-cpp": "EnvPool (its own C++ env)",
}


def rates_of_libraries(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Steps per second of each contestant in each workload, medians: a caller that computes."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in records:
        if row["contestant"] in LIBRARIES and row.get("steps") and row["think"] == THINK:
            found[row["workload"]][row["contestant"]].append(row["steps"] / row["seconds"])
    return {
        workload: {name: median(rates) for name, rates in own.items()}
        for workload, own in found.items()
    }


def draw_throughput(args: argparse.Namespace) -> Figure:
    """A panel for each workload, a bar for each way to step it."""
    found = rates_of_libraries(json.loads(Path(args.read).read_text()))
    titles = {"cartpole-x64": "64 CartPoles", "halfcheetah-x16": "16 HalfCheetahs"}
    figure = Figure(figsize=(WIDTH, 0.5 + 4.1 * len(found)))
    panels = figure.subplots(len(found), squeeze=False)[:, 0]
    for panel, (workload, rates) in zip(panels, found.items(), strict=True):
        names = sorted(rates, key=lambda name: rates[name])
        values = [rates[name] for name in names]
        colours = [BLUE if "envpool_py" in LIBRARIES[name] else GREY for name in names]
        hatches = ["//" if name == "envpool-cpp" else "" for name in names]
        bars = panel.barh([LIBRARIES[name] for name in names], values, color=colours, hatch=hatches)
        texts = [f"{value / 1e3:.{0 if value >= 1e4 else 1}f} k" for value in values]
        panel.bar_label(bars, texts, padding=3, fontsize=11)
        panel.set(title=titles.get(workload, workload), xlim=(0, 1.15 * max(values)))
        panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
    figure.supxlabel("env steps per second; the caller computes 300 µs per batch", fontsize=12)
    return figure


def rates_by_num_envs(seconds: float, rounds: int) -> dict[str, dict[int, float]]:
    """Steps per second of CartPole for each pool and number of envs; medians."""
    counts = [2**power for power in range(9)]
    pools = {
        "envpool_py, 2 processes": lambda n: Setting("shmem", n, min(NUM_CORES, n)),
        "envpool_py, in process": lambda n: Setting("dummy", n),
        "Gymnasium Sync": lambda n: Setting(settings.SYNC, n),
    }
    found: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in pools}
    for _ in range(rounds):
        for count in counts:
            for name, setting in pools.items():
                job = measure.Job(setting(count), CARTPOLE, [CALLER], 0.2 * seconds)
                found[name][count].append(measure.measure(job)[0].rate)
    return {
        name: {count: median(rates) for count, rates in own.items()} for name, own in found.items()
    }


def draw_scaling(args: argparse.Namespace) -> Figure:
    """A line for each pool."""
    figure = Figure(figsize=(WIDTH, 4.4))
    panel = figure.subplots()
    colours = BLUE, ORANGE, DARK
    found = rates_by_num_envs(args.seconds, args.rounds)
    for (name, rates), colour in zip(found.items(), colours, strict=True):
        panel.plot(rates.keys(), rates.values(), "o-", color=colour, label=name)
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(rates), list(rates))
    panel.yaxis.set_major_formatter(EngFormatter(sep=" "))
    panel.set(
        title=f"CartPole on {NUM_CORES} cores, the caller computes 300 µs",
        xlabel="number of envs",
        ylabel="env steps per second",
        ylim=(0, None),
    )
    panel.grid(color=GREY)
    panel.legend(frameon=False)
    return figure


class PartialBatches(NamedTuple):
    """Measured with one ``wait_num``."""

    rate: float
    """Steps per second."""
    batches_between: float
    """Batches that the caller receives between an action and its result; the mean."""
    most_batches_between: int


def measure_wait_num(seconds: float, num_envs: int = 16) -> dict[int, PartialBatches]:
    """For each ``wait_num``, with envs of which one is slow now and then."""
    found = {}
    for wait_num in (1, 2, 4, 8, 12, 16):
        env_fns = simulators(num_envs, slow_env=2)
        with envpool_py.ShmemVectorEnv(env_fns, wait_num, autoreset_mode="same_step") as pool:
            pool.reset(seed=0)
            ids, rows, number = np.arange(num_envs), 0, 0
            sent = np.zeros(num_envs, int)  # how many batches had been received at that time
            between: list[int] = []
            begun = time.perf_counter()
            while time.perf_counter() < begun + seconds:
                policy(len(ids))
                sent[ids] = number
                pool.step(np.zeros(len(ids), int), ids)
                ids = pool.batch_ids
                between += (number - sent[ids]).tolist()
                rows, number = rows + len(ids), number + 1
            rate = rows / (time.perf_counter() - begun)
            pool.drain()
        found[wait_num] = PartialBatches(rate, mean(between), max(between))
    return found


def draw_wait_num(args: argparse.Namespace) -> Figure:
    """Throughput above, staleness below."""
    found = measure_wait_num(args.seconds)
    figure = Figure(figsize=(WIDTH, 5.6))
    above, below = figure.subplots(2, sharex=True)
    above.plot(found.keys(), [each.rate for each in found.values()], "o-", color=BLUE)
    above.set(title="16 envs, one of them slow now and then", ylabel="env steps per second")
    above.yaxis.set_major_formatter(EngFormatter(sep=" "))
    means = [each.batches_between for each in found.values()]
    below.plot(found.keys(), means, "o-", color=BLUE, label="mean")
    most = [each.most_batches_between for each in found.values()]
    below.plot(found.keys(), most, "o--", color=DARK, label="most")
    below.set(xlabel="wait_num: rows per batch", ylabel="batches between\naction and result")
    below.set_xticks(list(found))
    below.legend(frameon=False)
    for panel in (above, below):
        panel.set_ylim(0, None)
        panel.grid(color=GREY)
    return figure


def draw_tuning(args: argparse.Namespace) -> Figure:
    """A bar for each setting that ``tune`` tried."""
    num_envs, results = 64, measure.Results()
    given = tune.first_settings(num_envs, NUM_CORES, 64, [CALLER])
    seconds = 30 * args.seconds
    for _ in tune.try_settings(results, given, [CALLER], measure.carry_out, CARTPOLE, seconds):
        pass
    best = tune.recommended(results, CALLER)
    ranked = results.ranked(CALLER)[::-1]
    figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(ranked)))
    panel = figure.subplots()
    values = [results.rate(setting, CALLER) for setting in ranked]
    colours = [BLUE if setting == best else GREY for setting in ranked]
    bars = panel.barh([setting.text for setting in ranked], values, color=colours)
    panel.tick_params(axis="y", labelsize=10)
    latencies = [median(each.step_p50 for each in results.of(key, CALLER)) for key in ranked]
    panel.bar_label(bars, [duration(each) for each in latencies], padding=3, fontsize=11)
    figure.supxlabel("env steps per second; beside the bars: time of one step()", fontsize=12)
    panel.set_xlim(0, 1.2 * max(values))
    panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
    figure.suptitle(f"tune CartPole-v1 --num-envs {num_envs}: blue is recommended", weight="bold")
    return figure


# ----------------------------------------------------------------------------------- drawings


def draw_grid(_args: argparse.Namespace) -> Figure:
    """``render_grid`` of 16 CartPoles."""
    pool = envpool_py.make(
        "CartPole-v1", 16, num_processes=2, env_kwargs={"render_mode": "rgb_array"}
    )
    with pool:
        pool.reset(seed=0)
        for _ in range(12):
            pool.step([space.sample() for space in pool.action_space])
        image = pool.render_grid()
    figure = Figure(figsize=(WIDTH, 4.6))
    panel = figure.subplots()
    panel.imshow(image, interpolation="antialiased")
    panel.set_xticks(np.arange(1, 4) * image.shape[1] / 4, [])
    panel.set_yticks(np.arange(1, 4) * image.shape[0] / 4, [])
    panel.grid(color=DARK)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title("pool.render_grid(): 16 envs in one image")
    return figure


PICTURES: dict[str, Callable[[argparse.Namespace], Figure]] = {
    "timeline": draw_timeline,
    "throughput": draw_throughput,
    "scaling": draw_scaling,
    "wait_num": draw_wait_num,
    "tuning": draw_tuning,
    "grid": draw_grid,
    "crash": draw_crash,
}


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG with a palette, which has a third of the usual size."""
    drawn = io.BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the pictures that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="+", choices=["all", *PICTURES], metavar="NAME", help=", ".join(PICTURES))
    add("--out", default="docs/pictures", metavar="FOLDER", help="default: %(default)s")
    add("--read", default="benchmark.json", metavar="FILE", help="of throughput: the measurements")
    add("--seconds", type=float, default=1.0, help="of each measurement; default: %(default)s")
    add("--rounds", type=int, default=5, help="of scaling; default: %(default)s")
    args = parser.parse_args(argv)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in PICTURES if "all" in args.names else args.names:
            path = Path(args.out) / f"{name}.png"
            _save(PICTURES[name](args), path)
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
