"""The public names are those of the API pages, and none is lost."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PARTS = ("collector", "envpool", "gymnasium", "pettingzoo", "ray", "sb3", "worker")
PUBLIC = ["envpool_py", *(f"envpool_py.{name}" for name in _PARTS)]
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+):: (\S+)$", re.MULTILINE)


def documented() -> Iterator[tuple[Path, str, str]]:
    """Yield (page, directive, full name of what it documents) for all API pages."""
    for page in sorted(DOCS.rglob("*.md")):
        module = ""
        for directive, target in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if directive == "currentmodule":
                module = target
            elif target.startswith("envpool_py"):
                yield page, directive, target
            else:
                yield page, directive, f"{module}.{target}"


def resolve(name: str) -> object:
    """Return the module, class or function of that name."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_what_the_api_pages_name_exists_and_has_a_docstring() -> None:
    names = list(documented())
    assert len(names) > 20
    for page, _, name in names:
        assert inspect.getdoc(resolve(name)), f"{page.name}: {name} has no docstring"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_an_api_page(module: str) -> None:
    shown = [resolve(name) for _, _, name in documented()]
    for found in [each for each in shown if inspect.ismodule(each)]:
        shown += [getattr(found, name) for name in getattr(found, "__all__", ())]
    own = importlib.import_module(module)
    assert own.__all__
    for name in own.__all__:
        assert any(getattr(own, name) is found for found in shown), f"{module}.{name}"
