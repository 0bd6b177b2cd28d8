"""Measurements in processes of their own."""

from __future__ import annotations

import platform
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import pytest

from envpool_py.bench import interpreters, process_tree
from envpool_py.bench.interpreters import MeasurementError
from envpool_py.bench.job import Job
from tests.support.helpers import wait_until

JOB = Job("bare", "CartPole-v1", 2, None, 2, 0.01)


def script(folder: Path, body: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_versions() -> None:
    here = interpreters.here()
    assert here.name == "here"
    assert here.versions["python"] == platform.python_version()
    assert here.versions["gymnasium"] == gym.__version__


def test_libraries_are_looked_for_where_they_are_said_to_be(tmp_path: Path) -> None:
    fake = script(tmp_path, """echo '{"python": "3", "torchrl": "0.9"}'""")
    found = interpreters.find({"torchrl": fake})
    assert found["torchrl"] == ("torchrl", fake, {"python": "3", "torchrl": "0.9"})
    assert found["gymnasium"].path == found["envpool_py"].path == sys.executable


def test_libraries_of_one_environment_share_it(tmp_path: Path) -> None:
    fake = script(tmp_path, """echo '{"torchrl": "0.9", "pufferlib": "3"}'""")
    found = interpreters.find({"torchrl": fake, "pufferlib": fake})
    assert found["torchrl"] == found["pufferlib"]
    assert found["torchrl"].name == "pufferlib+torchrl"


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    fake = script(tmp_path, """echo '{"python": "3"}'""")
    with pytest.raises(MeasurementError, match="torchrl: torchrl is not installed for"):
        interpreters.find({"torchrl": fake})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo hello", "is no Python interpreter"),
        ("echo first >&2; echo 'ValueError: last' >&2; exit 3", "^ValueError: last$"),
        ("exit 3", "^exit status 3$"),
        ("kill -KILL $$", "^was killed by SIGKILL$"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        interpreters.find({"sb3": script(tmp_path, body)})


def test_no_file() -> None:
    with pytest.raises(MeasurementError, match="can't run /no/python: No such file or directory"):
        interpreters.find({"sb3": "/no/python"})


def test_an_env_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising.py").write_text(
        textwrap.dedent("""
        import gymnasium as gym

        def make():
            raise ValueError("boom")

        gym.register("Raising-v0", entry_point=make)
        """)
    )
    monkeypatch.chdir(tmp_path)
    job = JOB._replace(env="raising:Raising-v0")
    with pytest.raises(MeasurementError, match="ValueError: boom"):
        interpreters.carry_out(interpreters.here(), job, ours=False)


def test_who_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "_BETWEEN_LOOKS", 0.05)
    pids = tmp_path / "pids"
    fake = script(tmp_path, f"sleep 100 & echo $! >{pids}; echo $$ >>{pids}; wait")
    monkeypatch.setattr(interpreters, "_ALLOWANCE", 0.0)

    class Clock:
        """Stands still until the processes are there."""

        asked = 0

        def monotonic(self) -> float:
            self.asked += 1
            there = pids.exists() and len(pids.read_text().split()) == 2
            return 1.0 if there and self.asked > 1 else 0.0

    monkeypatch.setattr(interpreters, "time", Clock())
    with pytest.raises(MeasurementError, match="^took too long$"):
        interpreters._look_at("fake", fake)
    child, parent = map(int, pids.read_text().split())
    assert not Path(f"/proc/{parent}").exists()
    assert wait_until(lambda: not Path(f"/proc/{child}").exists())  # reaped by who adopted it


def test_who_takes_all_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(process_tree, "available_bytes", lambda: 1 << 20)
    with pytest.raises(MeasurementError, match="^took more memory than there is$"):
        interpreters._look_at("fake", script(tmp_path, "sleep 100"))


def test_ctrl_c_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pid"

    def interrupted(*_: object) -> None:
        wait_until(lambda: pids.exists() and bool(pids.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(interpreters, "_communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        interpreters._look_at("fake", script(tmp_path, f"echo $$ >{pids}; sleep 100"))
    assert not Path(f"/proc/{pids.read_text().strip()}").exists()
