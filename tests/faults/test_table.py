"""Every cell of the table of faults: a place, a fault, a backend, with and without restarts."""

import itertools

import pytest

from tests.faults import cell, table


def cells(backends):
    """Return the parameters of each cell that can be: one cell of each row runs, the others soak.

    Backend and `on_error` of that cell change from row to row; every tenth is quick.
    """
    found = []
    for number, row in enumerate(table.ROWS):
        can_be = [backend for backend in backends if not table.why_not(row, backend)]
        every = list(itertools.product(can_be, ("raise", "restart")))
        for k, (backend, on_error) in enumerate(every):
            runs = k == number % len(every)
            mark = [] if runs and number % 10 == 0 else "slow" if runs else "soak"
            marks = getattr(pytest.mark, mark) if mark else []
            key = f"{row.place}-{row.fault}-{backend}-{on_error}"
            found.append(pytest.param(row, backend, on_error, marks=marks, id=key))
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
