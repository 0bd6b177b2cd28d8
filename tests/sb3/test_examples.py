"""The examples run; and, where there is time, PPO learns.

In this process, which has torch already; as programs they would import it in every worker.
"""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from tests.support.helpers import ROOT

COMPARISON = ("--num-envs", "2", "--seconds", "0.01", "--rounds", "1", "--ppo-steps", "64")
COMPARISON += ("--only", "SB3 DummyVecEnv", "ShmemVecEnv, 2 processes")


@pytest.mark.parametrize(
    ("name", "args", "text", "times"),
    [
        ("sb3_ppo", ("--steps", "512"), "mean return", 1),
        ("sb3_custom_env", ("--steps", "300"), r"checked|HER: mean return -\d+.\d+ before", 3),
        ("sb3_throughput", COMPARISON, "SB3 DummyVecEnv|ShmemVecEnv, 2 processes", 6),
        pytest.param("sb3_ppo", (), r"mean return (4[5-9]|500)", 1, marks=pytest.mark.soak),
    ],
)
def test_an_example(
    name: str,
    args: tuple[str, ...],
    text: str,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]()
    printed = capsys.readouterr()
    assert len(re.findall(text, printed.out)) == times
    assert not printed.err
