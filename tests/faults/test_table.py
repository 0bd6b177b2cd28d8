"""Every cell of the table of faults: a place, a fault, a backend, with and without restarts."""

import pytest

from tests.faults import cell, table


def cells(backends):
    """Return the parameters of each cell that can be."""
    found = []
    number = 0
    for row in table.ROWS:
        for backend in backends:
            if table.why_not(row, backend):
                continue
            for on_error in ("raise", "restart"):
                key = (row.place, row.fault, backend, on_error)
                number += 1
                marks = [pytest.mark.slow] if number % 7 else []
                found.append(pytest.param(row, backend, on_error, marks=marks, id="-".join(key)))
    return found


LOCAL = (table.IN_PROCESS, table.PROCESSES, table.THREADS)


@pytest.mark.parametrize(("row", "backend", "on_error"), cells(LOCAL))
def test_a_cell_of_the_table(row, backend, on_error, tmp_path):
    problems = cell.try_in_process(row, backend, on_error, tmp_path)
    assert not problems, "\n".join(problems)


def test_the_table_is_whole():
    """Each place has each fault once."""
    rows = [(row.place, row.fault) for row in table.ROWS]
    every = [(p, f) for p in table.PLACES for f in table.FAULTS if p != "first reset of all"]
    assert sorted(rows) == sorted([*every, ("first reset of all", "raises")])
