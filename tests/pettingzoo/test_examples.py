"""The examples run; how well they learn at length is theirs to show."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.helpers import ROOT, run_python


@pytest.mark.parametrize(
    ("name", "args", "last"),
    [
        # Others may end in the same batch as the sixth: eight envs at the most.
        ("knights_async", ["--episodes", "6"], "([6-9]|1[0-3]) episodes; an agent lived"),
        ("spread_ppo", ["--num-envs", "2", "--steps", "300"], "after: "),
        pytest.param(
            "tictactoe_self_play",
            ["--epochs", "1", "--epoch-steps", "48", "--games", "20"],
            "trained, the first player wins",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="tianshou 2.0.1 asks for Python 3.11"
            ),
        ),
    ],
)
def test_example(name: str, args: list[str], last: str) -> None:
    # Numba would compile for longer than the example takes.
    env = {"SDL_VIDEODRIVER": "dummy", "NUMBA_DISABLE_JIT": "1"}
    printed = run_python(ROOT / "examples" / f"{name}.py", *args, env=env)
    assert re.match(last, printed.splitlines()[-1])
