"""The examples that train with torch on the collector's transitions learn something."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.helpers import ROOT


def run(name: str, *args: str) -> str:
    """Run an example; return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["dqn_collector", "ppo_collector"])
def test_it_learns(name: str) -> None:
    # Random actions give 22.
    assert run(name, "--goal", "60", "--max-steps", "40000").startswith("learnt after")


@pytest.mark.soak
@pytest.mark.parametrize("args", [(), ("--sync",)])
@pytest.mark.parametrize("name", ["dqn_collector", "ppo_collector"])
def test_it_learns_cartpole(name: str, args: tuple[str, ...]) -> None:
    assert run(name, *args).startswith("learnt after")
