"""Figures of a workload, from its measurements: medians, and ratios to the bare env."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from envpool_py.bench.contestants import BARE
from envpool_py.bench.job import Measurement
from envpool_py.bench.report import Report, Result
from envpool_py.bench.workloads import Workload


class Spread(NamedTuple):
    """The median of some repeats, the least and the greatest."""

    median: float
    least: float
    greatest: float


class Row(NamedTuple):
    """What a contestant did with a workload; None is what could not be read on that machine."""

    contestant: str
    steps_per_second: Spread
    of_limit: Spread
    """Of cores (of envs, where they wait) times one bare env of the same interpreter."""
    cpu_efficiency: Spread | None
    """CPU time per step of the bare env, over that of the whole process tree."""
    cpu_per_step: Spread | None
    """CPU seconds of the whole process tree."""
    latency_p50: Spread
    """Seconds, as the next ones."""
    latency_p99: Spread
    startup: Spread
    caller_per_batch: Spread
    """CPU time."""
    memory_bytes: Spread | None
    others: Spread | None
    """The part of the machine that was busy with something else."""


def spread(values: Sequence[float]) -> Spread:
    """The spread of one value or more."""
    return Spread(median(values), min(values), max(values))


def limit(workload: Workload, bare: Measurement, num_cores: int) -> float:
    """The most steps per second that this work allows."""
    at_once = workload.num_envs if workload.waits else min(num_cores, workload.num_envs)
    return at_once * bare.steps / bare.seconds


def cpu_efficiency(bare: Measurement, measured: Measurement) -> float | None:
    """CPU time of the bare env, over that of the whole process tree, each per step."""
    if bare.cpu_seconds is None or not measured.cpu_seconds:
        return None
    return (bare.cpu_seconds / bare.steps) / (measured.cpu_seconds / measured.steps)


def rows(report: Report, workload: Workload) -> list[Row]:
    """A row for each contestant that was measured, the fastest first.

    Each measurement is compared with the bare env of the same repeat and interpreter.
    """
    of_workload = [result for result in report.results if result.workload == workload]
    bare = {
        (result.interpreter, result.repeat): result.measurement
        for result in of_workload
        if result.contestant == BARE and result.measurement
    }
    names = dict.fromkeys(each.contestant for each in of_workload if each.contestant != BARE)
    found = [
        _row(report, workload, name, _pairs(of_workload, name, bare))
        for name in names
        if _pairs(of_workload, name, bare)
    ]
    return sorted(found, key=lambda row: row.of_limit.median, reverse=True)


def failures(report: Report, workload: Workload) -> dict[str, str]:
    """Why contestants have no row, or fewer repeats than others."""
    return {
        result.contestant: result.error
        for result in report.results
        if result.workload == workload and result.error
    }


def best(rows_: Iterable[Row], of: Callable[[Row], bool]) -> Row | None:
    """The fastest of those rows; None: there is none."""
    return max(filter(of, rows_), key=lambda row: row.of_limit.median, default=None)


_Pairs = list[tuple[Measurement, Measurement]]


def _pairs(results: list[Result], name: str, bare: dict[tuple[str, int], Measurement]) -> _Pairs:
    """What a contestant did, each with the bare env that it is compared with."""
    return [
        (bare[result.interpreter, result.repeat], result.measurement)
        for result in results
        if result.contestant == name
        and result.measurement
        and (result.interpreter, result.repeat) in bare
    ]


def _row(report: Report, workload: Workload, name: str, pairs: _Pairs) -> Row:
    cores = report.num_cores

    def over(figure: Callable[[Measurement], float]) -> Spread:
        return spread([figure(measured) for _, measured in pairs])

    def maybe(figures: list[float | None]) -> Spread | None:
        known = [each for each in figures if each is not None]
        return spread(known) if known else None

    return Row(
        contestant=name,
        steps_per_second=over(lambda each: each.steps / each.seconds),
        of_limit=spread(
            [
                measured.steps / measured.seconds / limit(workload, bare, cores)
                for bare, measured in pairs
            ]
        ),
        cpu_efficiency=maybe([cpu_efficiency(bare, measured) for bare, measured in pairs]),
        cpu_per_step=maybe(
            [
                None if measured.cpu_seconds is None else measured.cpu_seconds / measured.steps
                for _, measured in pairs
            ]
        ),
        latency_p50=over(lambda each: each.latency_p50),
        latency_p99=over(lambda each: each.latency_p99),
        startup=over(lambda each: each.startup_seconds),
        caller_per_batch=over(lambda each: each.caller_seconds / each.batches),
        memory_bytes=maybe([measured.memory_bytes for _, measured in pairs]),
        others=maybe(
            [
                measured.others_seconds and measured.others_seconds / measured.seconds / cores
                for _, measured in pairs
            ]
        ),
    )
