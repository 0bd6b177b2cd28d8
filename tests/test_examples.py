"""The examples run, and the one that learns does learn."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.helpers import ROOT


@pytest.mark.parametrize(
    ("name", "args", "last"),
    [
        ("quickstart", [], "Episode("),
        # Random actions give 22.
        ("cartpole_async", ["--goal", "200", "--max-steps", "200000"], "learnt"),
    ],
)
def test_example(name: str, args: list[str], last: str) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        check=False,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith(last)
    assert run.stderr == ""
