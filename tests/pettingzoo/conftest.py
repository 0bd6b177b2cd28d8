"""What the envs of these tests need: no screen, and patience with their own warnings."""

import os
from pathlib import Path

import pytest

from envpool_py.env.request import ASK
from envpool_py.worker.host import RemoteHost

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

HERE = Path(__file__).resolve().parent

# All of them are raised by PettingZoo, its envs or Stable-Baselines3, and not by what is tested.
THEIRS = "(pkg_resources|render method without|pygame|render.mode|[Oo]bservation|Agent|[Aa]ction)"


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            patterns = "ignore::DeprecationWarning", f"ignore:.*{THEIRS}"
            item.add_marker(pytest.mark.filterwarnings(*patterns))


@pytest.fixture
def sides(monkeypatch):
    """All that comes by pickle beside the rows of the block."""
    found = []
    take = RemoteHost.values_or_error

    def record(host, token, kind):
        item = take(host, token, kind)
        if not token & ASK:
            found.append(item)
        return item

    monkeypatch.setattr(RemoteHost, "values_or_error", record)
    return found
