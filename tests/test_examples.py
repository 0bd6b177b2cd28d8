"""The examples run; those that learn are in tests/envpool_face/test_examples.py."""

import pytest

from tests.support.helpers import ROOT, run_python


@pytest.mark.parametrize(
    ("name", "args", "last"),
    [
        ("quickstart", [], "Episode("),
        ("http_sessions", ["--num-envs", "16", "--seconds", "1"], "reported: "),
        ("llm_agents", ["--num-envs", "8", "--tasks", "12"], ""),
    ],
)
def test_example(name, args, last):
    printed = run_python(ROOT / "examples" / f"{name}.py", *args, quiet=True)
    assert printed.splitlines()[-1].startswith(last)
