"""The programs of the docs run, those that need another library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.programs import run

OF_PEERS = (
    "README.md",
    "docs/howto/atari.md",
    "docs/howto/multi_agent.md",
    "docs/pettingzoo.md",
    "docs/sb3.md",
    "docs/tutorial.md",
)


@pytest.mark.parametrize("page", OF_PEERS)
def test_the_programs_run(page: str, tmp_path: Path) -> None:
    run(page, tmp_path)
