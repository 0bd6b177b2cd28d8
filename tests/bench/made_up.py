"""Measurements that were never made: round numbers, to be compared with figures done by hand."""

from __future__ import annotations

from typing import Any

from envpool_py.bench.job import Measurement
from envpool_py.bench.report import Report, Result
from envpool_py.bench.workloads import Workload


def measurement(steps: int = 1000, seconds: float = 1.0, **others: Any) -> Measurement:
    values: dict[str, Any] = {
        "batches": 100,
        "cpu_seconds": 1.0,
        "caller_seconds": 0.5,
        "others_seconds": 0.0,
        "latency_p50": 0.002,
        "latency_p99": 0.004,
        "startup_seconds": 0.25,
        "memory_bytes": 50_000_000,
    }
    return Measurement(steps=steps, seconds=seconds, **{**values, **others})


def report(*results: Result, num_cores: int = 2) -> Report:
    return Report(
        "envpool-py bench", num_cores, "a machine", 1.0, {"here": {"numpy": "2.0"}}, list(results)
    )


def repeats(workload: Workload, contestant: str, *made: Measurement | str) -> list[Result]:
    """One result for each repeat; a text is why there is no measurement."""
    return [
        Result(workload, contestant, "here", i, None, each)
        if isinstance(each, str)
        else Result(workload, contestant, "here", i, each)
        for i, each in enumerate(made)
    ]
