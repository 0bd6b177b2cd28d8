"""The notebooks run from top to bottom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

RUN = """
import sys, nbformat, nbclient
nbclient.execute(nbformat.read(sys.argv[1], 4), timeout=150, kernel_name="python3")
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(  # nbclient leaves its event loop open
        [sys.executable, "-c", RUN, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        check=False,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
