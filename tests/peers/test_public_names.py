"""The public names are those of the API pages, and none is lost."""

import importlib
import inspect
import pkgutil
import re

from tests.support.helpers import ROOT

PUBLIC = ("collector", "envpool", "gymnasium", "pettingzoo", "ray", "sb3", "tianshou", "worker")
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+):: (\S+)$", re.MULTILINE)


def documented():
    """Return what the API pages document."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        module = ""
        for directive, target in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if directive == "currentmodule":
                module = f"{target}."
            else:
                full = target if target.startswith("envpool_py") else module + target
                yield pkgutil.resolve_name(full)


def test_every_public_name_is_on_an_api_page():
    shown = list(documented())
    assert not [each for each in shown if not inspect.getdoc(each)]
    for found in filter(inspect.ismodule, shown[:]):
        shown += [getattr(found, name) for name in getattr(found, "__all__", ())]
    for module in ("envpool_py", *(f"envpool_py.{name}" for name in PUBLIC)):
        own = importlib.import_module(module)
        assert own.__all__
        for name in own.__all__:
            assert any(getattr(own, name) is found for found in shown), f"{module}.{name}"
