"""``examples/pictures.py``: every picture is made, and shows what the run did."""

import importlib.util
import json
import signal
import struct
import sys

import pytest

from tests.support.helpers import ROOT, run_python

SCRIPT = ROOT / "examples" / "pictures.py"


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module  # the workers' requests name its classes
    spec.loader.exec_module(module)
    return module


def measured(contestant, steps, think=300e-6):
    row = {"workload": "cartpole-x64", "contestant": contestant, "think": think}
    return {**row, "steps": steps, "seconds": 0.5}


ROWS = [
    *(measured("shmem", steps) for steps in (100, 900, 200)),
    measured("shmem", 7000, think=0.0),
    measured("bare", 5000),
    measured("envpool-cpp", 4000),
    {**measured("sb3-dummy", 0), "steps": None, "error": "failed"},
]


def test_every_picture_is_made_and_listed(pictures, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    short = ["--seconds", 0.02, "--rounds", 1, "--read", tmp_path / "a.json"]
    run_python(SCRIPT, "all", "--out", tmp_path, *short, cwd=tmp_path)
    folder = ROOT / "docs" / "pictures"
    page = (folder / "index.md").read_text()
    for name in pictures.PICTURES:
        assert f"({name}.png)" in page
        assert f"examples/pictures.py {name}" in page
        for path in (tmp_path, folder):
            image = (path / f"{name}.png").read_bytes()
            assert image.startswith(b"\x89PNG")
            assert len(image) < 150_000
        width, height = struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24])
        assert width == 960
        assert height >= 240


def test_the_medians_of_callers_that_compute(pictures):
    rates = {"shmem": 400.0, "envpool-cpp": 8000.0}
    assert pictures.rates_of_libraries(ROWS) == {"cartpole-x64": rates}


def test_the_crash_is_one(pictures):
    run = pictures.record_crash(0.2, signal.SIGKILL)  # for SIGSEGV pytest writes a stack
    assert 0 < run.killed < run.restarted < run.seconds
    assert "SIGKILL" in run.error
    for i, spans in enumerate(run.steps):
        assert all(0 <= begin <= end <= run.seconds for _, begin, end in spans)
        inside = [end for _, _, end in spans if run.killed < end < run.restarted]
        assert i != run.env_id or not inside
    assert sum(end > run.restarted for _, _, end in run.steps[run.env_id]) >= 8
    meanwhile = [ids for at, ids in run.batches if run.killed < at < run.restarted]
    # Its last row may have been finished when it was killed.
    assert sum(run.env_id in ids for ids in meanwhile) <= 1


def test_staleness(pictures):
    found = pictures.measure_wait_num(0.1)
    assert (found[16].batches_between, found[16].most_batches_between) == (0, 0)
    assert found[1].batches_between > 0
    assert all(each.rate > 0 for each in found.values())
