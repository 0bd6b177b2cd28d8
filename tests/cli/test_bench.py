"""``envpool-py bench``."""

import json

import pytest

from envpool_py.bench.measure import Caller, MeasurementError
from envpool_py.bench.settings import NAMES
from envpool_py.cli import tables
from tests.bench.test_measure import measurement


def test_a_table_of_medians(asked, cli):
    ended = cli("bench CartPole-v1 --backend loop --backend dummy --policy-us 0 --repeats 2")
    assert [job.setting.pool for job in asked] == ["loop", "dummy"] * 2  # in turns
    table = ended.table()
    assert [*table] == ["dummy", "loop"]  # the fastest first
    assert table == {  # 100 and 300, 200 and 400 steps in a second
        "dummy": ["300 (200 to 400)", "1.00", "2.00 ms", "4.00 ms", "250 ms", "50.0 MB"],
        "loop": ["200 (100 to 300)", "0.67", "2.00 ms", "4.00 ms", "250 ms", "50.0 MB"],
    }


def test_every_pool_with_callers_that_compute(asked, cli):
    assert cli("bench ALE/Pong-v5 --num-envs 4 --num-envs 6 --repeats 1").status == 0
    for num_envs in (4, 6):
        settings = [job.setting for job in asked if job.setting.num_envs == num_envs]
        assert {each.pool for each in settings} == set(NAMES)
        assert len(set(settings)) == len(settings)
    thinks = [Caller(), Caller(300e-6), Caller(1e-3)]
    assert all(job.callers == thinks and job.seconds == 0.5 for job in asked)


def test_partial_batches_beside_whole_ones(asked, cli):
    assert cli("bench CartPole-v1 --wait-num 4 --repeats 1").status == 0
    whole = {job.setting.pool for job in asked if job.setting.wait_num is None}
    assert whole == {"loop", "gymnasium-sync", "gymnasium-async"}
    asked.clear()
    assert cli("bench CartPole-v1 --num-envs 4 --wait-num 4 --repeats 1").status == 0
    assert {job.setting.wait_num for job in asked} == {None}


def test_pools_that_are_left_out_are_named(asked, cli):
    error = cli("bench CartPole-v1 --max-processes 8 --repeats 1").err
    assert all(job.setting.started_processes <= 8 for job in asked)
    text = "is left out: it would start 16 processes, and --max-processes is 8"
    assert f"gymnasium-async {text}" in error
    assert f"shmem, num_processes=16 {text}" in error


@pytest.mark.parametrize(("failing", "status"), [("shmem", 1), ("loop", 1), ("gymnasium-sync", 0)])
def test_failures_are_shown(failing, status, asked, tmp_path, cli):
    asked.failing[failing] = MeasurementError("ValueError: [boom]")
    ended = cli(f"bench CartPole-v1 --repeats 2 --json {tmp_path}/a.json")
    assert ended.status == status
    assert failing in ended.out
    assert "failed: ValueError: [boom]" in ended.out
    found = json.loads((tmp_path / "a.json").read_text())
    assert {each["pool"] for each in found if "error" in each} == {failing}


def test_ctrl_c_keeps_what_was_measured(asked, tmp_path, cli):
    asked.failing["make"] = KeyboardInterrupt()
    ended = cli(f"bench CartPole-v1 --json {tmp_path}/a.json")
    assert ended.status == 130
    assert ended.err.endswith("envpool-py: interrupted\n")
    found = json.loads((tmp_path / "a.json").read_text())
    assert {each["policy_seconds"] for each in found} == {0, 300e-6, 1e-3}
    measured = {each["pool"] for each in found}
    assert measured == set(ended.table()) == {"loop", "gymnasium-sync", "gymnasium-async"}


def test_numbers_have_units():
    counts = [tables.count(each) for each in (0.5, 9.996, 99.96, 999.6, 1_234_567)]
    assert counts == ["0.50", "10.0", "100", "1.00 k", "1.23 M"]
    durations = [tables.duration(each) for each in (0.9999, 0.0123, 4.5e-6)]
    assert durations == ["1.00 s", "12.3 ms", "4.50 µs"]
    blind = measurement()._replace(memory_bytes=None)
    assert tables.memory([blind]) == "-"
    assert tables.memory([blind, measurement()]) == "50.0 MB"
