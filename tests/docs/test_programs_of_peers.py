"""The programs of the docs that need another library run, and the notebooks from top to bottom."""

import os

import pytest

from tests.docs.programs import run
from tests.support.helpers import ROOT, run_python

OF_PEERS = (
    "docs/envpool.md",
    "docs/observations.md",
    "docs/pettingzoo.md",
    "docs/sb3.md",
    "docs/tianshou.md",
    "docs/tutorial.md",
)
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
RUN_NOTEBOOK = """
import sys, nbformat, nbclient
nbclient.execute(nbformat.read(sys.argv[1], 4), timeout=150, kernel_name="python3")
"""


@pytest.mark.filterwarnings("default")  # as for a user
@pytest.mark.parametrize("page", OF_PEERS)
def test_the_programs_run(page, tmp_path, monkeypatch):
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path):
    # Not in this process: nbclient leaves its event loop open.
    env = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    run_python("-c", RUN_NOTEBOOK, path, cwd=tmp_path, env=env)
