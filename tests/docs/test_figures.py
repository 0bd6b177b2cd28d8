"""Each figure of a page is the one that was measured; links lead to files."""

import ast
import json
import re
import sys

import pytest

from tests.support.helpers import ROOT

sys.path += [str(ROOT / "docs" / "build"), str(ROOT / "examples" / "benchmark")]

import cores
import figures

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONF = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")


def test_each_figure_is_the_measured_one():
    for page in figures.pages():
        text = page.read_text(encoding="utf-8")
        assert figures.written(text, figures.values_of()) == text, page
        count = len(figures.PLACE.findall(text))
        assert text.count("<!--fig ") == text.count("<!--/fig-->") == count, page


def test_figures_that_follow_from_others():
    values = figures.values_of()
    for gain, ours, other in (
        ("simulator.gain_loop", "simulator.ours", "simulator.loop"),
        ("halves.cartpole.gain", "halves.cartpole.half", "halves.cartpole.sync"),
        ("libraries.cartpole.gain_sb3-subproc", "libraries.cartpole.ours", None),
    ):
        of = values[other or "libraries.cartpole.sb3-subproc"]
        assert values[gain] == pytest.approx(values[ours] / of, rel=0.01)


def test_the_picture_of_all_cores_has_the_measured_figures():
    text = (ROOT / "docs" / "pictures" / "cores.svg").read_text(encoding="utf-8")
    own = json.loads(figures.FILE.read_text(encoding="utf-8"))["parts"]["cores"]
    assert cores.drawn(own) == text


def test_readme_is_short():
    assert len(README.splitlines()) <= 60


LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


def anchors(page):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_lead_to_files():
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "examples/README.md"):
        page = ROOT / name
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for path, anchor in LINK.findall(text):
            target = page.parent / path if path else page
            assert target.exists(), (name, path)
            assert not anchor or anchor in anchors(target), (name, path, anchor)


def test_each_script_that_a_page_names_is_there():
    script = re.compile(r"\b(?:examples|docs|tests)/[\w/]+\.py\b")
    for page in figures.pages():
        named = script.findall(page.read_text(encoding="utf-8"))
        assert not [path for path in named if not (ROOT / path).is_file()], page


def test_each_example_is_in_the_gallery():
    gallery = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    programs = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert not [name for name in programs if f"`{name}`" not in gallery]


def test_classes_of_other_libraries_are_not_linked_as_ours():
    """The text before a name, as Sphinx has it: with typographic apostrophes."""
    assignment = re.search(r"_OF_OTHERS = re.compile\((.*?)\n\)", CONF, re.DOTALL)[1]
    of_others = re.compile(ast.literal_eval(assignment.strip()[1:]))
    theirs = "Stable-Baselines3\u2019s ", "with SB3's ", "Stable-Baselines3 ", "Tianshou\u2019s "
    for before in theirs:
        assert of_others.search(before)
    for before in ("a Ray cluster: ", "our ", "Stable-Baselines3: "):
        assert not of_others.search(before)
