"""The programs of docs/coming_from.md run: ours always, the others' where those are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coming_from.md"
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(Before|After).*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

BLOCKS = {
    f"{title} {when.lower()}": code
    for title, text in SECTION.findall(PAGE.read_text(encoding="utf-8"))
    for when, code in BLOCK.findall(text)
}


def test_each_library_has_its_two_programs() -> None:
    libraries = ("Gymnasium", "Stable-Baselines3", "EnvPool", "PufferLib", "Tianshou")
    assert list(BLOCKS) == [f"{one} {when}" for one in libraries for when in ("before", "after")]
    for name, code in BLOCKS.items():
        assert ("envpool_py" in code) == name.endswith("after")


# PufferLib comes as a source package that is built for minutes.
@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "PufferLib before"])
def test_the_program_runs(name: str, tmp_path: Path) -> None:
    code = BLOCKS[name]
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")
    ours = name.endswith("after")  # what the others warn of, and leave behind, is theirs
    done = subprocess.run(
        [sys.executable, str(program)],
        env={
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error" if ours else "ignore",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    if ours:
        assert done.stderr == ""


def test_gymnasium_and_our_vector_env_differ_in_the_import_alone() -> None:
    before, after = (BLOCKS[f"Gymnasium {when}"].splitlines() for when in ("before", "after"))
    assert [line.replace("gym.make_vec", "make_vec") for line in before[2:]] == after[2:]
    for library in ("Stable-Baselines3", "EnvPool", "Tianshou"):
        both = (BLOCKS[f"{library} {when}"].splitlines() for when in ("before", "after"))
        own = [[line for line in code if not re.match("import|from", line)] for code in both]
        assert own[0] == own[1]
