"""Who is measured, in which order."""

from __future__ import annotations

from envpool_py.bench import schedule
from envpool_py.bench.contestants import BY_NAME, CONTESTANTS, OURS, why_not
from envpool_py.bench.interpreters import Interpreter, MeasurementError
from envpool_py.bench.job import Job, Measurement
from envpool_py.bench.schedule import Entry
from envpool_py.bench.workloads import WORKLOADS, Workload
from tests.bench.made_up import measurement, report

HERE = Interpreter("here", "python", {})
THERE = Interpreter("sb3", "python3", {})
FOUND = {OURS: HERE, "gymnasium": HERE, "sb3": THERE}
WORK = Workload("cartpole", 8)


def names(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.contestant, entry.interpreter.name) for entry in entries]


def test_every_interpreter_measures_a_bare_env_of_its_own() -> None:
    chosen = [BY_NAME[name] for name in ("shmem", "gymnasium-sync", "sb3-dummy", "torchrl-serial")]
    entries, skipped = schedule.entries(WORK, chosen, FOUND, 256)
    assert names(entries) == [
        ("bare", "here"),
        ("bare", "sb3"),
        ("shmem", "here"),
        ("gymnasium-sync", "here"),
        ("sb3-dummy", "sb3"),  # and torchrl is not installed
    ]
    assert [entry.ours for entry in entries] == [False, False, True, False, False]
    assert skipped == []


def test_who_can_not_do_a_workload_is_left_out_with_a_reason() -> None:
    partial = Workload("cartpole", 64, 16)
    entries, skipped = schedule.entries(partial, CONTESTANTS, FOUND, 32)
    ours = {"dummy", "shmem", "shmem-views", "shmem-caller", "shmem-caller-views", "subproc"}
    assert {name for name, _ in names(entries)} == {"bare", *ours}
    assert {each.contestant: each.reason for each in skipped} == {
        "shmem-each": "would start 64 processes; --max-processes is 32",
        "subproc-each": "would start 64 processes; --max-processes is 32",
        "gymnasium-sync": "has no partial batches",
        "gymnasium-async": "has no partial batches",
        "sb3-dummy": "has no partial batches",
        "sb3-subproc": "has no partial batches",
    }


def test_processes_for_partial_batches_count_too() -> None:
    pool = BY_NAME["pufferlib-multiprocessing"]
    assert why_not(pool, Workload("spin-100", 4096), 256) is None
    assert why_not(pool, Workload("spin-100", 64, 8), 256) is None
    assert why_not(pool, Workload("spin-100", 4096, 8), 256) == (
        "would start 512 processes; --max-processes is 256"
    )


def test_our_pools_in_this_process_or_over_the_cores_do_everything() -> None:
    for workload in WORKLOADS:
        for name in (
            "dummy",
            "shmem",
            "shmem-views",
            "shmem-caller",
            "shmem-caller-views",
            "subproc",
        ):
            assert why_not(BY_NAME[name], workload, 1) is None


def test_measurements_are_interleaved() -> None:
    asked: list[tuple[str, Job]] = []

    def measure(entry: Entry, job: Job) -> Measurement:
        asked.append((entry.contestant, job))
        return measurement(steps=len(asked))

    made = report(num_cores=4)
    entries = [
        Entry("bare", HERE),
        Entry("shmem", HERE, ours=True),
        Entry("dummy", HERE, ours=True),
    ]
    turns = list(schedule.run(made, WORK, entries, 2, measure))
    assert turns == entries * 2
    assert [name for name, _ in asked] == ["bare", "shmem", "dummy"] * 2
    assert asked[1][1] == Job("shmem", "cartpole", 8, None, 4, 1.0)
    assert [(each.contestant, each.repeat) for each in made.results] == [
        ("bare", 0),
        ("shmem", 0),
        ("dummy", 0),
        ("bare", 1),
        ("shmem", 1),
        ("dummy", 1),
    ]
    assert [each.measurement and each.measurement.steps for each in made.results] == [*range(1, 7)]


def test_no_more_processes_than_envs() -> None:
    jobs = []

    def measure(_: Entry, job: Job) -> Measurement:
        jobs.append(job)
        return measurement()

    list(schedule.run(report(num_cores=64), WORK, [Entry("shmem", HERE)], 1, measure))
    assert jobs[0].num_processes == 8


def test_who_fails_is_not_tried_again() -> None:
    tried = []

    def measure(entry: Entry, _: Job) -> Measurement:
        tried.append(entry.contestant)
        if entry.contestant == "dummy":
            raise MeasurementError("boom")
        return measurement()

    made = report()
    entries = [Entry("dummy", HERE), Entry("shmem", HERE)]
    assert list(schedule.run(made, WORK, entries, 3, measure)) == entries * 3
    assert tried == ["dummy", "shmem", "shmem", "shmem"]
    assert [each.error for each in made.results] == ["boom", None, None, None]
    assert made.results[0].measurement is None
