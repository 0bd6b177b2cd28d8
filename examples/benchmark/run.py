"""Measure our pools beside those of other libraries, and make the tables of the docs.

    python examples/benchmark/run.py --markdown tables.md --json benchmark.json
    python examples/benchmark/run.py --workload spread --workload tictactoe --markdown agents.md
    python examples/benchmark/run.py --backend ceiling --backend shmem-caller --workload cartpole

Pools take turns, each in a fresh process. ``--json`` keeps the measurements; ``--read`` makes
tables of them without measuring.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import pandas as pd
from contestants import CEILING, CONTESTANTS, LIBRARIES, OURS
from rich import filesize
from workloads import AGENT_WORKLOADS, WAITS, WORKLOADS, Workload

from envpool_py.bench.measure import MeasurementError, ask
from envpool_py.cli.tables import duration, separated

_ONE = Path(__file__).with_name("one.py")
_WORK = {each.name: each for each in (*WORKLOADS, *AGENT_WORKLOADS)}
_LIMIT = 120.0  # seconds that a measurement may take in addition to --seconds


def main() -> None:
    """Measure or read, then write the files that the options name."""
    args = _arguments()
    records: list[dict[str, Any]] = []
    for k, path in enumerate(args.read or ()):
        rows = json.loads(Path(path).read_text())
        records += [{**row, "run": f"{k}/{row['run']}"} for row in rows]
    if not args.read:
        with contextlib.suppress(KeyboardInterrupt):  # finished measurements are kept
            for rows in _measured(args):
                records += [{**row, "run": ""} for row in rows]
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1))
    text = markdown(pd.DataFrame(records))
    print(text)
    if args.markdown:
        Path(args.markdown).write_text(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    works = {name for each in _WORK.values() for name in (each.name, each.env)}
    add("--workload", action="append", choices=sorted(works), help="default: all of Gymnasium's")
    pools = [OURS, CEILING, *LIBRARIES, *CONTESTANTS]
    add("--backend", action="append", choices=pools, help="default: all but the ceiling")
    add("--python", action="append", default=[], metavar="LIBRARY=PATH", help="where it is")
    add("--think", action="append", type=float, metavar="US", help="default: 0, 300 and 1000")
    add("--seconds", type=float, default=0.5)
    add("--repeats", type=int, default=3)
    add("--max-processes", type=int, default=256)
    for option in ("--json", "--markdown"):
        add(option, metavar="FILE")
    add(
        "--read",
        action="append",
        metavar="FILE",
        help="measure nothing, use what --json wrote; may be repeated",
    )
    return parser.parse_args()


def _measured(args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Records of each measurement, one pool after the other and over again."""
    pythons = dict.fromkeys((OURS, CEILING, *LIBRARIES), sys.executable)
    pythons |= dict(each.split("=", 1) for each in args.python)
    versions = {path: ask([path, str(_ONE), "null"], _LIMIT) for path in set(pythons.values())}
    num_cores = len(os.sched_getaffinity(0))
    thinks = [think / 1e6 for think in args.think or (0, 300, 1000)]
    for workload in _workloads(args):
        entries, common = [], {"workload": workload.name, "cores": num_cores}
        common["machine"] = f"{platform.machine()}, {platform.system()}"
        for name, contestant in CONTESTANTS.items():
            library, path = contestant.library, pythons[contestant.library]
            chosen = {name, library} & set(args.backend or (OURS, *LIBRARIES))
            installed = library not in LIBRARIES or LIBRARIES[library][0] in versions[path]
            if not chosen or not installed or contestant.face not in workload.faces:
                continue
            if reason := contestant.why_not(workload, args.max_processes):
                yield [{**common, "contestant": name, "error": f"not measured: {reason}"}]
            else:
                entries.append((name, path))
        bare = [("bare", path) for path in dict.fromkeys(path for _, path in entries)]
        failed = set()
        for repeat in range(args.repeats):
            for name, path in [*bare, *entries]:
                if (name, path) in failed:
                    continue
                print(f"{workload.name}: {name}", file=sys.stderr)
                own = {**common, "contestant": name, "repeat": repeat, "versions": versions[path]}
                processes = min(num_cores, workload.num_envs)
                job = {"contestant": name, "workload": workload, "num_processes": processes}
                job |= {"thinks": thinks, "seconds": args.seconds}
                limit = _LIMIT + 3 * args.seconds * len(thinks)
                try:
                    rows = ask([path, str(_ONE), json.dumps(job)], limit)
                    yield [{**own, **row} for row in rows]
                except MeasurementError as error:
                    failed.add((name, path))
                    yield [{**own, "error": f"failed: {error}"}]


def _workloads(args: argparse.Namespace) -> list[Workload]:
    if not args.workload:
        return list(WORKLOADS)
    return [each for each in _WORK.values() if {each.name, each.env} & set(args.workload)]


