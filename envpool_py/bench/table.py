"""Figures as tables, for people and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from envpool_py.bench import figures
from envpool_py.bench.contestants import BARE, BY_NAME, CEILING, EACH, INSIDE, OURS
from envpool_py.bench.figures import Row, Spread
from envpool_py.bench.report import Report
from envpool_py.bench.workloads import Workload

#: Above this part of the machine others were at work, and a reader should know.
_BUSY = 0.05

#: What was measured for how the cost of a small batch grows with the number of envs.
_FEW = Workload("spin-100", 64, 8)
_MANY = Workload("spin-100", 4096, 8)


class Table(NamedTuple):
    """Text in rows and columns; all columns but the first are figures."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def of_workload(report: Report, workload: Workload) -> Table:
    """What every contestant did with a workload, the fastest first."""
    rows = figures.rows(report, workload)
    header = ["backend", "steps/s", "of limit", "CPU efficiency", "CPU per step"]
    header += ["batch p50", "p99", "caller per batch", "start-up", "memory"]
    return Table(
        workload.title,
        header,
        [
            [
                label(row.contestant, report.num_cores),
                _spread(row.steps_per_second, count),
                _spread(row.of_limit, ratio),
                _median(row.cpu_efficiency, ratio),
                _maybe_spread(row.cpu_per_step, duration),
                _median(row.latency_p50, duration),
                _median(row.latency_p99, duration),
                _median(row.caller_per_batch, duration),
                _median(row.startup, duration),
                _median(row.memory_bytes, size),
            ]
            for row in rows
        ],
        list(_notes(report, workload, rows)),
    )


def summary(report: Report) -> Table | None:
    """Of every workload, what part of the limit the best of us and of the others reached.

    Returns:
        None: no pool was measured.
    """
    lines = []
    for workload in report.workloads():
        rows = [row for row in figures.rows(report, workload) if not _is_ceiling(row)]
        if not rows:
            continue
        lines.append(
            [
                workload.title,
                _winner(rows, report, lambda row: _is_ours(row) and not _is_inside(row)),
                _winner(rows, report, lambda row: _is_ours(row) and _is_inside(row)),
                _winner(rows, report, lambda row: not _is_ours(row) and not _is_inside(row)),
                _winner(rows, report, lambda row: not _is_ours(row) and _is_inside(row)),
            ]
        )
    header = ["work, of limit", "ours, processes", "ours, in process"]
    header += ["best other, processes", "best other, in process"]
    return Table("Summary", header, lines, []) if lines else None


def small_batches(report: Report) -> Table | None:
    """What a batch of 8 costs the caller among few envs and among many; None: not measured."""
    few = {row.contestant: row.caller_per_batch.median for row in figures.rows(report, _FEW)}
    many = {row.contestant: row.caller_per_batch.median for row in figures.rows(report, _MANY)}
    both = [name for name in few if name in many and BY_NAME[name].processes != INSIDE]
    if not both:
        return None
    rows = [
        [
            label(name, report.num_cores),
            duration(few[name]),
            duration(many[name]),
            f"{many[name] / few[name]:.2f}",
        ]
        for name in both
    ]
    header = ["backend", f"of {_FEW.num_envs}", f"of {_MANY.num_envs}", "ratio"]
    return Table("CPU time of the caller for a batch of 8", header, rows, [])


def versions(report: Report) -> Table:
    """The versions of what was measured, a column for each interpreter."""
    packages = dict.fromkeys(name for each in report.versions.values() for name in each)
    rows = [[name, *(each.get(name, "") for each in report.versions.values())] for name in packages]
    return Table("Versions", ["", *report.versions], rows, [])


def markdown(report: Report) -> str:
    """All tables."""
    head = (
        f"`{report.command}`, on {report.num_cores} cores ({report.machine}), medians of"
        f" measurements of {report.seconds:g} s, each in a process of its own."
    )
    tables = [summary(report), small_batches(report)]
    tables += [of_workload(report, workload) for workload in report.workloads()]
    tables += [versions(report)]
    return "\n\n".join([head, *(_markdown(table) for table in tables if table)]) + "\n"


def label(name: str, num_cores: int) -> str:
    """A contestant's title; what our pools are set to stands behind it."""
    if name == BARE:
        return "bare env"
    contestant = BY_NAME[name]
    if contestant.library != OURS or contestant.processes == INSIDE:
        return contestant.title
    beside = max(num_cores - 1, 1) if name.startswith("shmem-caller") else num_cores
    how = "a process each" if contestant.processes == EACH else f"num_processes={beside}"
    return f"{contestant.title}, {how}"


def count(value: float) -> str:
    """Three digits; thousands as k, millions as M."""
    for unit, text in ((1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * unit:
            return _digits(value / unit) + text
    return _digits(value)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, text in ((1.0, " s"), (1e-3, " ms")):
        if seconds >= 0.9995 * unit:
            return _digits(seconds / unit) + text
    return _digits(seconds / 1e-6) + " µs"


def size(bytes_: float) -> str:
    """Megabytes."""
    return f"{bytes_ / 1e6:.0f} MB"


def ratio(value: float) -> str:
    """Two decimals, more where it is small."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _digits(value: float) -> str:
    """Three digits, or all of those before the point."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def _median(spread: Spread | None, text: Callable[[float], str]) -> str:
    return "-" if spread is None else text(spread.median)


def _spread(spread: Spread, text: Callable[[float], str]) -> str:
    median, least, greatest = map(text, spread)
    return median if least == greatest else f"{median} ({least} to {greatest})"


def _maybe_spread(spread: Spread | None, text: Callable[[float], str]) -> str:
    return "-" if spread is None else _spread(spread, text)


def _winner(rows: Sequence[Row], report: Report, of: Callable[[Row], bool]) -> str:
    row = figures.best(rows, of)
    if row is None:
        return "-"
    return f"{ratio(row.of_limit.median)} ({label(row.contestant, report.num_cores)})"


def _is_ours(row: Row) -> bool:
    return BY_NAME[row.contestant].library == OURS


def _is_ceiling(row: Row) -> bool:
    return BY_NAME[row.contestant].library == CEILING


def _is_inside(row: Row) -> bool:
    return BY_NAME[row.contestant].processes == INSIDE


def _notes(report: Report, workload: Workload, rows: Sequence[Row]) -> Iterator[str]:
    for name, error in figures.failures(report, workload).items():
        yield f"{label(name, report.num_cores)} failed: {error}"
    reasons: dict[str, list[str]] = {}
    for skipped in report.skipped:
        if skipped.workload == workload:
            reasons.setdefault(skipped.reason, []).append(
                label(skipped.contestant, report.num_cores)
            )
    for reason, names in reasons.items():
        yield f"not measured: {'; '.join(names)}: {reason}"
    others = max((row.others.median for row in rows if row.others), default=0.0)
    if others > _BUSY:
        yield f"up to {others:.0%} of the machine was busy with something else meanwhile"


def _markdown(table: Table) -> str:
    aligned = [":--", *("--:" for _ in table.header[1:])]
    lines = [table.header, aligned, *table.rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "".join(f"\n\n{note[0].upper()}{note[1:]}." for note in table.notes)
    return f"## {table.title}\n\n{text}{notes}"
