"""``envpool-py bench``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from envpool_py.bench.measure import Caller, MeasurementError
from envpool_py.bench.settings import NAMES
from envpool_py.cli import main, tables
from tests.bench.test_measure import COUNT, measurement

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Asked


def bench(*args: Any) -> int:
    return main(["bench", *map(str, args)])


def rows(out: str) -> dict[str, list[str]]:
    """The cells of each line of the tables, by the first one."""
    lines = [line.strip("│ ").split("│") for line in out.splitlines() if line.startswith("│")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}


def test_what_you_have_beside_our_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    short = ("--seconds", 0.02, "--repeats", 1, "--policy-us", 0, "--policy-us", 50)
    names = ("gymnasium-async", "make")
    backends = [word for name in names for word in ("--backend", name)]
    assert bench(COUNT, "--num-envs", 2, *backends, *short, "--json", file) == 0
    out = capsys.readouterr().out
    for think in (0, 50):
        assert f"{COUNT} x 2, policy: {think} µs per batch" in out
    found = json.loads(file.read_text())
    assert {each["pool"] for each in found} == set(names)
    assert {each["policy_seconds"] for each in found} == {0, 50e-6}
    assert all(each["steps"] > 0 and each["num_envs"] == 2 for each in found)


def test_a_table_of_medians(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--backend", "loop", "--backend", "dummy", "--policy-us", 0)
    assert bench("CartPole-v1", *both, "--repeats", 2) == 0
    assert [job.setting.pool for job in asked] == ["loop", "dummy"] * 2  # in turns
    out = capsys.readouterr().out
    assert rows(out) == {  # 100 and 300, 200 and 400 steps in a second
        "dummy": ["300 (200 to 400)", "1.00", "2.00 ms", "4.00 ms", "250 ms", "50.0 MB"],
        "loop": ["200 (100 to 300)", "0.67", "2.00 ms", "4.00 ms", "250 ms", "50.0 MB"],
    }
    assert out.index("dummy") < out.index("loop")  # the fastest first


def test_every_pool_with_callers_that_compute(asked: Asked) -> None:
    assert bench("ALE/Pong-v5", "--num-envs", 4, "--num-envs", 6, "--repeats", 1) == 0
    for num_envs in (4, 6):
        settings = [job.setting for job in asked if job.setting.num_envs == num_envs]
        assert {each.pool for each in settings} == set(NAMES)
        assert len(set(settings)) == len(settings)
    thinks = [Caller(), Caller(300e-6), Caller(1e-3)]
    assert all(job.callers == thinks and job.seconds == 0.5 for job in asked)


def test_partial_batches_beside_whole_ones(asked: Asked) -> None:
    assert bench("CartPole-v1", "--wait-num", 4, "--repeats", 1) == 0
    whole = {job.setting.pool for job in asked if job.setting.wait_num is None}
    assert whole == {"loop", "gymnasium-sync", "gymnasium-async"}
    asked.clear()
    assert bench("CartPole-v1", "--num-envs", 4, "--wait-num", 4, "--repeats", 1) == 0
    assert {job.setting.wait_num for job in asked} == {None}


def test_pools_that_are_left_out_are_named(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("CartPole-v1", "--max-processes", 8, "--repeats", 1) == 0
    assert all(job.setting.started_processes <= 8 for job in asked)
    error = capsys.readouterr().err
    text = "is left out: it would start 16 processes, and --max-processes is 8"
    assert f"gymnasium-async {text}" in error
    assert f"shmem, num_processes=16 {text}" in error


@pytest.mark.parametrize(("failing", "status"), [("shmem", 1), ("loop", 1), ("gymnasium-sync", 0)])
def test_failures_are_shown(
    failing: str, status: int, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.failing[failing] = MeasurementError("ValueError: [boom]")
    file = tmp_path / "a.json"
    assert bench("CartPole-v1", "--repeats", 2, "--json", file) == status
    out = capsys.readouterr().out
    assert f"{failing}" in out
    assert "failed: ValueError: [boom]" in out
    found = json.loads(file.read_text())
    assert {each["pool"] for each in found if "error" in each} == {failing}


def test_ctrl_c_keeps_what_was_measured(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.failing["make"] = KeyboardInterrupt()
    file = tmp_path / "a.json"
    assert bench("CartPole-v1", "--json", file) == 130
    shown = capsys.readouterr()
    assert shown.err.endswith("envpool-py: interrupted\n")
    assert set(rows(shown.out)) == {"loop", "gymnasium-sync", "gymnasium-async"}
    assert {each["pool"] for each in json.loads(file.read_text())} == set(rows(shown.out))


def test_numbers_have_units() -> None:
    counts = [tables.count(each) for each in (0.5, 9.996, 99.96, 999.6, 1_234_567)]
    assert counts == ["0.50", "10.0", "100", "1.00 k", "1.23 M"]
    durations = [tables.duration(each) for each in (0.9999, 0.0123, 4.5e-6)]
    assert durations == ["1.00 s", "12.3 ms", "4.50 µs"]
    sizes = [tables.size(each) for each in (16, 33_600, 98_765_432)]
    assert sizes == ["16 B", "33.6 kB", "98.8 MB"]
    blind = measurement()._replace(memory_bytes=None)
    assert tables.memory([blind]) == "-"
    assert tables.memory([blind, measurement()]) == "50.0 MB"
