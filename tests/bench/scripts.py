"""Runs the scripts of ``examples`` in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "examples" / "benchmark"


def python(*args: Any, cwd: Path = FOLDER) -> str:
    """Run a script in a process of its own: peers and matplotlib leave descriptors open."""
    paths = os.pathsep.join([str(FOLDER), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
