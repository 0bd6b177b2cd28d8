"""``envpool-py bench``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from envpool_py.bench import report as reports
from envpool_py.bench import schedule, table
from envpool_py.bench.contestants import CONTESTANTS
from envpool_py.bench.interpreters import MeasurementError
from envpool_py.bench.workloads import WORKLOADS, Workload
from envpool_py.cli import main
from tests.bench.made_up import measurement, repeats, report
from tests.support.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from envpool_py.bench.job import Job, Measurement
    from envpool_py.bench.schedule import Entry

SHORT = ("--seconds", 0.02, "--repeats", 1)
COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"


def bench(*args: Any) -> int:
    return main(["bench", *map(str, args)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Nothing is measured; these are the jobs."""
    jobs: list[Job] = []

    def measure(_: Entry, job: Job) -> Measurement:
        jobs.append(job)
        return measurement(memory_bytes=10_000_000 + len(jobs))

    monkeypatch.setattr(schedule.run, "__defaults__", (measure,))
    return jobs


def test_an_env_and_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.json", tmp_path / "a.md"]
    options = ("--json", files[0], "--markdown", files[1])
    backends = ("--backend", "shmem", "--backend", "dummy", "--backend", "gymnasium-sync")
    assert bench(COUNT, "--num-envs", 3, *backends, *SHORT, *options) == 0
    out = capsys.readouterr().out
    made = reports.read(files[0])
    assert [each.contestant for each in made.results] == [
        "bare",
        "dummy",
        "shmem",
        "gymnasium-sync",
    ]
    assert all(each.measurement and each.measurement.steps for each in made.results)
    assert made.workloads() == [Workload(COUNT, 3)]
    assert "python" in made.versions["here"]
    for title in ("envpool_py Dummy", "envpool_py Shmem", "Gymnasium Sync", "Summary", "Versions"):
        assert title in out
    assert files[1].read_text() == table.markdown(made)
    assert made.command == (
        f"envpool-py bench {COUNT} --backend shmem --backend dummy --backend gymnasium-sync"
        " --num-envs 3 --seconds 0.02 --repeats 1"
    )


def test_what_was_written_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workload("cartpole", 64)
    made = report(
        *repeats(work, "bare", measurement(1000)), *repeats(work, "shmem", measurement(1500))
    )
    made.write(tmp_path / "a.json")
    work = Workload("dict", 16)
    made.results = [
        *repeats(work, "bare", measurement(1000)),
        *repeats(work, "sb3-dummy", measurement(400)),
    ]
    made.write(tmp_path / "b.json")
    both = ("--read", tmp_path / "a.json", "--read", tmp_path / "b.json")
    assert bench(*both, "--markdown", tmp_path / "a.md", "--json", tmp_path / "c.json") == 0
    out = capsys.readouterr().out
    assert "CartPole-v1 x 64" in out
    assert "Dict observation x 16" in out
    text = (tmp_path / "a.md").read_text()
    assert "| envpool_py Shmem, num_processes=2 | 1.50 k | 0.75 |" in text
    assert "| SB3 Dummy | 400 | 0.20 |" in text
    assert len(reports.read(tmp_path / "c.json").results) == 4


