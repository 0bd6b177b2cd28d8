"""The structure of the package: rooms (folders and root files), floors, circles, lines.

Every import counts, those inside functions and under ``TYPE_CHECKING`` too. A room stands one floor
above the highest room that it imports. ``python -m tests.support.structure`` prints all of it.
"""

import ast
import collections
import graphlib
from pathlib import Path
from typing import NamedTuple

ON_TOP = {"bench", "cli", "collector", "envpool", "gymnasium", "pettingzoo", "ray", "sb3"}
ON_TOP |= {"sessions", "wrappers"}
"""The packages on top of the pools; all other rooms are the inside."""


class Module(NamedTuple):
    """A module: its source, the modules of the package that it imports, its number of lines."""

    source: str
    imports: frozenset
    lines: int


def room_of(name):
    return name.partition(".")[0] or "__init__"


def imports_of(tree, package, names):
    """Return the modules among ``names`` that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for whole in wanted:
            if whole.partition(".")[0] == package:
                own = whole.partition(".")[2]
                while own not in names:  # `package.module.name`
                    own = own.rpartition(".")[0]
                found.add(own)
    return found


def modules_of(root):
    """Return the modules below ``root`` by their dotted names; ``""`` is the package itself."""
    sources = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return {
        name: Module(
            source,
            frozenset(imports_of(ast.parse(source), root.name, sources) - {name}),
            len(source.splitlines()),
        )
        for name, source in sources.items()
    }


def circles_of(graph):
    """Return the groups of nodes that reach each other."""
    reached = {}
    for node in graph:
        found, waiting = set(), {node}
        while waiting:
            waiting = set().union(*(graph[one] for one in waiting)) - found
            found |= waiting
        reached[node] = found
    groups = {frozenset(o for o in reached[n] if n in reached[o]) for n in graph if n in reached[n]}
    return sorted(map(sorted, groups))


class House:
    """The rooms of a package: ``lines``, ``files``, ``floor`` and imports by room; circles."""

    def __init__(self, root):
        self.modules = modules_of(root)
        self.lines, self.files = collections.Counter(), collections.Counter()
        self.rooms = collections.defaultdict(set)
        for name, module in self.modules.items():
            room = room_of(name)
            self.lines[room] += module.lines
            self.files[room] += name != room or not (root / room).is_dir()  # not its __init__
            self.rooms[room] |= {room_of(one) for one in module.imports} - {room}
        # A package hands on names of its own modules, which may import the package.
        graph = {
            name: {
                one
                for one in module.imports
                if not one.startswith(f"{name}.") and not name.startswith(f"{one}.")
            }
            for name, module in self.modules.items()
        }
        self.circles = circles_of(graph) + circles_of(self.rooms)
        self.floor = {} if circles_of(self.rooms) else self._floors()

    def _floors(self):
        floor = {}
        for room in graphlib.TopologicalSorter(self.rooms).static_order():
            floor[room] = 1 + max((floor[below] for below in self.rooms[room]), default=0)
        return floor

    def tree(self, name):
        """Return the syntax tree of a module."""
        return ast.parse(self.modules[name].source)

    @property
    def inside(self):
        """The names of the modules inside."""
        return [name for name in self.modules if room_of(name) not in ON_TOP]

    def report(self):
        """Return the text of all figures."""
        rows = sorted(self.lines, key=lambda room: (-self.floor.get(room, 0), room))
        texts = [
            f"floor {self.floor.get(room, '?')}  {room:12} {self.files[room]:3} files"
            f" {self.lines[room]:6} lines"
            for room in rows
        ]
        inside = sum(self.modules[name].lines for name in self.inside)
        longest = max(self.inside, key=lambda name: self.modules[name].lines)
        texts += [f"circle: {', '.join(circle)}" for circle in self.circles]
        texts.append(
            f"{max(self.floor.values(), default=0)} floors, {len(self.circles)} circles,"
            f" inside {inside} lines, package {sum(self.lines.values())},"
            f" longest file inside: {longest} {self.modules[longest].lines}"
        )
        return "\n".join(texts)


if __name__ == "__main__":
    print(House(Path(__file__).parents[2] / "envpool_py").report())  # noqa: T201 - what it is for
