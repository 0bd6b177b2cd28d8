"""The examples run, and learn; one over Gymnasium's own vector env too."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import envpool_py

ROOT = Path(envpool_py.__file__).parent.parent
HAS_VECTOR_ENV = importlib.util.find_spec("envpool_py.gymnasium") is not None


def mean_return(name: str, *args: str, timeout: float = 40) -> float:
    """Run an example; return the last mean return that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return float(re.search(r"mean return (\d+\.\d)\n$", done.stdout).group(1))


def test_ppo_over_partial_batches() -> None:
    assert mean_return("ppo_envpool", "--updates", "10") > 35  # random actions give 22


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ppo_over_a_vector_env(mode: str) -> None:
    args = ("--updates", "3", "--mode", mode)
    over_gymnasium = mean_return("ppo_vector_env", "--vector", "gymnasium", *args)
    assert over_gymnasium > 20
    if HAS_VECTOR_ENV:
        assert mean_return("ppo_vector_env", *args) == over_gymnasium


@pytest.mark.soak
@pytest.mark.parametrize("args", [("ppo_envpool",), ("ppo_vector_env", "--vector", "gymnasium")])
def test_ppo_learns(args: tuple[str, ...]) -> None:
    assert mean_return(*args, "--updates", "200", timeout=600) > 250
