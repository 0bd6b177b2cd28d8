"""Medians and ratios, against figures done by hand."""

from __future__ import annotations

import pytest

from envpool_py.bench import figures
from envpool_py.bench.report import Result
from envpool_py.bench.workloads import Workload
from tests.bench.made_up import measurement, repeats, report

WORK = Workload("cartpole", 64)


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert figures.spread([3.0, 1.0, 8.0]) == (3.0, 1.0, 8.0)
    assert figures.spread([1.0, 2.0]) == (1.5, 1.0, 2.0)
    assert figures.spread([7.0]) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("workload", "limit"),
    [
        (Workload("cartpole", 64), 2 * 500.0),  # two cores
        (Workload("cartpole", 1), 500.0),  # one env keeps one core busy
        (Workload("sleep", 32, 8), 32 * 500.0),  # all of them wait at once
        (Workload("CartPole-v1", 16), 2 * 500.0),
    ],
)
def test_the_limit(workload: Workload, limit: float) -> None:
    bare = measurement(steps=1000, seconds=2.0)
    assert figures.limit(workload, bare, num_cores=2) == limit


def test_cpu_efficiency() -> None:
    bare = measurement(steps=1000, cpu_seconds=1.0)  # 1 ms a step
    measured = measurement(steps=3000, cpu_seconds=4.0)  # 4/3 ms a step
    assert figures.cpu_efficiency(bare, measured) == pytest.approx(0.75)
    assert figures.cpu_efficiency(bare, measurement(cpu_seconds=None)) is None
    assert figures.cpu_efficiency(measurement(cpu_seconds=None), measured) is None


def test_each_repeat_is_compared_with_the_bare_env_of_its_own_repeat() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(1000), measurement(500), measurement(2000)),
        *repeats(WORK, "shmem", measurement(1000), measurement(1000), measurement(1000)),
    )
    (row,) = figures.rows(made, WORK)
    assert row.steps_per_second == (1000.0, 1000.0, 1000.0)
    assert row.of_limit == (0.5, 0.25, 1.0)  # of 2000, 1000 and 4000
    assert row.cpu_efficiency == (1.0, 0.5, 2.0)
    assert row.cpu_per_step == (0.001, 0.001, 0.001)
    assert row.latency_p50 == (0.002, 0.002, 0.002)
    assert row.caller_per_batch.median == 0.005
    assert row.startup.median == 0.25
    assert row.memory_bytes is not None
    assert row.memory_bytes.median == 50_000_000


def test_each_interpreter_is_compared_with_its_own_bare_env() -> None:
    made = report(
        Result(WORK, "bare", "here", 0, measurement(1000)),
        Result(WORK, "bare", "sb3", 0, measurement(250)),
        Result(WORK, "shmem", "here", 0, measurement(1500)),
        Result(WORK, "sb3-dummy", "sb3", 0, measurement(250)),
    )
    shares = {row.contestant: row.of_limit.median for row in figures.rows(made, WORK)}
    assert shares == {"shmem": 0.75, "sb3-dummy": 0.5}


def test_the_fastest_come_first_and_the_best_of_some_is_found() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(1000)),
        *repeats(WORK, "dummy", measurement(700)),
        *repeats(WORK, "gymnasium-sync", measurement(900)),
        *repeats(WORK, "shmem", measurement(1500)),
    )
    rows = figures.rows(made, WORK)
    assert [row.contestant for row in rows] == ["shmem", "gymnasium-sync", "dummy"]
    best = figures.best(rows, lambda row: row.contestant != "shmem")
    assert best is rows[1]
    assert figures.best(rows, lambda _: False) is None


def test_what_could_not_be_read_is_none() -> None:
    blind = measurement(cpu_seconds=None, memory_bytes=None, others_seconds=None)
    made = report(*repeats(WORK, "bare", blind), *repeats(WORK, "shmem", blind))
    (row,) = figures.rows(made, WORK)
    assert row.cpu_efficiency is None
    assert row.cpu_per_step is None
    assert row.memory_bytes is None
    assert row.others is None


def test_the_part_of_the_machine_that_others_had() -> None:
    busy = measurement(seconds=2.0, others_seconds=1.0)  # a quarter of two cores
    made = report(*repeats(WORK, "bare", busy), *repeats(WORK, "shmem", busy))
    (row,) = figures.rows(made, WORK)
    assert row.others == (0.25, 0.25, 0.25)


def test_failures_have_no_row_of_their_own() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(), measurement()),
        *repeats(WORK, "shmem", measurement(), "was killed by SIGKILL"),
        *repeats(WORK, "sb3-dummy", "ImportError: no"),
    )
    assert [row.contestant for row in figures.rows(made, WORK)] == ["shmem"]
    assert figures.failures(made, WORK) == {
        "shmem": "was killed by SIGKILL",
        "sb3-dummy": "ImportError: no",
    }
    assert figures.rows(made, Workload("cartpole", 8)) == []


def test_without_a_bare_env_there_is_nothing_to_compare_with() -> None:
    made = report(*repeats(WORK, "bare", "no such env"), *repeats(WORK, "shmem", measurement()))
    assert figures.rows(made, WORK) == []
