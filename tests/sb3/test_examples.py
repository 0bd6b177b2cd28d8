"""The examples run; and, where there is time, PPO learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import envpool_py

ROOT = Path(envpool_py.__file__).parent.parent


def run(name: str, *args: str, timeout: float = 40) -> str:
    """Run an example; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_ppo() -> None:
    assert "mean return" in run("sb3_ppo", "--steps", "512")


def test_the_custom_env() -> None:
    out = run("sb3_custom_env", "--steps", "300")
    assert out.count("checked") == 2
    assert re.search(r"HER: mean return -\d+.\d+ before", out)


def test_the_comparison() -> None:
    args = ("--num-envs", "2", "--seconds", "0.01", "--rounds", "1", "--ppo-steps", "64")
    assert run("sb3_throughput", *args).count("\n") == 3 * 7


@pytest.mark.soak
def test_ppo_learns() -> None:
    out = run("sb3_ppo", timeout=600)
    assert float(re.search(r"mean return (\d+.\d)", out).group(1)) > 450
