"""The size and the shape of the package: lines, methods, attributes, imports."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import envpool_py
from tests.test_imports import LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(envpool_py.__file__).parent

CORE = {
    "pool",
    "pools",
    "states",
    "engine",
    "recovery",
    "block",
    "row_writer",
    "info_codec",
    "shm",
}
"""The modules of the core, beside those in ``worker/``."""

OUTSIDE = {"sb3", "pettingzoo", "ray", "bench", "cli", "collector", "wrappers"}
"""Packages on top of the pools."""

# The budgets are 4 200 and 8 000 lines: these limits are to be lowered with every line that goes.
MAX_CORE_LINES = 5_897
MAX_LINES = 9_623
MAX_FILE_LINES = 600
MAX_METHODS = 30
MAX_ATTRIBUTES = 20
MAX_LAYERS = 8


def name_of(path: Path) -> str:
    """Return the dotted name of a module within the package; ``""`` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
INITS = {name for name, path in FILES.items() if path.name == "__init__.py"}
INSIDE = [name for name in FILES if name.split(".")[0] not in OUTSIDE]


def is_core(name: str) -> bool:
    return name in CORE or name.split(".", maxsplit=1)[0] == "worker"


@functools.cache
def source(name: str) -> str:
    return FILES[name].read_text(encoding="utf-8")


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(source(name))


def lines(name: str) -> int:
    return len(source(name).splitlines())


# -------------------------------------------------------------------------------------- size


def test_the_modules_of_the_core_are_there() -> None:
    assert set(FILES) >= CORE


def test_the_core_is_small() -> None:
    counts = {name: lines(name) for name in INSIDE if is_core(name)}
    assert sum(counts.values()) <= MAX_CORE_LINES, (sum(counts.values()), counts)


def test_the_package_without_its_upper_parts_is_small() -> None:
    total = sum(map(lines, INSIDE))
    assert total <= MAX_LINES, total


def test_no_file_is_long() -> None:
    long = {name: lines(name) for name in INSIDE if lines(name) > MAX_FILE_LINES}
    assert not long


# ----------------------------------------------------------------------------------- classes


def classes(name: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree(name)) if isinstance(node, ast.ClassDef))


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a property: its getter, setter or deleter, or a cached one."""
    texts = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(
        text.split(".")[-1] in {"property", "cached_property", "getter", "setter", "deleter"}
        for text in texts
    )


def methods(node: ast.ClassDef) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    own = (child for child in node.body if isinstance(child, functions))
    return {function.name for function in own if not is_property(function)}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what an assignment assigns to, parts of tuples one by one."""
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AnnAssign):
        found = [node.target]
    else:
        return
    while found:
        target = found.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            found += target.elts
        elif isinstance(target, ast.Starred):
            found.append(target.value)
        else:
            yield target


def within(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield what is in a class, without what is in a class within it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if not isinstance(child, ast.ClassDef):
            yield child
            waiting += ast.iter_child_nodes(child)


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class set, and the class's annotated ones."""
    found = {
        target.attr
        for child in within(node)
        for target in targets(child)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    found |= {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign)
        and child.value is not None
        and isinstance(child.target, ast.Name)
    }
    return found


def test_no_class_has_many_methods() -> None:
    counts = {(name, c.name): len(methods(c)) for name in INSIDE for c in classes(name)}
    assert not {key: count for key, count in counts.items() if count > MAX_METHODS}


def test_no_class_has_many_attributes() -> None:
    found = {(name, c.name): attributes(c) for name in INSIDE for c in classes(name)}
    many = {key: sorted(own) for key, own in found.items() if len(own) > MAX_ATTRIBUTES}
    assert not many, {key: (len(own), own) for key, own in many.items()}


SAMPLE = """
class One:
    kind: str = "a"
    size: int
    plain = 3

    def __init__(self):
        self.a, (self.b, *self.c) = 1, (2, 3)
        self.d: int = 4
        self.a += 1
        other.e = 5

    @property
    def f(self): ...
    @f.setter
    def f(self, value): self.g = value
    @staticmethod
    def h(): ...
    class Two:
        def i(self): self.j = 6
"""


def test_how_methods_and_attributes_are_counted() -> None:
    node = ast.parse(SAMPLE).body[0]
    assert isinstance(node, ast.ClassDef)
    assert methods(node) == {"__init__", "h"}
    assert attributes(node) == {"kind", "a", "b", "c", "d", "g"}


# -------------------------------------------------------------------------- the import graph


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports in a module, those in functions too, but none for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        else:
            yield from statements(child)


def imported(name: str) -> set[str]:
    """Return the modules of the package that a module names in its imports.

    A package on the way to one of its modules is not counted, unless something of its own is
    imported.
    """
    top = PACKAGE.name
    found: set[str] = set()
    for node in statements(tree(name)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            parts = [top, *name.split(".")] if name else [top]
            parts = parts[: len(parts) - node.level + (name in INITS)]
            base = ".".join([*parts, base] if base else parts)
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            is_module = whole.removeprefix(f"{top}.") in FILES
            found.add(whole if is_module else base)
    own = {one for one in found if one == top or one.startswith(f"{top}.")}
    return {one.removeprefix(top).removeprefix(".") for one in own} & FILES.keys() - {name}


GRAPH = {name: imported(name) for name in FILES}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def test_no_modules_import_each_other() -> None:
    assert circles(GRAPH) == []


def test_there_are_few_layers() -> None:
    """The layers of test_imports.py, which holds that imports go down, or stay in a layer."""
    assert len(LAYERS) <= MAX_LAYERS


def test_how_circles_are_found() -> None:
    graph = {
        "pool": {"engine", "arguments"},
        "engine": {"observers", "errors"},
        "observers": {"block"},
        "block": {"spaces"},
        "spaces": {"errors"},
        "errors": set(),
        "arguments": {"spaces"},
        "states": {"block"},
    }
    assert circles(graph) == []
    assert circles({**graph, "errors": {"block"}}) == [["block", "errors", "spaces"]]


def reached(name: str) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = GRAPH[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("name", sorted(name for name in FILES if is_core(name)))
def test_the_core_does_not_import_records(name: str) -> None:
    if name in {"pool", "pools"}:  # the public classes, which may start a record
        return
    assert not {one for one in reached(name) if one.split(".")[0] == "record"}
