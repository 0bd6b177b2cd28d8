"""The file of a benchmark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from envpool_py.bench import report as reports
from envpool_py.bench.report import Skipped
from envpool_py.bench.workloads import Workload
from tests.bench.made_up import measurement, repeats, report

if TYPE_CHECKING:
    from pathlib import Path

WORK = Workload("cartpole", 64, 16)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = report(
        *repeats(WORK, "bare", measurement(memory_bytes=None), "took too long"),
        *repeats(Workload("dict", 16), "shmem", measurement(latency_p50=1 / 3)),
    )
    made.skipped.append(Skipped(WORK, "sb3-dummy", "has no partial batches"))
    made.write(tmp_path / "a.json")
    assert reports.read(tmp_path / "a.json") == made
    assert made.workloads() == [WORK, Workload("dict", 16)]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    made = report(*repeats(WORK, "bare", measurement(steps=7)))
    made.write(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    (result,) = content["results"]
    assert result["workload"] == {"env": "cartpole", "num_envs": 64, "wait_num": 16}
    assert result["measurement"]["steps"] == 7
    assert content["num_cores"] == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "results": 5}', "\0"]
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="a.json is no report of this version's envpool-py bench"):
        reports.read(tmp_path / "a.json")


def test_a_report_of_another_format_is_refused(tmp_path: Path) -> None:
    report().write(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match="is no report"):
        reports.read(tmp_path / "a.json")


def test_reports_are_put_together() -> None:
    one = report(*repeats(WORK, "bare", measurement()))
    two = report(*repeats(Workload("dict", 16), "bare", measurement()))
    two.versions = {"sb3": {"numpy": "1.0"}}
    both = reports.merged([one, two])
    assert both.workloads() == [WORK, Workload("dict", 16)]
    assert both.versions == {"here": {"numpy": "2.0"}, "sb3": {"numpy": "1.0"}}
