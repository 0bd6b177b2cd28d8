"""docs/fault_table.md shows the table that the tests try."""

from tests.docs import fault_tables
from tests.faults.table import FAULTS, FORKS


def test_the_page_shows_the_table_of_the_tests():
    page = fault_tables.PAGE.read_text(encoding="utf-8")
    assert fault_tables.written(page) == page, "run: python -m tests.docs.fault_tables"


def test_every_fault_is_on_the_page():
    shown = fault_tables.tables()
    assert not [text for fault, text in FAULTS.items() if fault not in FORKS and text not in shown]
    assert fault_tables.forks_change_nothing()
