"""An unregistered env of one's own through every command, as the transcripts of the docs say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import ROOT

PAGE = (ROOT / "docs/commands.md").read_text()
CORRIDOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
SHORTER = {"tune": "--seconds 0.2", "bench": "--seconds 0.02 --repeats 1 --policy-us 0"}
BAD_INPUT = re.compile("^envpool-py: (no env|corridor.py:Corridor: missing|--out)", re.MULTILINE)


def transcripts() -> list[str]:
    """Each command of the page with what it shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [each for block in blocks for each in block.split("$ envpool-py")[1:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def envpool_py(words: str, given: str = "", cwd: Path | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "envpool_py.cli", *shlex.split(words)],
        input=given,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.mark.slow
def test_the_transcripts_of_the_docs(folder: Path) -> None:
    del folder
    for transcript in transcripts():
        line, *expected = transcript.splitlines()
        name = next(iter(line.split()), "")
        status = int(" error: " in transcript or name == "replay")
        if BAD_INPUT.search(transcript):
            status = 2
        typed = [text[6:] for text in expected if text.startswith("(Pdb) ")]
        done = envpool_py(f"{line} {SHORTER.get(name, '')}", "\n".join(typed))
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        for text in expected:
            if not text.startswith("(Pdb) ") and ": about" not in text:
                assert text in said, (line, said)
    assert {path.suffix for path in Path.cwd().iterdir() if path.is_file()} == {
        *(".py", ".npz", ".png", ".record"),
    }
    assert any(Path("videos").iterdir())
