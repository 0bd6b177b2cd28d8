"""The writing guide: its words in every page, message and comment; the shape of pages."""

import io
import re
import tokenize

from tests.support.helpers import ROOT

REPLACED = ("anew", "(hand|hands|handed|handing) out", "(give|gives|gave|given|giving) up")
REPLACED += ("disown(s|ed)?", "(break|breaks|broke|broken) off", "for ever", "nothing is paid")
REPLACED += ("costs? nothing", "of (a user's|one's) own", "as (it is|they are)", "stands? (in|on)")
REPLACED += ("com(e|es|ing) home", "brought back", "met again", "who wants", "whoever")
REPLACED += ("takes? note of", "(see|sees|saw) to", "(tell|tells|told) of", "is (there )?to turn")
REPLACED += ("(process|processes|env|envs|it) lives?( on)?",)
REPLACED += ("(fate|bury|buries|buried|mute|muted|torn|owed|comeback)",)
WORDS = re.compile(rf"\b({'|'.join(REPLACED)})\b", re.IGNORECASE)
# A statement that begins with these words; a question may.
SENTENCE = re.compile(r"(?:^|[.!:] )(What|Who|That which) [^?|]*$")

PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
MODULES = [
    path
    for folder in ("envpool_py", "examples", "tests", "docs/build")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "test_words.py"  # has the words themselves
]
CONFIGS = [ROOT / "pyproject.toml", ROOT / "setup.cfg"]

CODE = re.compile(r"`[^`]*`")
WORD = re.compile(r"\w")
CELL_END = re.compile(r"(?<!\\)\|")


def prose(path):
    """Yield the lines of a page that are not code."""
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code:
            yield number, line


def texts(path):
    """Yield the comments and strings of a module, docstrings included, each in one line."""
    kinds = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    kinds.add(tokenize.COMMENT)
    with path.open(encoding="utf-8") as file:
        for token in tokenize.generate_tokens(io.StringIO(file.read()).readline):
            if token.type in kinds:
                yield token.start[0], " ".join(token.string.split())


def test_the_patterns_find_what_they_name():
    assert WORDS.search("The pool Gives up.")
    assert SENTENCE.search("It steps. What it returns is a row.")


def test_pages():
    lines = [(path, line) for path in PAGES for _, line in prose(path)]
    assert not [each for each in lines if WORDS.search(each[1]) or SENTENCE.search(each[1])]


def test_tables_come_after_code_and_have_short_cells():
    for path in PAGES:
        lines = path.read_text(encoding="utf-8").splitlines()
        code = [n for n, line in enumerate(lines, 1) if line.startswith("```") and "{" not in line]
        rows = [(number, line) for number, line in prose(path) if line.startswith("|")]
        assert not rows or code[0] < rows[0][0], path
        assert not [(path, n, cell) for n, row in rows for cell in long_cells(row)]


def long_cells(row):
    """Return the cells of a table's row that have more than twelve words; code counts as one."""
    cells = CELL_END.split(CODE.sub("code", row))
    return [cell for cell in cells if sum(bool(WORD.search(word)) for word in cell.split()) > 12]


def test_messages_docstrings_and_comments():
    # To look for the words in a whole module is quick, to take it apart is not.
    suspected = [path for path in MODULES if WORDS.search(" ".join(path.read_text().split()))]
    found = [
        (path.name, number, match[0])
        for path in suspected
        for number, text in texts(path)
        if (match := WORDS.search(text))
    ]
    found += [
        (path.name, number, match[0])
        for path in CONFIGS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := WORDS.search(line.partition("#")[2]))
    ]
    assert not found


def test_code_fits_into_the_page():
    """Output and commands that others run may be longer."""
    block = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for path in PAGES:
        typed = "".join(block.findall(path.read_text(encoding="utf-8"))).splitlines()
        if any(line.startswith(">>>") for line in typed):
            typed = [line for line in typed if line.startswith((">>>", "..."))]
        assert not [(path, line) for line in typed if len(line) > 88]


def test_a_page_begins_with_its_answer():
    """Not with a sentence that all pages share."""
    for path in PAGES:
        first = "".join([line for _, line in prose(path) if line][1:2])
        assert not re.match("(After|With|On) (reading )?(this|each of these|these) ", first), path


def test_titles_are_different():
    titles = {}
    for path in (ROOT / "docs").rglob("*.md"):
        first = next((line for _, line in prose(path) if line.startswith("# ")), "")
        titles.setdefault(first, []).append(path.name)
    assert not [pages for title, pages in titles.items() if title and len(pages) > 1]
