"""Runs the programs of a page, the blocks of Python without prompts, in a process of their own."""

import re

from tests.support.helpers import ROOT, run_python

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(r"Save this as `(\w+\.py)`")

ELSEWHERE = ("docs/coming_from.md", "docs/ray.md")
"""Pages whose programs have a test in another folder."""

RUN_ALL = """
import runpy, sys
examples, *paths = sys.argv[1:]
sys.path[:0] = ["", examples]
for path in paths:
    runpy.run_path(path, run_name="__main__")
"""


def pages():
    """The pages with programs, as paths from the top of the project."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [str(page.relative_to(ROOT)) for page in found if programs(page)]
    return [name for name in names if name not in ELSEWHERE]


def programs(page):
    """The name and the code of each program; other programs of the page may import it by name."""
    text = page.read_text(encoding="utf-8")
    found = []
    for number, match in enumerate(BLOCK.finditer(text)):
        if ">>> " not in match[1]:
            saved = SAVED_AS.findall(text[: match.start()].rpartition("\n## ")[2])
            found.append((saved[-1] if saved else f"program{number}.py", match[1]))
    return found


SHORTER = {"docs/sb3.md": ("2_048", "512"), "docs/tutorial.md": ("8_192", "512")}
"""The number of steps that a program learns, and a smaller one."""


def run(page, folder):
    """Run the programs of a page in their order, in this folder; return what they print."""
    names, (steps, fewer) = [], SHORTER.get(page, ("", ""))
    for name, code in programs(ROOT / page):
        (folder / name).write_text(code.replace(steps, fewer), encoding="utf-8")
        names.append(name)
    # Numba, which Tianshou imports, would compile for a minute.
    env = {"MPLCONFIGDIR": str(folder), "NUMBA_DISABLE_JIT": "1"}
    return run_python("-c", RUN_ALL, ROOT / "examples", *names, cwd=folder, env=env)
