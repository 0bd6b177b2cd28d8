"""The examples that train with torch on the collector's transitions learn something."""

from __future__ import annotations

import pytest

from tests.support.helpers import ROOT, run_python


def run(name: str, *args: str) -> str:
    """Run an example; return the last line that it prints."""
    printed = run_python(ROOT / "examples" / f"{name}.py", *args, quiet=True)
    return printed.splitlines()[-1]


@pytest.mark.parametrize("name", ["dqn_collector", "ppo_collector"])
def test_it_learns(name: str) -> None:
    # Random actions give 22.
    assert run(name, "--goal", "60", "--max-steps", "40000").startswith("learnt after")


@pytest.mark.soak
@pytest.mark.parametrize("args", [(), ("--sync",)])
@pytest.mark.parametrize("name", ["dqn_collector", "ppo_collector"])
def test_it_learns_cartpole(name: str, args: tuple[str, ...]) -> None:
    assert run(name, *args).startswith("learnt after")
