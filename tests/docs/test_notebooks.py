"""The notebooks run from top to bottom."""

import os

import pytest

from tests.support.helpers import ROOT, run_python

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

RUN = """
import sys, nbformat, nbclient
nbclient.execute(nbformat.read(sys.argv[1], 4), timeout=150, kernel_name="python3")
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    # Not in this process: nbclient leaves its event loop open.
    run_python("-c", RUN, path, cwd=tmp_path, env={**os.environ, "IPYTHONDIR": str(tmp_path)})
