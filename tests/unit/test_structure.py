"""The size and the shape of the package: lines, methods, attributes, layers, public names."""

import ast
import graphlib
import importlib
from pathlib import Path

import pytest

import envpool_py
import envpool_py.worker
from tests.support.helpers import run_python

PACKAGE = Path(envpool_py.__file__).parent

# From the ground up. A module imports from its own row and from those below; nothing in circles.
LAYERS = [
    # Pure functions, and memory.
    {"ids", "shm", "seeding", "errors", "spaces", "info_codec", "checks"}
    | {"watchdog", "timing", "images", "packages", "worker.limits"},
    # Rows, and one env.
    {"block", "obs_writer", "row_writer", "worker.base", "worker.channel"} | {"worker.executor"},
    # The places of envs: this process, and worker processes.
    {"worker", "worker.child", "worker.hosts", "worker.placement", "worker.process"}
    | {"worker.processes", "worker.workers"},
    # The engine.
    {"asking", "engine", "faults", "observers", "recovery", "recreation", "states"},
    # Recording, but for its replay.
    {"record", "record.digest", "record.history", "record.plain_codec", "record.recorder"}
    | {"record.named_env"},
    # The pools.
    {"arguments", "assembly", "auto", "calls", "notebook", "options", "pool", "pools", "stats"}
    | {"record.replay", "testing"},
    # What is built on pools.
    {"wrappers", "collector", "sb3", "pettingzoo", "envpool", "gymnasium", "ray"},
    {"bench", "cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# Packages that are one row each: their own modules may import each other.
WHOLE = LAYERS[-2] | LAYERS[-1]

CORE = {"pool", "pools", "states", "engine", "recovery", "block", "row_writer", "info_codec", "shm"}
"""The modules of the core, beside those in ``worker/``."""

# The budgets are 4 200 and 8 000 lines: these limits are to be lowered with every line that goes.
MAX_CORE_LINES = 6_020
MAX_LINES = 10_380
MAX_FILE_LINES = 600
MAX_METHODS = 30
MAX_ATTRIBUTES = 20


def name_of(path):
    """Return the dotted name of a module within the package; ``""`` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(name):
    return name.partition(".")[0]


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
INSIDE = [name for name in SOURCES if package_of(name) not in WHOLE]
IN_CORE = [name for name in SOURCES if name in CORE or package_of(name) == "worker"]


def test_the_package_is_small():
    assert SOURCES.keys() >= CORE
    lines = {name: len(SOURCES[name].splitlines()) for name in INSIDE}
    assert sum(lines[name] for name in IN_CORE) <= MAX_CORE_LINES
    assert sum(lines.values()) <= MAX_LINES
    assert not {name: count for name, count in lines.items() if count > MAX_FILE_LINES}


def test_no_class_has_many_methods_or_attributes():
    nodes = [node for name in INSIDE for node in ast.walk(TREES[name])]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert len(classes) > 50
    for node in classes:
        functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
        assert sum(not is_property(each) for each in functions) <= MAX_METHODS, node.name
        stored = {
            child.attr
            for child in ast.walk(node)
            if isinstance(child, ast.Attribute)
            and isinstance(child.ctx, ast.Store)
            and ast.unparse(child.value) == "self"
        }
        assert len(stored) <= MAX_ATTRIBUTES, node.name


def is_property(node):
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list)


def imports(node, *, everywhere=True):
    """Return the dotted names that are imported; those for type checkers alone are left out."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.FunctionDef) and not everywhere:
            continue
        if isinstance(child, ast.Import):
            found.update(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative import"
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                is_module = whole.removeprefix("envpool_py.") in SOURCES
                found.add(whole if is_module else str(child.module))
        found |= imports(child, everywhere=everywhere)
    return found


def own_imports(name, *, everywhere=True):
    """Return the modules of this package that a module imports."""
    found = imports(TREES[name], everywhere=everywhere)
    own = {one.removeprefix("envpool_py").removeprefix(".") for one in found if "envpool_py" in one}
    return own & SOURCES.keys() - {name}


GRAPH = {name: own_imports(name) for name in SOURCES}


def reached(name):
    """Return the modules that a module imports, directly or through others."""
    found, waiting = set(), {name}
    while waiting:
        waiting = set().union(*(GRAPH[one] for one in waiting)) - found
        found |= waiting
    return found


def test_imports_go_down_only_and_not_in_circles():
    graphlib.TopologicalSorter(GRAPH).prepare()  # raises CycleError
    assert len(LAYERS) <= 8
    rows = {name: package_of(name) if package_of(name) in WHOLE else name for name in SOURCES}
    assert set(rows.values()) - {""} == RANK.keys()
    for name in SOURCES.keys() - {""}:
        below = own_imports(name, everywhere=False) - {""}
        assert all(RANK[rows[other]] <= RANK[rows[name]] for other in below), name


def test_who_may_not_import_what():
    machinery = {"multiprocessing", "pickle", "cloudpickle", "mmap", "select", "selectors"}
    machinery |= {"subprocess", "signal", "socket", "struct"}
    for name in ("pool", "states", "arguments", "pools", "block", "spaces", "ids", "seeding"):
        imported = imports(TREES[name])
        assert not set(map(package_of, imported)) & machinery, name
        assert "envpool_py.shm" not in imported, name
    for name in IN_CORE:
        if name not in {"pool", "pools"}:  # the public classes may start a record
            assert "record" not in map(package_of, reached(name)), name
        if name.startswith("worker"):
            assert not reached(name) & {"pool", "engine", "states", "pools"}, name


def test_only_two_modules_touch_envs():
    touching = ("env.step", "env.reset", "env.render", "env.close", "env_fn")
    for name in SOURCES.keys() - {"worker.executor", "row_writer"}:
        if name.startswith(("worker", "pool", "engine", "states", "block")):
            calls = [node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)]
            assert not [call for call in calls if ast.unparse(call).endswith(touching)], name


PUBLIC = {
    *("BaseVectorEnv", "ContinuousToDiscrete", "DummyVectorEnv", "EnvError", "EnvTimeoutError"),
    *("MultiDiscreteToDiscrete", "Replay", "ReplayError", "RunningMeanStd", "ShmemVectorEnv"),
    *("SubprocVectorEnv", "TruncatedAsTerminated", "VectorEnvNormObs", "VectorEnvWrapper"),
    *("WorkerDiedError", "make", "replay"),
}
PUBLIC_WORKER = {"DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"}


@pytest.mark.parametrize(
    ("name", "public"), [("envpool_py", PUBLIC), ("envpool_py.worker", PUBLIC_WORKER)]
)
def test_the_public_names(name, public):
    module = importlib.import_module(name)
    assert module.__all__ == sorted(public)
    for each in public:
        assert getattr(module, each).__doc__
    modules = {part for other in SOURCES for part in other.split(".")}
    modules -= public  # record.replay has a function of its name
    visible = {n for n in vars(module) if not n.startswith("_")} - modules - {"annotations"}
    assert visible == public, "what is not exported has no place in the namespace"
    assert (PACKAGE / "py.typed").exists()


def test_optional_packages_are_not_imported():
    code = "import sys, envpool_py.envpool, envpool_py.testing; print(*sys.modules)"
    optional = {"ray", "stable_baselines3", "pettingzoo", "matplotlib", "rich", "torch"}
    optional |= {"tianshou", "pytest", "hypothesis", "ale_py", "dm_env"}
    assert not optional & set(map(package_of, run_python("-c", code, env={"PATH": ""}).split()))
