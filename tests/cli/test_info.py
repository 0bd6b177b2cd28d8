"""Help, the version, and ``envpool-py info``."""

import multiprocessing
import re
from importlib.metadata import version

import numpy as np
import pytest

import envpool_py
from tests.support.helpers import ROOT


@pytest.mark.parametrize("line", ["", "--help", "collect --help", "--version"])
def test_help(line, cli):
    ended = cli(line)
    assert (ended.status, ended.err) == (0, "")
    assert "envpool-py" in ended.out


def test_info_says_what_a_bug_report_needs(cli):
    found = {line[:18].strip(): line[19:] for line in cli("info").out.splitlines()}
    assert found["envpool-py"] == envpool_py.__version__
    assert found["numpy"] == np.__version__
    methods = re.split("[ ,]+", found["start methods"].replace(" (default)", "", 1))
    assert methods == multiprocessing.get_all_start_methods()


def test_the_version_is_that_of_the_package_and_of_the_citation():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {envpool_py.__version__}\n" in citation
    assert version("envpool-py") == envpool_py.__version__
