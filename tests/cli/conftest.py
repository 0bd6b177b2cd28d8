"""Commands in this process."""

import shlex
from typing import NamedTuple

import pytest

from envpool_py.cli import main


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    def table(self):
        """The cells of each line of the tables, by the first one."""
        lines = [line.strip("│ ").split("│") for line in self.out.splitlines() if "│" in line]
        return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}


@pytest.fixture
def cli(capsys):
    """Carry out a command, which is given as one line."""

    def carry_out(line):
        capsys.readouterr()
        status = main(shlex.split(line))
        return Ended(status, *capsys.readouterr())

    return carry_out
