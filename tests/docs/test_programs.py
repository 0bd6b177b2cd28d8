"""The programs of README and docs run, those that need no library but Gymnasium."""

import re

import pytest

from tests.docs.programs import pages, run
from tests.docs.test_programs_of_peers import OF_PEERS


@pytest.mark.filterwarnings("default")  # as for a user
@pytest.mark.parametrize("page", [page for page in pages() if page not in OF_PEERS])
def test_the_programs_run(page, tmp_path, monkeypatch, capsys):
    run(page, tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    if page == "docs/gymnasium.md":  # 16 envs; the agent is called for those that are ready
        whole, partial = map(float, re.findall(r"(\S+) rows per call", printed))
        assert 1 <= partial < whole == 16
