"""What is measured in which order, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from envpool_py.bench import contestants
from envpool_py.bench.contestants import BARE, CEILING, OURS, Contestant
from envpool_py.bench.interpreters import Interpreter, MeasurementError, carry_out
from envpool_py.bench.job import Job, Measurement
from envpool_py.bench.report import Report, Result, Skipped
from envpool_py.bench.workloads import Workload


class Entry(NamedTuple):
    """A contestant, or the bare env, and who measures it."""

    contestant: str
    interpreter: Interpreter
    ours: bool = False


Measure = Callable[[Entry, Job], Measurement]


def entries(
    workload: Workload,
    chosen: Sequence[Contestant],
    found: dict[str, Interpreter],
    max_processes: int,
) -> tuple[list[Entry], list[Skipped]]:
    """Who is measured with a workload, the bare env of every interpreter first, and who is not."""
    taking_part: list[Entry] = []
    skipped: list[Skipped] = []
    for contestant in chosen:
        if contestant.library not in found or not contestants.takes_part(contestant, workload):
            continue
        reason = contestants.why_not(contestant, workload, max_processes)
        if reason:
            skipped.append(Skipped(workload, contestant.name, reason))
        else:
            interpreter = found[contestant.library]
            taking_part.append(
                Entry(contestant.name, interpreter, contestant.library in (OURS, CEILING))
            )
    interpreters = {entry.interpreter.name: entry.interpreter for entry in taking_part}
    return [Entry(BARE, each) for each in interpreters.values()] + taking_part, skipped


def measure(entry: Entry, job: Job) -> Measurement:
    """Measure in a fresh process."""
    return carry_out(entry.interpreter, job, ours=entry.ours)


def run(
    report: Report,
    workload: Workload,
    taking_part: Sequence[Entry],
    repeats: int,
    measure: Measure = measure,
) -> Iterator[Entry]:
    """Measure a workload, one contestant after the other and over again, into ``report``.

    A contestant that fails is not tried again.

    Yields:
        Whose turn it is, before it is measured.
    """
    failed: set[tuple[str, str]] = set()
    for repeat in range(repeats):
        for entry in taking_part:
            yield entry
            if (entry.contestant, entry.interpreter.name) in failed:
                continue
            job = Job(
                entry.contestant,
                workload.env,
                workload.num_envs,
                workload.wait_num,
                min(report.num_cores, workload.num_envs),
                report.seconds,
            )
            measurement, error = None, None
            try:
                measurement = measure(entry, job)
            except MeasurementError as failure:
                error = str(failure)
                failed.add((entry.contestant, entry.interpreter.name))
            report.results.append(
                Result(
                    workload, entry.contestant, entry.interpreter.name, repeat, measurement, error
                )
            )
