"""Make the pictures of the docs: each from a run that this script measures, a PNG under 150 kB.

::

    python docs/build/pictures.py timeline crash
    python docs/build/pictures.py all --out docs/pictures
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import envpool_py
from envpool_py.bench import measure, timeline
from envpool_py.bench.timeline import Span, Timeline

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


def draw_card(args: argparse.Namespace) -> Figure:
    """What previews of the pages in chats show: the name above a run of partial batches."""
    found = record_timelines(args.seconds)["Partial batches, wait_num=4"]
    figure = Figure(figsize=(8, 4.2), layout="none")
    figure.text(0.05, 0.83, "envpool_py", fontsize=34, weight="bold", color=BLUE)
    text = "Any Python environment, many at a time, at full speed,\nand no crash ends the run."
    figure.text(0.05, 0.62, text, fontsize=17, color=DARK)
    panel = figure.add_axes((0.05, 0.06, 0.9, 0.5))
    colours = {timeline.STEP: BLUE, timeline.DONE: GREY, timeline.CALLER: ORANGE}
    timeline.draw_spans(panel, [found.caller, *found.envs], colours)
    panel.set(xlim=(0, 1e3 * found.seconds))
    panel.set_axis_off()
    return figure


PICTURES: dict[str, Callable[[argparse.Namespace], Figure]] = {
    "timeline": draw_timeline,
    "grid": draw_grid,
    "crash": draw_crash,
    "card": draw_card,
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
    add("--seconds", type=float, default=1.0, help="of each measurement; default: %(default)s")
    args = parser.parse_args(argv)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in PICTURES if "all" in args.names else args.names:
            path = Path(args.out) / f"{name}.png"
            _save(PICTURES[name](args), path)
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
