"""Make the animation of the README from a real run: an SVG that stands still if motion is reduced.

    python docs/build/animation.py --out docs/pictures/animation.svg

Eight envs are stepped in whole batches and in partial batches. Env 2 is slow now and then, and the
process of env 5 is killed. Both runs are recorded and drawn on one time axis, many times slower.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

from pictures import policy, simulators

import envpool_py

NUM_ENVS, SLOW, VICTIM = 8, 2, 5
KILL_AT = 0.35
"""The part of the time after which the process of ``VICTIM`` is killed."""


class Run(NamedTuple):
    """All times in seconds from the begin."""

    seconds: float
    policy: list[tuple[float, float]]
    steps: list[list[tuple[float, float]]]
    """Of each env."""
    batches: list[tuple[float, int]]
    """When each was received, and its number of rows."""
    killed: float
    restarted: float
    """When the new env was there."""


def record(wait_num: int | None, seconds: float, startup: float = 0.06) -> Run:
    """Step the envs for so long; their policy computes before each batch."""
    restarts: list[float] = []
    pool = envpool_py.ShmemVectorEnv(
        simulators(NUM_ENVS, slow_env=SLOW, startup=startup),
        wait_num,
        on_error="restart",
        on_restart=lambda _env_id, _error: restarts.append(time.perf_counter()),
        autoreset_mode="same_step",
    )
    computed: list[tuple[float, float]] = []
    steps: list[list[tuple[float, float]]] = [[] for _ in range(NUM_ENVS)]
    batches: list[tuple[float, int]] = []
    killed: list[float] = []
    with pool:
        pool.reset(seed=0)
        pid = pool.get_env_attr("pid")[VICTIM]
        ids = list(range(NUM_ENVS))
        start = time.perf_counter()

        def kill() -> None:
            killed.append(time.perf_counter() - start)
            os.kill(pid, signal.SIGSEGV)

        timer = threading.Timer(KILL_AT * seconds, kill)
        timer.start()
        while (now := time.perf_counter() - start) < seconds:
            policy(len(ids))
            computed.append((now, time.perf_counter() - start))
            *_, infos = pool.step([0] * len(ids), ids)
            ids = pool.batch_ids.tolist()
            batches.append((time.perf_counter() - start, len(ids)))
            for info in infos:
                if "env_error" not in info:
                    steps[info["env_id"]].append((info["began"] - start, info["ended"] - start))
        timer.join()
        pool.drain()
    restarted = restarts[0] - start if restarts else seconds
    return Run(seconds, computed, steps, batches, killed[0], restarted)


# ------------------------------------------------------------------------------------ drawing

PANEL, LANE, LEFT, TOP = 380, 17, 62, 60
"""The size of a panel of lanes and its place, in pixels."""
TICKS, LINE = 60, 44
"""How often the counter changes, and the height of its numbers in pixels."""

STYLE = """
svg { --card: #ffffff; --ink: #24292f; --soft: #57606a; --line: #d0d7de; --step: #1f6feb;
  --policy: #8250df; --restart: #d9822b; --kill: #cf222e;
  font: 12px ui-sans-serif, system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  svg { --card: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --step: #58a6ff;
    --policy: #bc8cff; --restart: #e3a04f; --kill: #ff7b72 } }
text { fill: var(--soft) } .title { fill: var(--ink); font-size: 15px; font-weight: 600 }
.count { fill: var(--step); font-size: 24px; font-weight: 700; text-anchor: end }
.card, .cover { fill: var(--card) } .lane { stroke: var(--line) }
.step { fill: var(--step) } .policy { fill: var(--policy) } .restart { fill: var(--restart) }
.kill { fill: var(--kill); font-size: 15px; font-weight: 700 }
.signal { fill: var(--card); font-size: 10px; font-weight: 700 } .head { stroke: var(--ink) }
.phone { display: none }
@media (max-width: 600px) {
  .phone { display: inline } .wide { display: none }
  .title, .phone text { font-size: 26px } .unit { font-size: 22px }
  .count { font-size: 38px } .signal { font-size: 15px } }
.tape { transform: translateY(-TAPEpx) } .cover, .head { transform: translateX(PANELpx) }
@media (prefers-reduced-motion: no-preference) {
  .tape { animation: tape 14s -6s infinite }
  .cover, .head { animation: move 14s linear -6s infinite } }
@keyframes move { 0% { transform: none } 85%, 100% { transform: translateX(PANELpx) } }
@keyframes tape { 0% { transform: none; animation-timing-function: steps(TICKS) }
  85%, 100% { transform: translateY(-TAPEpx) } }
"""


def panel(title: str, more: str, run: Run, left: int) -> list[str]:
    """The lanes of a run, the cover that moves away, and the counter of steps."""
    height = LANE * (NUM_ENVS + 1)
    scale = PANEL / run.seconds

    def bar(kind: str, lane: int, begin: float, end: float) -> str:
        begin, end = max(begin, 0.0), min(end, run.seconds)
        x, width = begin * scale, max((end - begin) * scale, 0.6)
        y = lane * LANE + 3
        return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 6}"/>'

    names = ["policy", *(f"env {i}" for i in range(NUM_ENVS))]
    found = [f'<g transform="translate({left} {TOP})">']
    more = f'<tspan class="wide">{more}</tspan>'
    found.append(f'<text class="title" x="0" y="-22">{title}{more}</text>')
    for lane, name in enumerate(names):
        y = lane * LANE + 13
        found.append(f'<text class="wide" x="-8" y="{y}" text-anchor="end">{name}</text>')
    found.append(f'<svg width="{PANEL + 1}" height="{height}" overflow="hidden">')
    for lane in range(NUM_ENVS + 1):
        y = lane * LANE + LANE / 2
        found.append(f'<path class="lane" d="M0 {y}H{PANEL}" stroke-width="1"/>')
    found += [bar("policy", 0, *span) for span in run.policy]
    found += [bar("step", i + 1, *span) for i, own in enumerate(run.steps) for span in own]
    found.append(bar("restart", VICTIM + 1, run.killed, run.restarted))
    at = run.killed * scale
    y = (VICTIM + 1) * LANE + 13
    found.append(f'<text class="kill" x="{at - 13:.1f}" y="{y}">✕</text>')
    found.append(f'<text class="signal" x="{at + 6:.1f}" y="{y - 0.5}">SIGSEGV</text>')
    found.append(f'<rect class="cover" x="0" y="0" width="{PANEL + 2}" height="{height}"/>')
    found.append(f'<path class="head" d="M0 0V{height}"/></svg>')
    done = [0] * (TICKS + 1)
    for tick in range(TICKS + 1):
        until = run.seconds * tick / TICKS
        done[tick] = sum(rows for moment, rows in run.batches if moment <= until)
    found.append(f'<svg x="{PANEL - 160}" y="-57" width="160" height="{LINE}" overflow="hidden">')
    found.append('<g class="tape">')
    for tick, count in enumerate(done):
        found.append(f'<text class="count" x="90" y="{tick * LINE + 35}">{count}</text>')
    found.append("</g></svg>")
    found.append(f'<text class="title unit" x="{PANEL}" y="-22" text-anchor="end">steps</text></g>')
    return found


def draw(whole: Run, partial: Run) -> str:
    """The text of the SVG."""
    height = TOP + LANE * (NUM_ENVS + 1) + 40
    width = 2 * (LEFT + PANEL) + 24
    counts = [sum(rows for _, rows in run.batches) for run in (whole, partial)]
    label = (
        f"Eight envs for {1e3 * whole.seconds:.0f} milliseconds. One is slow now and then, one is"
        f" killed and restarted. Whole batches: {counts[0]} steps. Partial batches: {counts[1]}."
    )
    style = STYLE.replace("PANEL", str(PANEL)).replace("TAPE", str(TICKS * LINE))
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f' role="img" aria-label="{label}">',
        f"<style>{style.replace('TICKS', str(TICKS))}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
        *panel("Whole batches", " wait for all", whole, LEFT),
        *panel("Partial batches", ": wait_num=4", partial, 2 * LEFT + PANEL + 8),
    ]
    y = height - 16
    texts = {"policy": "policy computes", "step": "env steps", "restart": "env is restarted"}
    for place, (kind, text) in enumerate(texts.items()):
        for where, x, size in (("wide", LEFT + 150 * place, 12), ("phone", 14 + 310 * place, 24)):
            area = f'x="{x}" y="{y + 1 - size}" width="{size}" height="{size}"'
            own = f'<rect class="{kind}" {area}/>'
            own += f'<text x="{x + 1.5 * size}" y="{y}">{text}</text>'
            found.append(f'<g class="{where}">{own}</g>')
    slower = f"{1e3 * whole.seconds:.0f} ms of a real run, {0.85 * 14 / whole.seconds:.0f} x slower"
    end = f'<text class="wide" x="{width - 22}" y="{y}" text-anchor="end">{slower}</text></svg>'
    found.append(end)
    return "\n".join(found) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Record both runs and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", default="docs/pictures/animation.svg", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=0.4, help="default: %(default)s")
    args = parser.parse_args(argv)
    text = draw(record(None, args.seconds), record(NUM_ENVS // 2, args.seconds))
    Path(args.out).write_text(text, encoding="utf-8")
    print(f"{args.out}: {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
