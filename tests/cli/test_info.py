"""``envpool-py info``, and the version, which is in one place."""

from __future__ import annotations

import multiprocessing
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import envpool_py
from envpool_py.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_info_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line[:18].strip(): line[19:] for line in lines}
    assert found["envpool-py"] == envpool_py.__version__
    assert found["numpy"] == np.__version__
    assert found["gymnasium"] == version("gymnasium")
    assert set(multiprocessing.get_all_start_methods()) <= set(
        re.split("[ ,]+", found["start methods"])
    )


def test_the_version_is_that_of_the_package_and_of_the_citation() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {envpool_py.__version__}\n" in citation
    assert version("envpool-py") == envpool_py.__version__
