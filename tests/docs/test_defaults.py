"""The defaults that the pages name are those of the code, so that no two pages disagree."""

import ast
import inspect
import re

from envpool_py import make
from envpool_py.options import split
from tests.docs.test_words import CELL_END, PAGES, prose
from tests.support.helpers import ROOT

POOLS = {name: value for part in split({}) for name, value in vars(part).items()}
MAKE = {name: each.default for name, each in inspect.signature(make).parameters.items()}
COLUMNS = {"default": POOLS, "pools": POOLS, "`make`": MAKE}
IN_PROSE = re.compile(r"`(\w+)[^`]*`[^`.]*?\bdefault:? `?([^`;,)| ]+)")


def named():
    """Yield the page, the option, its default in the code and its default on the page."""
    for page in PAGES:
        header, path = [], str(page.relative_to(ROOT))
        for _, line in prose(page):
            cells = [each.strip() for each in CELL_END.split(line)[1:-1]]
            header = (header or cells) if cells else []
            option = cells[0].strip("`") if cells else ""
            for column, cell in zip(header[1:], cells[1:], strict=False):
                if header[0] == "option" and option in POOLS and column in COLUMNS:
                    yield path, option, COLUMNS[column][option], cell.strip("`*")
            for option, text in IN_PROSE.findall(line):
                if option in POOLS and re.fullmatch(r'[\d.]+|".*"|None|True|False', text):
                    yield path, option, POOLS[option], text.rstrip(".")


def test_a_default_of_a_page_is_that_of_the_code():
    pages = {}
    for page, option, default, text in named():
        assert ast.literal_eval(text) == default, f"{page}: {option}"
        pages.setdefault(option, set()).add(page)
    assert {option for option, own in pages.items() if len(own) > 1} >= {"max_restarts"}
