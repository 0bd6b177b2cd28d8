"""docs/fault_table.md shows the table that the tests try.

`python -m tests.docs.test_fault_tables` writes it.
"""

import re

from tests.faults.table import BACKENDS, FAULTS, FORKS, NO_DEATH, NO_HANG, PLACES, ROWS, why_not
from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "fault_table.md"
PART = re.compile(r"(?<=<!-- table of faults -->\n).*?(?=<!-- end of the table -->)", re.DOTALL)
HEAD = '| the env | `on_error="raise"` | `on_error="restart"` |\n|---|---|---|\n'
CRASH = "`env 1: step raised RuntimeError: crash`"


def written(page):
    """Return the text of the page with the tables of today."""
    assert len(PART.findall(page)) == 1
    return PART.sub(lambda _: tables(), page)


def tables():
    """Return a table for each place; places whose tables differ in the request alone share one."""
    groups = {}
    for place in PLACES:
        lines = "".join(line for row in ROWS if row.place == place for line in lines_of(row))
        same = re.sub(r"\b(reset|step) raised", "raised", lines)
        groups.setdefault(same, []).append((PLACES[place], lines))
    found = [f"- In process, {NO_HANG}.\n"]
    found += [f"- In process and in threads, if an env kills its process, {NO_DEATH}.\n\n"]
    for members in groups.values():
        title = "; ".join(text for text, _ in members)
        found.append(f"## {title[0].upper()}{title[1:]}\n\n{HEAD}{members[-1][1]}\n")
    return "".join(found)


def lines_of(row):
    """Return the lines of a place and a fault: one for the backends with the same texts.

    The text of a lost actor of Ray is the same everywhere, and left out.
    """
    by_texts = {}
    for backend in BACKENDS:
        raises, restarts = (row.texts(backend, on_error) for on_error in ("raise", "restart"))
        if row.fault not in FORKS and not why_not(row, backend) and "died" not in raises[0]:
            by_texts.setdefault(cells_of(raises, restarts), []).append(backend)
    for cells, backends in by_texts.items():
        where = f" ({', '.join(backends)})" if len(by_texts) > 1 else ""
        yield f"| {FAULTS[row.fault]}{where} | {' | '.join(cells)} |\n"


def cells_of(raises, restarts):
    """Return the texts with both values of `on_error`, the second ones in short."""
    one, two = [*map(shown, raises)], [*map(shown, restarts)]
    if one == two:
        return "; ".join(one), "the same"
    texts = [text.partition(": ")[2] for text in one]
    for k, text in enumerate(two):
        kind, _, message = text.partition(": ")
        if text in one:
            two[k] = "the same"
        elif message and message in texts:
            two[k] = f"{kind} with the same text"
        elif message == CRASH:
            two[k] = f"{kind} with the error of `step`"
        elif message.startswith(CRASH[:-1]):
            two[k] = f"{kind}: `...{message.removeprefix(CRASH[:-1])}"
    return "; ".join(one), "; ".join(two)


def shown(text):
    """Return a text as a reader may see it: with a file of a user in place of that of the tests."""
    kind, _, message = text.partition(": ")
    message = message.replace("(env_of_table.py:...)", "(reacher.py:41)")
    message = message.replace(" ...then", " then")
    message = re.sub(r"(?<=[\w)]) ?\.{3}$", "", message.replace("......", "..."))
    return f"{kind}: `{message}`" if message and kind != "logged" else kind


def test_the_page_shows_the_table_of_the_tests():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m tests.docs.test_fault_tables"


def test_every_fault_is_on_the_page():
    """No env that forks has a text of its own, as the page says."""
    shown = tables()
    assert not [text for fault, text in FAULTS.items() if fault not in FORKS and text not in shown]
    crash = next(row for row in ROWS if row.place == "close after a crash" and row.restarts)
    allowed = {("nothing",), crash.restarts[:1]}
    for row in ROWS:
        assert row.fault not in FORKS or {row.raises, row.restarts or row.raises} <= allowed


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
