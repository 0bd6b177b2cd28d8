"""A number of speed, size or time in prose is a figure, a limit of the code, or a condition."""

import re

from tests.docs.test_words import PAGES
from tests.support.helpers import ROOT

UNITS = "µs ms s seconds? minutes? hours? % [kMG]i?B kilobytes? bytes? times steps/s episodes/s"
UNITS = UNITS.replace(" ", "|") + "|(?:code )?lines|(?:steps|episodes|batches|calls) per second"
ONE = r"\d(?:[\d .]*\d)?"
NUMBER = re.compile(rf"(?<![\w.`]){ONE}(?:(?:,| to| and| or) {ONE})* (?:{UNITS})(?![\w/])")
RATIO = re.compile(rf"\b(?:ratio|factor|gain)s? (?:of |was |is )*{ONE}(?: to {ONE})?")
NO_PROSE = re.compile(r"^```.*?^```|<!--fig .*?<!--/fig-->|`[^`]*`", re.MULTILINE | re.DOTALL)

LIMITS = {
    "5 seconds": "a cancelled request that goes on, a longest back-off, an actor on Ray",
    "20 seconds": "the throw-away env of make",
    "10 seconds": "what the driver of Ray adds to step_timeout",
    "30 seconds": "a line of the log names an env that hangs",
    "60 seconds": "recreating an env, a stage of check, an actor on Ray without room",
    "0.1, 0.2, 0.4 seconds": "back-off of restarts",
    "11 times": "max_restarts=10",
    "10 ms": "the longest time that a process spins",
    "0.1 ms": "the longest step for which make chooses caller_steps",
    "5 %": "use of the machine by others from which a table says so",
    "10 %": "a difference that tune and bench call none",
    "15 %": "what tune asks of partial batches",
    "0, 300 and 1 000 µs": "the policies of tune and bench",
}
CONDITIONS = {
    "README.md": ["2 ms"],
    "docs/index.md": ["2 ms"],
    "docs/benchmarks.md": [
        *("2 ms", "300 µs", "50 µs", "10 µs", "30 µs", "5 ms"),
        *("10, 100, 1000 µs", "1 ms", "2.7 ms", "1 %", "34 ms", "200 ms", "100 µs", "2 µs"),
    ],
    "docs/performance.md": ["50 µs", "30 µs"],
    "docs/ray.md": ["1 ms", "16 bytes"],
    "docs/sb3.md": ["5 ms"],
    "docs/threads.md": ["25 to 75 ms"],
}
"""Of a page: what was measured, beside the figures."""


def numbers(text):
    """Return the numbers with a unit in the prose of a page."""
    text = NO_PROSE.sub("x", text)
    return [match[0] for each in (NUMBER, RATIO) for match in each.finditer(text)]


def test_the_patterns_find_what_they_name():
    text = "It takes 1 603 to 819 µs, 4.5 MB; the ratio was 1.6 to 2.7. `3 ms` 16 envs, 84x84x4"
    assert numbers(text) == ["1 603 to 819 µs", "4.5 MB", "ratio was 1.6 to 2.7"]
    assert numbers("<!--fig a.b-->3.1<!--/fig--> times; twice 3.1 times") == ["3.1 times"]


def test_each_number_in_prose_is_a_figure_a_limit_or_a_condition():
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
    found = {page: numbers(text) for page, text in texts.items()}
    for page, own in found.items():
        assert not {*own} - {*LIMITS, *CONDITIONS.get(page, [])}, page
    everywhere = {each for own in found.values() for each in own}
    assert not LIMITS.keys() - everywhere
    for page, own in CONDITIONS.items():
        assert not {*own} - {*found[page]}, page
