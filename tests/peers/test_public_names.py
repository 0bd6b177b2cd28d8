"""The public names are those of the API pages, and none is lost."""

import importlib
import inspect
import pkgutil
import re

import pytest

from tests.support.helpers import ROOT

_PARTS = ("collector", "envpool", "gymnasium", "pettingzoo", "ray", "sb3", "worker")
PUBLIC = ["envpool_py", *(f"envpool_py.{name}" for name in _PARTS)]
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+):: (\S+)$", re.MULTILINE)


def documented():
    """Return what the API pages document, by full name."""
    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        module = ""
        for directive, target in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if directive == "currentmodule":
                module = f"{target}."
            else:
                name = target if target.startswith("envpool_py") else module + target
                found[name] = pkgutil.resolve_name(name)
    return found


def test_what_the_api_pages_name_exists_and_has_a_docstring():
    found = documented()
    assert len(found) > 20
    assert not [name for name, each in found.items() if not inspect.getdoc(each)]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_an_api_page(module):
    shown = list(documented().values())
    for found in [each for each in shown if inspect.ismodule(each)]:
        shown += [getattr(found, name) for name in getattr(found, "__all__", ())]
    own = importlib.import_module(module)
    assert own.__all__
    for name in own.__all__:
        assert any(getattr(own, name) is found for found in shown), f"{module}.{name}"