def figures(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each measurement.

    It has ratios to the bare env of the same run of this script, the same repeat and Python.
    """
    rows = found[found["steps"].notna()].copy()
    rows["python"] = rows["versions"].map(str)
    rows["rate"] = rows["steps"] / rows["seconds"]
    rows["cpu"] = rows["cpu_seconds"] / rows["steps"]
    rows["caller"] = rows["caller_seconds"] / rows["batches"] - rows["think"]
    rows["others"] = rows["others_seconds"] / rows["seconds"] / rows["cores"]
    keys = ["run", "workload", "python", "repeat"]
    bare = rows[rows["contestant"] == "bare"].set_index(keys)[["rate", "cpu"]]
    rows = rows[rows["contestant"] != "bare"].join(bare, on=keys, rsuffix="_bare")
    num_envs = rows["workload"].map(lambda name: _WORK[name].num_envs)
    waits = rows["workload"].map(lambda name: _WORK[name].env in WAITS)
    at_once = num_envs.where(waits, num_envs.clip(upper=rows["cores"]))
    rows["of_limit"] = rows["rate"] / (rows["rate_bare"] * at_once)
    rows["efficiency"] = rows["cpu_bare"] / rows["cpu"]
    return rows


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Of one workload: a line for each pool, the fastest first, medians and their spreads."""
    idle, lines = rows[rows["think"] == 0], {}
    order = idle.groupby("contestant")["of_limit"].median().sort_values(ascending=False)
    for name in order.index:
        own, others = idle[idle["contestant"] == name], rows[rows["contestant"] == name]
        line = {
            "steps/s": _spread(own["rate"], separated),
            "of limit": _spread(own["of_limit"], "{:.2f}".format),
            "CPU efficiency": _median(own["efficiency"], "{:.2f}".format),
            "CPU per step": _spread(own["cpu"], duration),
            "step() p50": _median(own["step_p50"], duration),
            "p99": _median(own["step_p99"], duration),
            "caller per batch": _median(own["caller"], duration),
            "start-up": _median(own["startup_seconds"], duration),
            "memory": _median(own["memory_bytes"], filesize.decimal),
        }
        for think in sorted(set(rows["think"]) - {0}):
            busy = others[others["think"] == think]
            line[f"steps/s, {1e6 * think:g} µs"] = _spread(busy["rate"], separated)
        lines[name] = line
    return pd.DataFrame(lines.values(), index=list(lines))


def libraries(rows: pd.DataFrame, think: float) -> pd.DataFrame:
    """Of each library the fastest pool of each workload, steps per second."""
    own = rows[rows["think"] == think]
    medians = own.groupby(["workload", "contestant"])["rate"].median().reset_index()
    medians["library"] = [CONTESTANTS[name].library for name in medians["contestant"]]
    best = medians.sort_values("rate").groupby(["library", "workload"]).last()
    best["text"] = best["rate"].map(separated) + " (" + best["contestant"] + ")"
    frame = best.pivot_table("text", "library", "workload", "first", fill_value="-")
    known = [name for name in (OURS, *LIBRARIES, CEILING) if name in frame.index]
    return frame.loc[known, list(dict.fromkeys(own["workload"]))]


def markdown(found: pd.DataFrame) -> str:
    """All tables."""
    if "steps" not in found:
        return "nothing was measured\n"
    rows = figures(found)
    parts = [f"{found['cores'].iloc[0]} cores ({found['machine'].iloc[0]})."]
    for think in sorted(set(rows["think"])):
        title = f"### steps/s, the caller computes {1e6 * think:g} µs"
        parts += [title, _markdown(libraries(rows, think))]
    for name in dict.fromkeys(found["workload"]):
        own = rows[rows["workload"] == name]
        parts += [f"### {name}", _markdown(table(own))]
        if "error" in found:
            bad = found[(found["workload"] == name) & found["error"].notna()]
            parts += [f"{row.contestant} {row.error}." for row in bad.itertuples()]
        if own["others"].median() > 0.05:
            parts.append(f"{own['others'].median():.0%} of the machine was busy with other work.")
    versions = {str(each): each for each in found["versions"].dropna()}
    names = [f"Python {k}" for k in range(1, len(versions) + 1)]
    packages = pd.DataFrame(versions.values(), index=names).T.fillna("")
    return "\n\n".join([*parts, "### Versions", _markdown(packages)]) + "\n"


def _median(values: pd.Series, text: Any) -> str:
    return "-" if values.dropna().empty else text(values.median())


def _spread(values: pd.Series, text: Any) -> str:
    if len(values) < 2:
        return _median(values, text)
    return f"{text(values.median())} ({text(values.min())} to {text(values.max())})"


def _markdown(frame: pd.DataFrame) -> str:
    lines = [["", *frame.columns], [":--", *("--:" for _ in frame.columns)]]
    lines += [[str(index), *row] for index, row in zip(frame.index, frame.values, strict=True)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    main()
