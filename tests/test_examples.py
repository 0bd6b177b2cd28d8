"""The examples run, and the one that learns does learn."""

import pytest

from tests.support.helpers import ROOT, run_python


@pytest.mark.parametrize(
    ("name", "args", "last"),
    [
        ("quickstart", [], "Episode("),
        # Random actions give 22.
        ("http_sessions", ["--num-envs", "16", "--seconds", "3"], "reported: "),
        ("llm_agents", ["--num-envs", "8", "--tasks", "12"], ""),
        ("cartpole_async", ["--goal", "200", "--max-steps", "200000"], "learnt"),
    ],
)
def test_example(name, args, last):
    printed = run_python(ROOT / "examples" / f"{name}.py", *args, quiet=True)
    assert printed.splitlines()[-1].startswith(last)
