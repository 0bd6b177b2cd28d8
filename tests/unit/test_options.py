"""Every option of the pools: in signatures, docstrings and types; a misspelt one is refused."""

import inspect
import re
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
    (make, {"size": 3}, KWARGS),
    (DummyVectorEnv, {"threads_per_process": 2}, PROCESSES),
    (DummyVectorEnv, {"step_timeout": 1.0}, "does not take step_timeout; an env that"),
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
