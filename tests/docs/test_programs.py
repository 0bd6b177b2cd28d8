"""The programs of README and docs run, those that need no library but Gymnasium."""

import pytest

from tests.docs.programs import pages, run
from tests.docs.test_programs_of_peers import OF_PEERS


@pytest.mark.parametrize("page", [page for page in pages() if page not in OF_PEERS])
def test_the_programs_run(page, tmp_path):
    run(page, tmp_path)
