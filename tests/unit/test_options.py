"""Every option of the pools: in signatures, docstrings and types; a misspelt one is refused."""

import inspect
import re
import subprocess
import sys
import typing

import pytest

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    make,
    options,
)
from envpool_py.pool import keywords
from envpool_py.sb3 import DummyVecEnv
from tests.support.envs import CountEnv
from tests.support.helpers import ROOT

OF_ALL = {
    *("strict_timeout", "autoreset_mode", "episode_seeds", "reset_fn", "columns", "copy"),
    "recycle",
    *("reset_first", "validate", "on_error", "max_restarts", "restart_backoff", "on_restart"),
    *("measure", "record"),
}
FIRST = {"env_fns", "wait_num", "timeout"}
OF_PROCESSES = {"threads_per_process", "affinity", "step_timeout", "caller_steps"}
OF_PROCESSES |= {"fresh_process"}
OF_SHMEM = OF_ALL | OF_PROCESSES | FIRST | {"context", "num_processes", "start_method"}
OF_MAKE = {"env", "num_envs", "backend", "env_kwargs", "wrappers", "num_threads"}
CALLABLES = [
    (DummyVectorEnv, OF_ALL | FIRST),
    (ShmemVectorEnv, OF_SHMEM),
    (SubprocVectorEnv, OF_SHMEM | {"share_memory"}),
    (ThreadVectorEnv, OF_ALL | FIRST | {"num_threads", "step_timeout"}),
    (make, OF_SHMEM - {"env_fns"} | OF_MAKE),
]


@pytest.mark.parametrize(("function", "names"), CALLABLES)
def test_every_option_is_in_the_signature_and_the_text(function, names):
    parameters = inspect.signature(function).parameters
    assert parameters.keys() == names
    own = inspect.signature(BaseVectorEnv).parameters
    others = {
        "threads_per_process": 1,
        "affinity": False,
        "step_timeout": None,
        "caller_steps": False,
        "fresh_process": False,
    }
    if function is make:
        others |= {"autoreset_mode": "same_step", "columns": True, "caller_steps": None}
    for name in (OF_ALL | OF_PROCESSES) & names:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == (others[name] if name in others else own[name].default)
    typed = function.__init__ if isinstance(function, type) else function
    assert typing.get_type_hints(typed).keys() - {"return"} == names
    args = inspect.getdoc(function).partition("Args:\n")[2]
    args = re.split(r"\n(?:Returns|Raises):", args)[0]
    explained = re.findall(r"^ {4}(\w+): \S", args, re.MULTILINE)
    assert explained == list(parameters)
    assert '``"restart"``: the env is\n' in args  # the meaning, and not a reference to it


def test_the_types_for_type_checkers_are_those_of_the_options():
    fields = {}
    for kind in options.CLASSES:
        fields |= typing.get_type_hints(kind)
    fields.pop("num_processes")  # is a parameter of its own
    assert typing.get_type_hints(keywords.ProcessPoolOptions) == fields
    assert fields.keys() == OF_ALL | OF_PROCESSES


def never():
    raise AssertionError("an env was made")


PROCESSES = (
    "DummyVectorEnv does not take threads_per_process; ShmemVectorEnv and SubprocVectorEnv take it"
)
KWARGS = "make does not take size; pass arguments of the env as env_kwargs={'size': ...}"
MODE = "DummyVectorEnv does not take autoreset; did you mean autoreset_mode?"
UNKNOWN = [
    (DummyVectorEnv, {"autoreset": 1}, MODE),
    (ShmemVectorEnv, {"on_eror": 1}, "ShmemVectorEnv does not take on_eror; did you mean on_err"),
    (SubprocVectorEnv, {"zzz": 1}, "SubprocVectorEnv does not take zzz"),
    (make, {"num_env": 2}, "make does not take num_env; did you mean num_envs?"),
    (make, {"size": 3}, KWARGS),
    (make, {"policy_us": 3}, "make does not take policy_us"),
    (DummyVectorEnv, {"threads_per_process": 2}, PROCESSES),
    (DummyVecEnv, {"step_timeout": 2}, "take step_timeout; use SubprocVecEnv or ShmemVecEnv"),
    (make, {"backend": "dummy", "threads_per_process": 2}, "make(backend='dummy') does not take"),
    (make, {"backend": "dummy", "num_processes": 2}, "make(backend='dummy') does not take num_pr"),
    (make, {"backend": "dummy", "context": "fork"}, "make(backend='dummy') does not take context"),
]


@pytest.mark.parametrize(("function", "given", "text"), UNKNOWN)
def test_an_unknown_option_is_refused_before_an_env_is_made(function, given, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        function(never if function is make else [never], **given)


def test_a_class_of_your_own_has_its_own_signature():
    class Mine(DummyVectorEnv):
        def __init__(self, number):
            super().__init__([CountEnv] * number)

    assert list(inspect.signature(Mine).parameters) == ["number"]


SNIPPET = """\
from envpool_py import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, make
fns = [lambda: object()]
DummyVectorEnv(fns, 2, columns=True, autoreset_mode="same_step")
SubprocVectorEnv(fns, on_error="restart", threads_per_process=None, step_timeout=1.5)
make("CartPole-v1", 4, columns=False, caller_steps=True, validate="off")
DummyVectorEnv(fns, colums=True)
DummyVectorEnv(fns, step_timeout=1.5)
ShmemVectorEnv(fns, step_timeuot=1.5)
SubprocVectorEnv(fns, copy="yes")
make("CartPole-v1", 4, on_eror="restart")
make("CartPole-v1", 4, validate=3)
"""


@pytest.mark.slow
def test_mypy_refuses_a_misspelt_option(tmp_path):
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    # Without NumPy and Gymnasium, which take most of the time: no option is of a type of theirs.
    options = "--strict --no-error-summary --no-site-packages --follow-imports=silent --cache-dir"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options.split(), str(tmp_path / "cache"), str(path)],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^snippet\.py:(\d+): error: .*\"\w+\"", done.stdout, re.MULTILINE)
    assert found == ["6", "7", "8", "9", "10", "11"], done.stdout
