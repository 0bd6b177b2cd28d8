"""The size and the shape of the package: lines, methods, attributes, layers, public names."""

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import envpool_py
import envpool_py.worker

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
WHOLE = (
    "wrappers",
    "collector",
    "cli",
    "sb3",
    "pettingzoo",
    "envpool",
    "gymnasium",
    "ray",
    "bench",
)

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


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
INSIDE = [name for name in FILES if name.split(".")[0] not in WHOLE]


def is_core(name):
    return name in CORE or name.split(".", maxsplit=1)[0] == "worker"


@functools.cache
def source(name):
    return FILES[name].read_text(encoding="utf-8")


@functools.cache
def tree(name):
    return ast.parse(source(name))


# -------------------------------------------------------------------------------------- size


def test_the_package_is_small():
    assert set(FILES) >= CORE
    lines = {name: len(source(name).splitlines()) for name in INSIDE}
    core = sum(count for name, count in lines.items() if is_core(name))
    assert core <= MAX_CORE_LINES
    assert sum(lines.values()) <= MAX_LINES
    assert not {name: count for name, count in lines.items() if count > MAX_FILE_LINES}


def test_no_class_has_many_methods_or_attributes():
    classes = [
        (f"{name}.{node.name}", node)
        for name in INSIDE
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 50
    for name, node in classes:
        functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
        assert len([one for one in functions if not is_property(one)]) <= MAX_METHODS, name
        stored = {
            child.attr
            for child in ast.walk(node)
            if isinstance(child, ast.Attribute)
            and isinstance(child.ctx, ast.Store)
            and ast.unparse(child.value) == "self"
        }
        assert len(stored) <= MAX_ATTRIBUTES, name


def is_property(node):
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list)


# -------------------------------------------------------------------------- the import graph


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
                is_module = whole.removeprefix("envpool_py.") in FILES
                found.add(whole if is_module else str(child.module))
        found |= imports(child, everywhere=everywhere)
    return found


def own_imports(name, *, everywhere=True):
    """Return the modules of this package that a module imports."""
    found = imports(tree(name), everywhere=everywhere)
    own = {one.removeprefix("envpool_py").removeprefix(".") for one in found if "envpool_py" in one}
    return own & FILES.keys() - {name}


def row_of(name):
    """Return the name that a module has in the table of layers."""
    first = name.split(".", maxsplit=1)[0]
    return first if first in WHOLE else name


GRAPH = {name: own_imports(name) for name in FILES}


def reached(name, graph):
    """Return the modules that a module imports, directly or through others."""
    found = set()
    waiting = [name]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_no_modules_import_each_other():
    graphlib.TopologicalSorter(GRAPH).prepare()  # raises CycleError


def test_every_module_has_its_layer():
    assert {row_of(name) for name in FILES} - {""} == set(RANK)
    assert len(LAYERS) <= 8


def test_imports_go_down_only():
    pairs = [(name, other) for name in FILES for other in own_imports(name, everywhere=False)]
    rows = [(name, other, row_of(name), row_of(other)) for name, other in pairs if name and other]
    assert not [(name, other) for name, other, row, below in rows if RANK[below] > RANK[row]]


def test_who_may_not_import_what():
    machinery = {"multiprocessing", "pickle", "cloudpickle", "mmap", "select", "selectors"}
    machinery |= {"subprocess", "signal", "socket", "struct"}
    for name in ("pool", "states", "arguments", "pools", "block", "spaces", "ids", "seeding"):
        imported = imports(tree(name))
        assert not {one.split(".")[0] for one in imported} & machinery, name
        assert "envpool_py.shm" not in imported, name
    for name in filter(is_core, FILES):
        found = reached(name, GRAPH)
        if name not in {"pool", "pools"}:  # the public classes may start a record
            assert not [one for one in found if one.split(".")[0] == "record"], name
        if name.startswith("worker"):
            assert not found & {"pool", "engine", "states", "pools"}, name


def test_only_two_modules_touch_envs():
    touching = ("env.step", "env.reset", "env.render", "env.close", "env_fn")
    for name in FILES.keys() - {"worker.executor", "row_writer"}:
        if name.startswith(("worker", "pool", "engine", "states", "block")):
            calls = [node.func for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
            assert not [call for call in calls if ast.unparse(call).endswith(touching)], name


# ------------------------------------------------------------------------------ public names

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
    assert set(module.__all__) == public
    assert list(module.__all__) == sorted(module.__all__)
    for each in public:
        assert getattr(module, each).__doc__
    modules = {part for other in FILES for part in (other.split(".")[0], other.split(".")[-1])}
    modules -= public  # record.replay has a function of its name
    visible = {n for n in vars(module) if not n.startswith("_")} - modules - {"annotations"}
    assert visible == public, "what is not exported has no place in the namespace"


def test_the_package_ships_its_types():
    assert (PACKAGE / "py.typed").exists()


def test_optional_packages_are_not_imported():
    code = "import sys, envpool_py.envpool, envpool_py.testing; print(*sys.modules)"
    environ = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    top = {name.split(".")[0] for name in done.stdout.split()}
    optional = {"ray", "stable_baselines3", "pettingzoo", "matplotlib", "rich", "torch"}
    optional |= {"tianshou", "pytest", "hypothesis", "ale_py", "dm_env"}
    assert not top & optional
