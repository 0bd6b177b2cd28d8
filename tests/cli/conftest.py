"""Measurements that were never made, for the tests of ``bench`` and ``tune``."""

from __future__ import annotations

from typing import Any

import pytest

from envpool_py.auto import Probe
from envpool_py.bench.measure import Job
from envpool_py.cli import bench, tune
from tests.bench.test_measure import measurement

COMPUTING = Probe(1e-3, 1e-3, 0.9e-3, 2e-3, 0.01, 5e-3, 33_600)


class Asked(list[Job]):
    """The jobs. ``failing``: what the pools of these names raise."""

    failing: dict[str, BaseException]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Nothing is measured: the n-th job makes 100 n steps in a second, on two cores."""
    jobs = Asked()
    jobs.failing = {}

    def carry_out(job: Job) -> Any:
        jobs.append(job)
        if job.setting.pool in jobs.failing:
            raise jobs.failing[job.setting.pool]
        return [measurement(100 * len(jobs), caller) for caller in job.callers]

    monkeypatch.setattr(tune, "probe", lambda *_: COMPUTING)
    for command in (bench, tune):
        monkeypatch.setattr(command, "carry_out", carry_out)
        monkeypatch.setattr(command, "usable_cores", lambda: [0, 1])
    return jobs
