"""What people read."""

from __future__ import annotations

import itertools

import pytest

from envpool_py.bench import table
from envpool_py.bench.report import Skipped
from envpool_py.bench.workloads import Workload
from tests.bench.made_up import measurement, repeats, report

WORK = Workload("cartpole", 64)
NOT_MEASURED = (
    "not measured: envpool_py Subproc, a process each; envpool_py Shmem, a process each:"
    " would start 64 processes"
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (99.96, "100"),
        (999.4, "999"),
        (999.6, "1.00 k"),
        (123_456, "123 k"),
        (1_234_567, "1.23 M"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert table.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2.00 s"), (0.9999, "1.00 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.50 µs"), (0, "0.00 µs")],
)
def test_durations(seconds: float, text: str) -> None:
    assert table.duration(seconds) == text


def test_ratios_and_sizes() -> None:
    assert table.ratio(0.753) == "0.75"
    assert table.ratio(0.0347) == "0.035"
    assert table.size(98_765_432) == "99 MB"


def test_a_workload() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(1000), measurement(1000), measurement(1000)),
        *repeats(WORK, "shmem", measurement(1500), measurement(1400), measurement(1600)),
        *repeats(WORK, "gymnasium-async", measurement(100)),
        *repeats(WORK, "sb3-dummy", "ImportError: no"),
    )
    made.skipped = [
        Skipped(WORK, "subproc-each", "would start 64 processes"),
        Skipped(WORK, "shmem-each", "would start 64 processes"),
        Skipped(Workload("dict", 16), "dummy", "another workload"),
    ]
    drawn = table.of_workload(made, WORK)
    assert drawn.title == "CartPole-v1 x 64"
    header = ["backend", "steps/s", "of limit", "CPU efficiency", "CPU per step"]
    assert drawn.header[:5] == header
    ours, theirs = drawn.rows
    assert ours == [
        "envpool_py Shmem, num_processes=2",
        "1.50 k (1.40 k to 1.60 k)",
        "0.75 (0.70 to 0.80)",
        "1.50",
        "667 µs (625 µs to 714 µs)",
        "2.00 ms",
        "4.00 ms",
        "5.00 ms",
        "250 ms",
        "50 MB",
    ]
    assert theirs[:3] == ["Gymnasium Async", "100", "0.050"]
    assert drawn.notes == [
        "SB3 Dummy failed: ImportError: no",
        NOT_MEASURED,
    ]


def test_a_busy_machine_is_mentioned() -> None:
    busy = measurement(others_seconds=0.5)
    made = report(*repeats(WORK, "bare", busy), *repeats(WORK, "shmem", busy))
    (note,) = table.of_workload(made, WORK).notes
    assert note == "up to 25% of the machine was busy with something else meanwhile"


def test_what_is_not_known_is_a_dash() -> None:
    blind = measurement(cpu_seconds=None, memory_bytes=None, others_seconds=None)
    made = report(*repeats(WORK, "bare", blind), *repeats(WORK, "shmem", blind))
    (row,) = table.of_workload(made, WORK).rows
    assert row[3] == row[4] == row[9] == "-"


def test_the_summary_has_the_best_of_each_kind() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(1000)),
        *repeats(WORK, "shmem", measurement(1500)),
        *repeats(WORK, "subproc", measurement(300)),
        *repeats(WORK, "dummy", measurement(800)),
        *repeats(WORK, "gymnasium-sync", measurement(900)),
        *repeats(WORK, "tianshou-dummy", measurement(950)),
        *repeats(WORK, "gymnasium-async", measurement(100)),
        *repeats(WORK, "ceiling-rows", measurement(1600)),  # it is no pool
    )
    drawn = table.summary(made)
    assert drawn is not None
    assert drawn.rows == [
        [
            "CartPole-v1 x 64",
            "0.75 (envpool_py Shmem, num_processes=2)",
            "0.40 (envpool_py Dummy)",
            "0.050 (Gymnasium Async)",
            "0.47 (Tianshou Dummy)",
        ]
    ]


def test_where_there_is_no_pool_there_is_no_summary() -> None:
    alone = [
        *repeats(WORK, "bare", measurement(1000)),
        *repeats(WORK, "ceiling-rows", measurement()),
    ]
    assert table.summary(report(*alone)) is None
    assert "Summary" not in table.markdown(report(*alone))


def test_small_batches_among_few_and_many() -> None:
    few, many = Workload("spin-100", 64, 8), Workload("spin-100", 4096, 8)
    made = report(
        *repeats(few, "bare", measurement()),
        *repeats(few, "shmem", measurement(caller_seconds=0.005)),
        *repeats(few, "dummy", measurement()),
        *repeats(few, "shmem-each", measurement()),
        *repeats(many, "bare", measurement()),
        *repeats(many, "shmem", measurement(caller_seconds=0.006)),
        *repeats(many, "dummy", measurement()),
    )
    drawn = table.small_batches(made)
    assert drawn is not None
    assert drawn.rows == [["envpool_py Shmem, num_processes=2", "50.0 µs", "60.0 µs", "1.20"]]
    assert table.small_batches(report(*repeats(few, "bare", measurement()))) is None


def test_markdown() -> None:
    made = report(
        *repeats(WORK, "bare", measurement(1000)), *repeats(WORK, "dummy", measurement(800))
    )
    text = table.markdown(made)
    lines = text.splitlines()
    assert lines[0].startswith("`envpool-py bench`, on 2 cores (a machine), medians")
    assert "## Summary" in lines
    assert "## CartPole-v1 x 64" in lines
    assert "## Versions" in lines
    row = next(line for line in lines if line.startswith("| envpool_py Dummy"))
    assert row.startswith("| envpool_py Dummy | 800 | 0.40 | 0.80 | 1.25 ms | 2.00 ms |")
    for above, below in itertools.pairwise(lines):
        if below.startswith("| :--"):
            assert above.count("|") == below.count("|")
