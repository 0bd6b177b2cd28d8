"""The layers: imports go down only, and the public names are these."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import envpool_py
import envpool_py.worker

PACKAGE = Path(envpool_py.__file__).parent

# From the ground up. A module imports from its own row and from those below; no circle within a row
# (tests/test_structure.py).
LAYERS: list[set[str]] = [
    # Pure functions, and memory.
    {"ids", "shm", "seeding", "errors", "spaces", "info_codec", "checks"}
    | {"watchdog", "timing", "worker.limits"},
    # Rows, and one env.
    {"block", "obs_writer", "row_writer", "worker.base", "worker.channel"} | {"worker.executor"},
    # Where envs live.
    {"worker", "worker.child", "worker.hosts", "worker.placement", "worker.process"}
    | {"worker.processes", "worker.workers"},
    # The engine.
    {"asking", "engine", "faults", "observers", "recovery", "recreation", "states"},
    # Recording, but for its replay.
    {"record", "record.digest", "record.history", "record.plain_codec", "record.recorder"},
    # The pools.
    {"arguments", "assembly", "auto", "calls", "pool", "pools", "stats"}
    | {"record.replay", "testing"},
    # What is built on pools.
    {"wrappers", "collector", "sb3", "pettingzoo", "ray"},
    {"bench", "cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# Packages that are one row each: their own modules may import each other.
WHOLE = ("wrappers", "collector", "cli", "sb3", "pettingzoo", "ray", "bench")

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    if path != PACKAGE / "__init__.py"
}


def named(module: str) -> str:
    """Return the name that a module has in the table."""
    module = module.removesuffix(".__init__").removesuffix(".__main__")
    first = module.split(".", maxsplit=1)[0]
    return first if first in WHOLE else module


def imports(path: Path, *, everywhere: bool = True) -> set[str]:
    """Return the dotted names that a file imports; those for type checkers alone are left out."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.FunctionDef) and not everywhere:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                found.add(str(child.module))
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def own_imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports when it is imported."""
    within = (name for name in imports(path, everywhere=False) if name.startswith("envpool_py."))
    found = {name.removeprefix("envpool_py.") for name in within}
    known = {module.removesuffix(".__init__") for module in MODULES}
    return {named(name) for name in found if name in known}


def test_every_module_has_its_layer() -> None:
    assert {named(module) for module in MODULES} == set(RANK)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module: str) -> None:
    name = named(module)
    for other in own_imports(MODULES[module]) - {name}:
        # `from envpool_py.worker import child` names the package on its way to a module of it.
        if other == "worker" and name.startswith("worker."):
            continue
        assert RANK[other] <= RANK[name], f"{name} imports {other}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_pool_knows_no_processes_and_workers_no_pool(module: str) -> None:
    machinery = {"multiprocessing", "pickle", "cloudpickle", "mmap", "select", "selectors"}
    machinery |= {"subprocess", "signal", "socket", "struct", "envpool_py.shm"}
    imported = imports(MODULES[module])
    if module in ("pool", "states", "arguments", "pools", "block", "spaces", "ids", "seeding"):
        assert not imported & machinery
        assert not {name.split(".")[0] for name in imported} & machinery
    if module.startswith("worker"):
        pool = {"envpool_py.pool", "envpool_py.engine", "envpool_py.states", "envpool_py.pools"}
        assert not imported & pool


@pytest.mark.parametrize("module", sorted(m for m in MODULES if not m.startswith("testing")))
def test_only_two_modules_touch_envs(module: str) -> None:
    if module in {"worker.executor", "row_writer"}:
        return
    calls = (
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.Call)
    )
    if module.startswith(("worker", "pool", "engine", "states", "block")):
        touching = ("env.step", "env.reset", "env.render", "env.close", "env_fn")
        assert not [call for call in calls if call.endswith(touching)]


PUBLIC = {
    "BaseVectorEnv",
    "ContinuousToDiscrete",
    "DummyVectorEnv",
    "EnvError",
    "EnvTimeoutError",
    "MultiDiscreteToDiscrete",
    "Replay",
    "ReplayError",
    "RunningMeanStd",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "TruncatedAsTerminated",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
    "WorkerDiedError",
    "make",
    "replay",
}
PUBLIC_WORKER = {"DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"}


@pytest.mark.parametrize(
    ("name", "public"), [("envpool_py", PUBLIC), ("envpool_py.worker", PUBLIC_WORKER)]
)
def test_the_public_names(name: str, public: set[str]) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) == public
    assert list(module.__all__) == sorted(module.__all__)
    for each in public:
        assert getattr(module, each).__doc__
    modules = {m.split(".")[0] for m in MODULES} | {m.split(".")[-1] for m in MODULES}
    modules -= public  # record.replay has a function of its name
    visible = {n for n in vars(module) if not n.startswith("_")} - modules - {"annotations"}
    assert visible == public, "what is not exported has no place in the namespace"


def test_the_package_ships_its_types() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_optional_packages_are_not_imported() -> None:
    code = "import sys, envpool_py, envpool_py.testing; print(*sys.modules)"
    environ = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    top = {name.split(".")[0] for name in done.stdout.split()}
    optional = {"ray", "stable_baselines3", "pettingzoo", "matplotlib", "rich", "torch"}
    optional |= {"tianshou", "pytest", "hypothesis", "ale_py"}
    assert not top & optional
