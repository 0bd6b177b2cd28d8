"""docs/api/names.md lists the public names, as the code has them."""

import ast
import importlib

import envpool_py
from envpool_py import BaseVectorEnv
from envpool_py.envpool import EnvPool
from envpool_py.sb3 import VecEnv
from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "api" / "names.md"
START = "<!-- python -m tests.docs.test_names writes the lines below -->\n"


def public(module):
    """The names in ``__all__``, without an import of what needs another package."""
    if module == "sb3":  # which adds the names of another package
        return importlib.import_module("envpool_py.sb3").__all__
    place = ROOT / "envpool_py" / module
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(path.read_text())
    found = [node.value for node in tree.body if ast.unparse(node).startswith("__all__ = ")]
    return ast.literal_eval(found[0])


def lines():
    names = [name for name in dir(envpool_py) if not name.startswith("_")]
    modules = [name for name in names if (ROOT / "envpool_py" / name).is_dir()]
    modules += [name for name in names if (ROOT / "envpool_py" / f"{name}.py").is_file()]
    listed = {"envpool_py": sorted({*names} - {*modules})}
    listed |= {f"envpool_py.{name}": public(name) for name in sorted(modules)}
    for cls in (BaseVectorEnv, VecEnv, EnvPool):
        listed[f"Methods of {cls.__name__}"] = [n for n in dir(cls) if not n.startswith("_")]
    for title, found in listed.items():
        yield f"\n## {title}\n\n" + ", ".join(f"`{name}`" for name in sorted(found)) + "\n"


def written(page):
    return page.partition(START)[0] + START + "".join(lines())


def test_the_page_lists_the_names_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m tests.docs.test_names"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