def test_the_plot(tmp_path: Path) -> None:
    made = report(
        *repeats(WORKLOADS[0], "bare", measurement(1000), measurement(1100)),
        *repeats(WORKLOADS[0], "shmem", measurement(1500), measurement(1600)),
        *repeats(WORKLOADS[0], "gymnasium-sync", measurement(900, cpu_seconds=None)),
        *repeats(WORKLOADS[1], "bare", "no bare env, so no bars"),
    )
    made.write(tmp_path / "a.json")
    # In a process of its own: matplotlib keeps its fonts open.
    read = ["--read", "a.json", "--plot", "a.png"]
    done = subprocess.run(
        [sys.executable, "-m", "envpool_py.cli", "bench", *read],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_all_workloads_with_all_that_is_installed(asked: list[Job]) -> None:
    assert bench("--repeats", 2) == 0
    done = {(job.env, job.num_envs, job.wait_num) for job in asked}
    assert done == set(WORKLOADS)
    contestants = {job.contestant for job in asked}
    assert {"bare", "gymnasium-sync", "gymnasium-async"} <= contestants
    assert {each.name for each in CONTESTANTS if each.library == "envpool_py"} <= contestants
    first = [job.contestant for job in asked if job[1:4] == WORKLOADS[0]]
    half = len(first) // 2
    assert first[:half] == first[half:]  # one after the other, then again
    assert len(set(first[:half])) == half


def test_the_ceiling_is_asked_for(asked: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--workload", "cartpole-x8", "--repeats", 1) == 0
    assert not any(job.contestant.startswith("ceiling") for job in asked)
    asked.clear()
    options = ("--backend", "ceiling", "--backend", "shmem", "--repeats", 1)
    assert bench("--workload", "cartpole-x8", "--workload", "dict-x16", *options) == 0
    both = ["ceiling-apart", "ceiling-in-step"]
    assert [job.contestant for job in asked] == [
        *("bare", "shmem", *both, "ceiling-views", "ceiling-rows"),
        *("bare", "shmem", *both),
    ]
    out = " ".join(capsys.readouterr().out.split())
    assert "no pool: rows, not copied; no pool: rows: has memory for one array of each env" in out


def test_parts_of_it(asked: list[Job]) -> None:
    assert bench("--workload", "sleep", "--workload", "dict-x16", "--backend", "envpool_py") == 0
    done = {(job.env, job.num_envs, job.wait_num) for job in asked}
    assert done == {("sleep", 32, None), ("sleep", 32, 8), ("dict", 16, None)}
    asked.clear()
    numbers = ("--num-envs", 4, "--num-envs", 6, "--wait-num", 4)
    assert bench("--workload", "cartpole", *numbers, "--backend", "shmem", "--repeats", 1) == 0
    done = {(job.env, job.num_envs, job.wait_num) for job in asked}
    assert done == {("cartpole", 4, None), ("cartpole", 6, 4)}
    assert len(asked) == 4


def test_envs_of_many_agents_are_asked_for(asked: list[Job]) -> None:
    options = ("--workload", "spread", "--workload", "tictactoe-x16", "--backend", "envpool_py")
    assert bench(*options, "--repeats", 1) == 0
    done: dict[str, list[str]] = {}
    for job in asked:
        done.setdefault(job.env, []).append(job.contestant)
    assert done["tictactoe"] == ["bare", "turns-dummy", "turns-shmem"]
    assert {"parallel-shmem", "agents-dummy", "turns-shmem"} <= set(done["spread"])
    assert "shmem" not in done["spread"]


def test_backends_that_step_other_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--workload", "spread", "--backend", "shmem", "--backend", "gymnasium") == 2
    assert "--backend: none of them steps the envs of spread-x16" in capsys.readouterr().err
    assert bench(COUNT, "--backend", "turns-dummy") == 2


def test_backends_that_are_left_out_are_named(
    asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--max-processes", 8, "--repeats", 1, "--backend", "envpool_py")
    assert bench("CartPole-v1", *few) == 0
    ours = {"dummy", "shmem", "shmem-views", "shmem-caller", "shmem-caller-views", "subproc"}
    assert {job.contestant for job in asked} == {"bare", *ours}
    assert "would start 16 processes; --max-processes is 8" in capsys.readouterr().out


@pytest.mark.parametrize(("failing", "status"), [("shmem", 1), ("bare", 1), ("gymnasium-sync", 0)])
def test_failures_are_shown(
    failing: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(_: Entry, job: Job) -> Measurement:
        if job.contestant == failing:
            raise MeasurementError("ValueError: boom")
        return measurement()

    monkeypatch.setattr(schedule.run, "__defaults__", (measure,))
    backends = ("--backend", "shmem", "--backend", "gymnasium-sync", "--backend", "dummy")
    assert bench("CartPole-v1", *backends) == status
    assert f"{table.label(failing, 0)[:10]}" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_: Entry, job: Job) -> Measurement:
        if job.contestant == "gymnasium-sync":
            raise KeyboardInterrupt
        return measurement()

    monkeypatch.setattr(schedule.run, "__defaults__", (measure,))
    assert bench("CartPole-v1", "--json", tmp_path / "a.json") == 130
    captured = capsys.readouterr()
    assert "interrupted; what was measured until now is kept" in captured.err
    assert "CartPole-v1 x 16" in captured.out
    assert "Summary" in captured.out
    assert [each.contestant for each in reports.read(tmp_path / "a.json").results] == [
        "bare",
        "dummy",
        "subproc",
        "subproc-each",
        "shmem",
        "shmem-views",
        "shmem-caller",
        "shmem-caller-views",
        "shmem-each",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["CartPole-v9"], "did you mean CartPole-v1"),
        (["no_such_module:Env-v0"], "No module named 'no_such_module'"),
        (["CartPole-v1", "--workload", "dict"], "ENV_ID and --workload both say"),
        (["--workload", "dct"], "--workload: there is no 'dct'"),
        (["--backend", "stable"], "--backend: there is no 'stable'"),
        (["--num-envs", "3"], "--num-envs and --wait-num ask for ENV_ID or --workload"),
        (["CartPole-v1", "--num-envs", "0"], "must be 1 or more, got 0"),
        (["CartPole-v1", "--num-envs", "2", "--wait-num", "3"], "--wait-num is 3, but there are 2"),
        (["CartPole-v1", "--seconds", "-1"], "must be a positive number of seconds"),
        (["CartPole-v1", "--repeats", "none"], "must be an int, got 'none'"),
        (["CartPole-v1", "--python", "sb3"], "must be NAME=PATH, NAME one of gymnasium, sb3"),
        (["CartPole-v1", "--python", "numpy=python3"], "must be NAME=PATH"),
        (["CartPole-v1", "--python", "sb3=/no/python"], "can't run /no/python"),
        (["CartPole-v1", "--python", f"pufferlib={sys.executable}"], "pufferlib is not installed"),
        (["CartPole-v1", "--plot", "a.jpeg"], "--plot: must end in .png, got a.jpeg"),
        (["CartPole-v1", "--json", "/no/folder/a.json"], "there is no directory /no/folder"),
        (["--read", "no.json"], "--read: no.json: No such file or directory"),
        (["--read", __file__], "is no report of this version's envpool-py bench"),
        (["CartPole-v1", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_input_is_told_in_one_line(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("envpool-py: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_missing_packages_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert bench("CartPole-v1", "--plot", "a.png") == 2
    assert 'pip install "envpool-py[bench]"' in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "envpool_py.cli.progress", None)
    assert bench("CartPole-v1") == 2


def test_the_json_has_no_paths(tmp_path: Path, asked: list[Job]) -> None:
    here = ("--python", f"gymnasium={sys.executable}", "--json", tmp_path / "a.json")
    assert bench("CartPole-v1", "--repeats", 1, *here) == 0
    assert asked
    text = (tmp_path / "a.json").read_text()
    assert sys.executable not in text
    assert str(tmp_path) not in text
    assert json.loads(text)["command"].endswith("--python gymnasium=PYTHON")
    assert set(json.loads(text)["versions"]) == {"here", "gymnasium"}
