"""Tables on stdout. Needs rich."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable

from envpool_py.bench.table import Table

#: Where the output is no terminal, lines are this wide.
_WIDTH = 160


def show(table: Table) -> None:
    """Write a table, and its notes below it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    drawn = RichTable(title=table.title, title_justify="left")
    for place, name in enumerate(table.header):
        drawn.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)
    for note in table.notes:
        console.print(f"  {note}", markup=False, highlight=False)
