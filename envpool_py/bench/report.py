"""All that a benchmark has found, and its file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from envpool_py.bench.job import Measurement
from envpool_py.bench.workloads import Workload

#: Of the file; a file of another one is not read.
_FORMAT = 1


class Result(NamedTuple):
    """What came of one measurement that was asked for."""

    workload: Workload
    contestant: str
    interpreter: str
    repeat: int
    measurement: Measurement | None
    error: str | None = None
    """Why there is no measurement."""


class Skipped(NamedTuple):
    """A contestant that does not do a workload."""

    workload: Workload
    contestant: str
    reason: str


@dataclass
class Report:
    """A benchmark.

    Attributes:
        command: what was typed, without paths.
        num_cores: the cores that might be used.
        machine: what kind of machine it was.
        seconds: how long each measurement took.
        versions: of the packages, for each interpreter.
        results: in the order in which they were measured.
        skipped: what was not measured.
    """

    command: str
    num_cores: int
    machine: str
    seconds: float
    versions: dict[str, dict[str, str]]
    results: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def workloads(self) -> list[Workload]:
        """The workloads, in the order in which they were measured."""
        return list(dict.fromkeys(result.workload for result in self.results))

    def write(self, path: str | Path) -> None:
        """Write it as JSON.

        Raises:
            OSError: the file can't be written.
        """
        content = {"format": _FORMAT, **asdict(self)}
        content["results"] = [
            {
                **result._asdict(),
                "workload": result.workload._asdict(),
                "measurement": result.measurement and result.measurement._asdict(),
            }
            for result in self.results
        ]
        content["skipped"] = [
            {**each._asdict(), "workload": each.workload._asdict()} for each in self.skipped
        ]
        Path(path).write_text(json.dumps(content, indent=1) + "\n")


def read(path: str | Path) -> Report:
    """Read what ``Report.write`` has written.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no report.
    """
    try:
        return _report(**json.loads(Path(path).read_text()))
    except (TypeError, ValueError):
        raise ValueError(f"{path} is no report of this version's envpool-py bench") from None


def merged(reports: Iterable[Report]) -> Report:
    """One report of all their results; what is said of the machine is the first one's."""
    first, *others = reports
    for other in others:
        first.results += other.results
        first.skipped += other.skipped
        first.versions |= other.versions
    return first


def _report(
    format: int,  # noqa: A002 - its name in the file
    results: list[dict[str, Any]],
    skipped: list[dict[str, Any]],
    **others: Any,
) -> Report:
    if format != _FORMAT:
        raise ValueError(f"format {format} is not {_FORMAT}")
    return Report(
        **others,
        results=[_result(**each) for each in results],
        skipped=[_skipped(**each) for each in skipped],
    )


def _skipped(workload: dict[str, Any], **others: Any) -> Skipped:
    return Skipped(workload=Workload(**workload), **others)


def _result(workload: dict[str, Any], measurement: dict[str, Any] | None, **others: Any) -> Result:
    return Result(
        workload=Workload(**workload),
        measurement=Measurement(**measurement) if measurement else None,
        **others,
    )
