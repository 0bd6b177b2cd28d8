"""The size and the shape of the package: lines, methods, attributes, layers, public names."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import envpool_py
import envpool_py.worker
from tests.support.helpers import run_python
from tests.support.structure import House, room_of

PACKAGE = Path(envpool_py.__file__).parent

MAX_FLOORS = 8
# The budget is 9 000 lines, and 500 for threads: the limit is lowered with every line that goes.
MAX_LINES = 13_300
MAX_FILE_LINES = 600
MAX_FILES = 16
MAX_METHODS = 40
MAX_ATTRIBUTES = 21


@pytest.fixture(scope="module")
def house():
    return House(PACKAGE)


def test_folders_are_floors_without_circles(house):
    print(house.report())  # noqa: T201 - shown by pytest -s, and if the test fails
    assert not house.circles
    assert max(house.floor.values()) <= MAX_FLOORS


def test_the_package_is_small(house):
    lines = {name: house.modules[name].lines for name in house.inside}
    assert sum(lines.values()) <= MAX_LINES
    assert not {name: count for name, count in lines.items() if count > MAX_FILE_LINES}
    assert max(house.files[room_of(name)] for name in house.inside) <= MAX_FILES


def test_no_class_has_many_methods_or_attributes(house):
    nodes = [node for name in house.inside for node in ast.walk(house.tree(name))]
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
            and is_self(child.value)
        }
        assert len(stored) <= MAX_ATTRIBUTES, node.name


def is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


def attributes_of(tree):
    """Return all names after a dot, and those that classes of the module define for ``self``."""
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    stored = [node for node in named if isinstance(node.ctx, ast.Store)]
    defined = {node.attr for node in stored if is_self(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            defined |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            assigned = [each.targets for each in node.body if isinstance(each, ast.Assign)]
            defined |= {ast.unparse(target) for targets in assigned for target in targets}
    return named, defined


def test_what_stands_on_the_pool_asks_one_private_object(house):
    defining = map(house.tree, ("pool.base", "pool.engine_for_interfaces"))
    private = set().union(*(attributes_of(tree)[1] for tree in defining))
    private = {name for name in private if re.match("_(?!_)", name)}
    assert {"_inner", "_engine", "_select", "_under_way"} <= private
    refused = private - {"_inner"} | {"engine"}
    asking = set()
    for name in house.modules:
        if room_of(name) in ("pool", "engine"):
            continue
        assert "engine" not in map(room_of, house.modules[name].imports), name
        named, defined = attributes_of(house.tree(name))
        for node in named:
            own = is_self(node.value)
            own &= node.attr in defined or room_of(name) != "wrappers"  # which are pools themselves
            assert own or node.attr not in refused, f"{name}: {ast.unparse(node)}"
            if node.attr == "_inner" and not own:
                asking.add(name)
    assert asking, "nothing was found"


def is_property(node):
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list)


PUBLIC = {
    *("AtariInfo", "BaseVectorEnv", "ContinuousToDiscrete"),
    *("DummyVectorEnv", "EnvError", "EnvTimeoutError"),
    *("MultiDiscreteToDiscrete", "NormalizeReward"),
    *("PoolOptions", "Replay", "ReplayError", "RunningMeanStd"),
    *("ShmemVectorEnv", "SubprocVectorEnv"),
    *("TruncatedAsTerminated", "VectorEnvNormObs", "VectorEnvWrapper", "WorkerDiedError"),
    *("ThreadVectorEnv", "make", "replay"),
}
PUBLIC_WORKER = {"DummyEnvWorker", "EnvWorker", "Request", "ShmemEnvWorker", "SubprocEnvWorker"}


@pytest.mark.parametrize(
    ("name", "public"), [("envpool_py", PUBLIC), ("envpool_py.worker", PUBLIC_WORKER)]
)
def test_the_public_names(name, public, house):
    module = importlib.import_module(name)
    assert module.__all__ == sorted(public)
    for each in public:
        assert getattr(module, each).__doc__
    modules = {part for other in house.modules for part in other.split(".")}
    modules -= public  # record.replay has a function of its name
    visible = {n for n in vars(module) if not n.startswith("_")} - modules - {"annotations"}
    assert visible == public, "what is not exported has no place in the namespace"
    assert (PACKAGE / "py.typed").exists()


def test_optional_packages_are_not_imported():
    code = "import sys, envpool_py.envpool, envpool_py.testing; print(*sys.modules)"
    optional = {"ray", "stable_baselines3", "pettingzoo", "matplotlib", "rich", "torch"}
    optional |= {"tianshou", "pytest", "hypothesis", "ale_py", "dm_env"}
    assert not optional & set(map(room_of, run_python("-c", code, env={"PATH": ""}).split()))
