"""Runs the programs of a page, the blocks of Python without prompts, in this process."""

import re
import runpy

from tests.support.helpers import ROOT, forget

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(r"Save this as `(\w+\.py)`")

ELSEWHERE = ("docs/coming_from.md", "docs/ray.md")
"""Pages whose programs have a test in another folder."""


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
            section = text[: match.start()].rpartition("\n## ")[2]
            default = "cell.py" if section.startswith("Jupyter") else f"program{number}.py"
            found.append(([default, *SAVED_AS.findall(section)][-1], match[1]))
    return found


SHORTER = {"docs/sb3.md": ("2_048", "512"), "docs/tutorial.md": ("8_192", "512")}
"""The number of steps that a program learns, and a smaller one."""


def run(page, folder, monkeypatch):
    """Run the programs of a page in their order, in this folder; forget what they import there."""
    steps, fewer = SHORTER.get(page, ("", ""))
    monkeypatch.chdir(folder)
    folders = ROOT / "examples", folder
    for each in folders:
        monkeypatch.syspath_prepend(each)
    monkeypatch.setenv("MPLCONFIGDIR", str(folder))
    paths = []
    for name, code in programs(ROOT / page):
        paths.append(folder / name)
        paths[-1].write_text(code.replace(steps, fewer), encoding="utf-8")
    try:
        for path in paths:
            if path.name == "cell.py":  # a cell has no main guard, and is in no file
                exec(path.read_text(), {"__name__": "__main__"})
            else:
                runpy.run_path(str(path), run_name="__main__")
    finally:
        forget(*folders)
