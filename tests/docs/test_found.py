"""Pages are found by the words that readers search for, and each is in the sidebar once."""

import re

from tests.docs.test_words import PAGES, prose
from tests.support.helpers import ROOT

DOCS = ROOT / "docs"
OWN = ["own worker processes"]
QUESTIONS = [
    ("train with SB3 although envs crash: on_error", "sb3.md", ["SB3"], ["on_error"]),
    ("rollouts for PPO in CleanRL", "gymnasium.md", ["CleanRL"], ["rollout"]),
    ("rollouts for PPO", "collect.md", ["rollouts", "PPO"], ["rollout"]),
    ("one env returns the wrong image", "robots.md", ["robosuite"], ["wrong images", "two envs"]),
    ("two envs in one process", "faq.md", ["questions"], ["wrong image", "another env"]),
    ("set_init_state of LIBERO", "robots.md", ["LIBERO"], ["set_init_state"]),
    ("a program with its own worker processes", "coming_from.md", OWN, OWN),
    ("an env hangs", "crashes.md", ["hangs"], ["step_timeout"]),
    ("a crash and a restart", "crashes.md", ["Crashes", "restarts"], ["on_error"]),
    ("debug an env with pdb", "record.md", ["debug"], ["pdb"]),
    ("SLURM, many cores", "performance.md", ["many cores"], ["SLURM"]),
    ("TensorBoard", "evaluation.md", ["log"], ["TensorBoard"]),
    ("fork, spawn, forkserver", "install.md", ["start methods"], ["forkserver"]),
]


def test_the_page_has_the_words_of_the_question():
    """Search engines weigh a title most: it has words of the question, as a later heading has."""
    for question, page, title, words in QUESTIONS:
        lines = [line for _, line in prose(DOCS / page)]
        assert all(word.lower() in lines[0].lower() for word in title), question
        text = "\n".join(lines).lower()
        assert all(word.lower() in text for word in words), question


def test_pages_are_few():
    pages = [path for path in PAGES if path.is_relative_to(DOCS)]
    assert len(pages) <= 37


def test_the_sidebar_has_four_groups_with_every_page_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    groups = re.findall(r":caption: (.*)\n\n((?:.*\n)+?)```", index)
    captions = ["Start", "By what you use", "By what you want", "Reference"]
    assert [caption for caption, _ in groups] == captions
    entries = [entry for _, own in groups for entry in own.splitlines()]
    listed = [entry.rpartition("<")[2].rstrip(">") for entry in entries]
    pages = [path for path in DOCS.rglob("*") if path.suffix in (".md", ".ipynb")]
    names = [str(path.relative_to(DOCS).with_suffix("")) for path in pages]
    assert sorted(listed) == sorted({*names} - {"index"})


ENTRIES = re.compile(r"^```\{index\} (.*)$", re.MULTILINE)
SEARCHED = {
    "SubprocVecEnv EOFError": "faq",
    "fork torch deadlock": "install",
    "deadlock": "install",
    "checkpoint": "seeds",
    "headless rendering": "robots",
    "memory grows": "faults",
    "reproducible seeds": "seeds",
}


def test_the_search_has_the_right_page_first():
    """An entry of the index that is the query and is marked as main, by `!`, comes before all else.

    CI builds the pages with warnings as errors, and so the index that the search looks into.
    """
    marked = {}
    for path in PAGES:
        for entries in ENTRIES.findall(path.read_text(encoding="utf-8")):
            for entry in entries.split(", "):
                marked.setdefault(entry, []).append(path.stem)
    for query, page in SEARCHED.items():
        assert marked[f"! {query}"] == [page], query
