"""Stable-Baselines3 accepts our classes, and they have its names, parameters and attributes."""

import abc
import importlib
import inspect
import pkgutil
import sys
import types

import pytest
import stable_baselines3.common.monitor as sb3_monitor
import stable_baselines3.common.vec_env as sb3

import envpool_py.sb3 as own
from envpool_py.sb3 import common
from envpool_py.sb3.common.vec_env import base_vec_env
from tests.sb3.envs import WalkEnv
from tests.support.helpers import run_python

# Those of preprocessing are for policies; CloudpickleWrapper pickles their env_fns.
NOT_HERE = {"CloudpickleWrapper", "maybe_transpose", "preprocess_obs", "get_obs_shape"}
NOT_HERE |= {"get_flattened_obs_dim", "get_action_dim", "check_for_nested_spaces"}
PRIVATE = {"_patch_env", "_convert_space"}

WITHOUT = """
import importlib, pkgutil, sys
absent = ("stable_baselines3", "torch", "cv2", "moviepy", "rich", "pandas", "ale_py")
sys.modules.update(dict.fromkeys(absent))
finders = list(sys.meta_path)
import envpool_py.sb3 as own
for _, name, _ in pkgutil.walk_packages(own.__path__, "envpool_py.sb3."):
    importlib.import_module(name)
venv = own.make_vec_env("CartPole-v1", 2, vec_env_cls=own.ShmemVecEnv,
                        vec_env_kwargs={"start_method": "fork"})
venv = own.VecMonitor(own.VecNormalize(own.VecFrameStack(venv, 2)))
venv.reset()
obs, *_ = venv.step([1, 1])
print(obs.shape, own.register(), venv.env_is_wrapped(own.Monitor))
venv.close()
assert sys.meta_path == finders
assert {sys.modules[name] for name in absent} == {None}
"""


def test_without_stable_baselines3_and_torch():
    """Finding 20: neither the package nor a VecEnv installs a finder that waits for them."""
    assert run_python("-W", "ignore", "-c", WITHOUT) == "(2, 8) False [True, True]\n"


def test_a_worker_imports_neither():
    venv = own.make_vec_env(WalkEnv, 1, vec_env_cls=own.SubprocVecEnv)
    assert "forkserver" in repr(venv)
    assert venv.env_is_wrapped(sb3_monitor.Monitor) == [True]
    assert venv.has_attr("tag")
    assert venv.env_method("loaded", "torch", "stable_baselines3", "numpy") == [["numpy"]]


def test_a_vec_env_registers_every_class():
    own.DummyVecEnv([WalkEnv])
    for name in {*sb3.__all__} - {"CloudpickleWrapper"}:
        if inspect.isclass(getattr(sb3, name)):
            assert issubclass(getattr(own, name), getattr(sb3, name)) or "Stacked" in name
    assert issubclass(own.ShmemVecEnv, sb3.SubprocVecEnv)
    assert not issubclass(own.DummyVecEnv, sb3.SubprocVecEnv)
    assert not issubclass(own.DummyVecEnv, sb3.VecEnvWrapper)


def test_their_classes_may_be_imported_later(monkeypatch):
    """A program of docs/sb3.md does it with the real ones, which takes seconds."""
    venv = own.DummyVecEnv([WalkEnv])
    later = types.SimpleNamespace(__all__=["VecEnv"], VecEnv=abc.ABCMeta("VecEnv", (), {}))
    monkeypatch.setitem(sys.modules, sb3.__name__, later)
    assert not isinstance(venv, later.VecEnv)
    assert own.register()
    assert isinstance(venv, later.VecEnv)


def assert_takes_alike(ours, theirs, where):
    """Ours takes what theirs takes, in the same order, with the same defaults."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(ours).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature)
    own_parameters = [p for p in signature if p.kind in kinds]
    for k, parameter in enumerate(inspect.signature(theirs).parameters.values()):
        if parameter.kind in kinds and not (takes_any and k >= len(own_parameters)):
            assert own_parameters[k].name == parameter.name, where
            assert own_parameters[k].default == parameter.default, where


def pairs():
    """Every class and function that a module of theirs defines, with ours of the same path."""
    for _, path, _ in pkgutil.walk_packages(common.__path__, f"{common.__name__}."):
        if path.endswith("pool_vec_env"):
            continue
        ours = importlib.import_module(path)
        module = importlib.import_module(path.replace(own.__name__, "stable_baselines3"))
        for name, theirs in vars(module).items():
            defined = callable(theirs) and theirs.__module__ == module.__name__
            if defined and (name[0] != "_" or name in PRIVATE) and name not in NOT_HERE:
                yield getattr(ours, name), theirs


def test_every_public_name_and_parameter_of_theirs_is_here():
    found = list(pairs())
    assert len(found) > 40
    for ours, theirs in found:
        if not inspect.isclass(theirs):
            assert_takes_alike(ours, theirs, theirs.__name__)
            continue
        public = {name for name in dir(theirs) if name[0] != "_"}
        assert public <= set(dir(ours))
        for method in (*(public if issubclass(ours, own.VecEnv) else ()), "__init__"):
            function = getattr(theirs, method)
            if callable(function) and inspect.isfunction(getattr(ours, method)):
                assert_takes_alike(getattr(ours, method), function, f"{ours}.{method}")
    assert set(sb3.__all__) - NOT_HERE <= set(own.vec_env.__all__) <= set(own.__all__)
    for name in ("VecEnvIndices", "VecEnvObs", "VecEnvStepReturn"):
        assert hasattr(base_vec_env, name)


@pytest.mark.parametrize(("outer", "inner"), [(own, sb3), (sb3, own), (own, own)])
def test_theirs_and_ours_find_each_others_wrappers(outer, inner):
    venv = outer.VecMonitor(inner.VecNormalize(own.DummyVecEnv([WalkEnv])))
    for package in (own, sb3):
        assert own.unwrap_vec_wrapper(venv, package.VecMonitor) is venv
        assert own.is_vecenv_wrapped(venv, package.VecNormalize)
        assert not own.is_vecenv_wrapped(venv, package.VecFrameStack)
        assert package.unwrap_vec_normalize(venv) is venv.venv
    assert sb3.is_vecenv_wrapped(venv, sb3.VecMonitor)
    assert isinstance(venv, sb3.VecEnv)
    assert venv.unwrapped is venv.venv.venv
