"""Commands in this process; measurements that were never made, for ``bench`` and ``tune``."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

import pytest

from envpool_py.auto import Probe
from envpool_py.bench.measure import Job
from envpool_py.cli import bench, main, tune
from tests.bench.test_measure import measurement

COMPUTING = Probe(1e-3, 1e-3, 0.9e-3, 2e-3, 0.01, 5e-3, 33_600)


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    def table(self):
        """The cells of each line of the tables, by the first one."""
        lines = [line.strip("│ ").split("│") for line in self.out.splitlines() if "│" in line]
        return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}


Cli = Callable[[str], Ended]


@pytest.fixture
def cli(capsys):
    """Carry out a command, which is given as one line."""

    def carry_out(line):
        capsys.readouterr()
        status = main(shlex.split(line))
        return Ended(status, *capsys.readouterr())

    return carry_out


class Asked(list[Job]):
    """The jobs. ``failing``: what the pools of these names raise."""

    failing: dict[str, BaseException]


@pytest.fixture
def asked(monkeypatch):
    """Nothing is measured: the n-th job makes 100 n steps in a second, on two cores."""
    jobs = Asked()
    jobs.failing = {}

    def carry_out(job):
        jobs.append(job)
        if job.setting.pool in jobs.failing:
            raise jobs.failing[job.setting.pool]
        return [measurement(100 * len(jobs), caller) for caller in job.callers]

    monkeypatch.setattr(tune, "probe", lambda *_: COMPUTING)
    for command in (bench, tune):
        monkeypatch.setattr(command, "carry_out", carry_out)
        monkeypatch.setattr(command, "usable_cores", lambda: [0, 1])
    return jobs
