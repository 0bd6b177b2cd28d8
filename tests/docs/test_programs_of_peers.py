"""The programs of the docs run, those that need another library."""

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
def test_the_programs_run(page, tmp_path):
    run(page, tmp_path)
