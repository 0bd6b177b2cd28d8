"""The examples run, and learn; one over Gymnasium's own vector env too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import envpool_py

ROOT = Path(envpool_py.__file__).parent.parent


def run(name: str, *args: str, timeout: float = 170, warnings: str = "error") -> str:
    """Run an example; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": warnings, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or warnings != "error"
    return done.stdout


def mean_return(name: str, *args: str, timeout: float = 170) -> float:
    """Run an example; return the last mean return that it prints."""
    out = run(name, *args, timeout=timeout)
    return float(re.search(r"mean return (\d+\.\d)\n$", out).group(1))


def test_ppo_over_partial_batches() -> None:
    assert mean_return("ppo_envpool", "--updates", "6") > 28  # random actions give 22


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ppo_over_a_vector_env(mode: str) -> None:
    args = ("--updates", "3", "--mode", mode)
    over_gymnasium = mean_return("ppo_vector_env", "--vector", "gymnasium", *args)
    assert over_gymnasium > 20
    assert mean_return("ppo_vector_env", *args) == over_gymnasium


def test_torchrl_takes_our_vector_env_as_it_takes_gymnasiums() -> None:
    args = ("torchrl_rollout", "--mode", "sync", "--vector")
    lines = [run(*args, "gymnasium", warnings="ignore").splitlines()[-1]]
    assert re.match(r"400 steps  [1-9]\d* episodes  checksum ", lines[0])
    lines.append(run(*args, "ours", warnings="ignore").splitlines()[-1])
    assert len(set(lines)) == 1


@pytest.mark.soak
@pytest.mark.parametrize("args", [("ppo_envpool",), ("ppo_vector_env", "--vector", "gymnasium")])
def test_ppo_learns(args: tuple[str, ...]) -> None:
    assert mean_return(*args, "--updates", "200", timeout=600) > 250
