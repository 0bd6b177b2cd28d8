"""The paths of docs/architecture.md are those that the code takes: profiles beside the page."""

import ast
import functools
import os
import re
import sys
from pathlib import Path

import pytest

import envpool_py
from envpool_py import ShmemVectorEnv
from tests.support import envs
from tests.support.helpers import ROOT

PACKAGE = Path(envpool_py.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
IN_WORKER = "In the worker process"


def functions():
    """Return the names of all functions of the package, as the page writes them."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "args")}
            elif isinstance(node, ast.FunctionDef):
                found.add(f"{path.stem}.{node.name}")
    return found


def steps(title):
    """Return the numbered steps of a section."""
    section = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    return STEP.findall(section[1])


def names(text):
    """Return the functions that a text names, except files."""
    return [name for name in re.findall(r"`(\w+\.\w+)`", text) if not name.endswith(".py")]


class Profile:
    """The functions of the package that this thread calls in the block, in order."""

    def __enter__(self):
        self.called = []
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            # ``co_qualname`` is newer than Python 3.10.
            owner = frame.f_locals.get("self")
            kinds = type(owner).__mro__ if owner is not None else ()
            owners = [kind.__name__ for kind in kinds if code.co_name in vars(kind)]
            self.called.append({f"{one}.{code.co_name}" for one in owners})
            self.called[-1].add(f"{Path(code.co_filename).stem}.{code.co_name}")


def make(make_env, **options):
    fns = [functools.partial(make_env, tag) for tag in range(4)]
    options |= {"context": "fork", "num_processes": 2, "wait_num": 1}
    return ShmemVectorEnv(fns, autoreset_mode="same_step", **options)


def end_process(pool):
    """Let the process of envs 0 and 1 end in a step of env 0."""
    process = pool.workers[0].process
    pool.send(["os._exit"], [0])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def partial_step():
    with make(lambda tag: envs.CountEnv(tag, 9)) as pool:
        pool.reset()
        with Profile() as profile:
            pool.step([0, 0], [0, 1])
    return profile


def seeded_reset():
    with make(envs.FaultEnv) as pool, Profile() as profile:
        pool.reset(seed=3)
    return profile


def call():
    with make(envs.FaultEnv) as pool, Profile() as profile:
        pool.call("pid")
    return profile


def crash():
    with make(envs.FaultEnv, on_error="restart", on_restart=lambda *_: None) as pool:
        pool.reset()
        end_process(pool)
        with Profile() as profile:
            assert "env_error" in pool.recv()[4][0]
            assert "env_error" in pool.step([""], [1])[4][0]
            assert "env_error" in pool.step(["value"], [2])[4][0]
    return profile


def restart():
    with make(envs.FaultEnv) as pool:
        pool.reset()
        end_process(pool)
        with Profile() as profile:
            pool.restart([0])
    return profile


PATHS = {
    "A partial step": partial_step,
    "A reset with seeds": seeded_reset,
    "A call of a method": call,
    'A crash with `on_error="restart"`': crash,
    "A restart by hand": restart,
}


@pytest.mark.parametrize("title", PATHS)
def test_a_path_is_that_of_the_code(title):
    called = iter(PATHS[title]().called)
    listed = steps(title)
    assert len(listed) > 3
    for text in listed:
        if not text.startswith(IN_WORKER):
            for name in names(text):
                assert any(name in one for one in called), f"{name} is not called there: {text}"


def test_every_function_and_file_that_the_page_names_exists():
    known = functions()
    named = {name for title in PATHS for text in steps(title) for name in names(text)}
    assert named - known == set()
    files = re.findall(r"`(\w+/\w+\.py)`", PAGE)
    assert files
    assert not [name for name in files if not (PACKAGE / name).is_file()]
