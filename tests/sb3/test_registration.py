"""Stable-Baselines3 accepts our classes, and they have its names, parameters and attributes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3.common.monitor as sb3_monitor
import stable_baselines3.common.vec_env as sb3

import envpool_py
import envpool_py.sb3 as own
from envpool_py.sb3.common.vec_env import base_vec_env
from tests.sb3.envs import WalkEnv

ROOT = Path(envpool_py.__file__).parent.parent
CLASSES = [getattr(own, name) for name in sb3.__all__ if inspect.isclass(getattr(own, name, None))]

PROGRAM = """
import sys
finders = list(sys.meta_path)
import gymnasium
import envpool_py.sb3 as own
venv = own.VecMonitor(own.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
assert sys.meta_path == finders
assert own.register() and own.register()
import stable_baselines3.common.vec_env as sb3
assert isinstance(venv, sb3.VecEnv) and isinstance(venv, sb3.VecMonitor), type(venv).__mro__
assert isinstance(venv.unwrapped, sb3.DummyVecEnv)
assert not isinstance(venv.unwrapped, sb3.VecEnvWrapper)
venv.close()
import stable_baselines3.common.vec_env.base_vec_env as module
assert "exec_module" not in vars(module.__loader__)
print("accepted")
"""


def run(code: str, tmp_path: Path) -> str:
    """Run a program in an interpreter of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_vec_env_that_was_there_before_stable_baselines3(tmp_path: Path) -> None:
    """Finding 20: neither the package nor a VecEnv installs a finder or patches a loader."""
    assert run(PROGRAM, tmp_path) == "accepted\n"


def test_a_vec_env_registers_every_class() -> None:
    own.DummyVecEnv([WalkEnv])
    for cls in CLASSES:
        if issubclass(cls, own.VecEnv):
            assert issubclass(cls, getattr(sb3, cls.__name__)), cls
    assert issubclass(own.ShmemVecEnv, sb3.SubprocVecEnv)
    assert not issubclass(own.DummyVecEnv, sb3.SubprocVecEnv)


def test_without_stable_baselines3_and_torch(tmp_path: Path) -> None:
    for name in ("stable_baselines3", "torch", "cv2", "moviepy", "rich", "pandas", "ale_py"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not there')\n")
    code = """
import importlib, pathlib, sys
import gymnasium, numpy
import envpool_py.sb3 as own
for file in pathlib.Path(own.__file__).parent.rglob("*.py"):
    module = ".".join(file.relative_to(pathlib.Path(own.__file__).parent).with_suffix("").parts)
    importlib.import_module(f"envpool_py.sb3.{module}".removesuffix(".__init__"))
from envpool_py.sb3.common.env_checker import check_env
venv = own.make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=own.ShmemVecEnv,
                        vec_env_kwargs={"start_method": "fork"})
venv = own.VecMonitor(own.VecNormalize(own.VecFrameStack(venv, 2)))
venv.reset()
for _ in range(30):
    obs, rewards, dones, infos = venv.step(numpy.ones(2, int))
print(obs.shape, own.register(), venv.env_is_wrapped(own.Monitor))
venv.close()
check_env(gymnasium.make("CartPole-v1"), warn=False)
assert not {"stable_baselines3", "torch"} & set(sys.modules)
"""
    assert run(code, tmp_path) == "(2, 8) False [True, True]\n"


def test_a_worker_imports_neither() -> None:
    venv = own.make_vec_env(WalkEnv, 1, vec_env_cls=own.SubprocVecEnv)
    assert venv.env_is_wrapped(sb3_monitor.Monitor) == [True]
    assert venv.has_attr("tag")
    assert venv.env_method("loaded", "torch", "stable_baselines3", "numpy") == [["numpy"]]


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def assert_takes_alike(ours: Any, theirs: Any, where: str) -> None:
    """Ours takes what theirs takes, in the same order, with the same defaults."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(ours).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature)
    own_parameters = [p for p in signature if p.kind in kinds]
    for k, parameter in enumerate(inspect.signature(theirs).parameters.values()):
        if parameter.kind in kinds and not (takes_any and k >= len(own_parameters)):
            assert own_parameters[k].name == parameter.name, where
            assert own_parameters[k].default == parameter.default, where


# Those of preprocessing are for policies; CloudpickleWrapper pickles their env_fns.
NOT_HERE = {"CloudpickleWrapper", "maybe_transpose", "preprocess_obs", "get_obs_shape"}
NOT_HERE |= {"get_flattened_obs_dim", "get_action_dim", "check_for_nested_spaces"}
PRIVATE = {"_patch_env", "_convert_space"}


def pairs() -> Iterator[Any]:
    """Every class and function that a module of theirs defines, with ours of the same path."""
    folder = Path(own.__file__).parent
    for file in sorted(folder.joinpath("common").rglob("*.py")):
        path = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        if path.endswith("pool_vec_env"):
            continue
        ours = importlib.import_module(f"envpool_py.sb3.{path}")
        module = importlib.import_module(f"stable_baselines3.{path}")
        for name, theirs in vars(module).items():
            defined = callable(theirs) and theirs.__module__ == module.__name__
            if defined and (name[0] != "_" or name in PRIVATE) and name not in NOT_HERE:
                yield pytest.param(ours, theirs, id=name)


@pytest.mark.parametrize(("module", "theirs"), list(pairs()))
def test_every_public_name_and_parameter_of_theirs_is_here(module: Any, theirs: Any) -> None:
    ours = getattr(module, theirs.__name__)
    if not inspect.isclass(theirs):
        assert_takes_alike(ours, theirs, theirs.__name__)
        return
    assert public(theirs) <= public(ours)
    for method in (*(public(theirs) if issubclass(ours, own.VecEnv) else ()), "__init__"):
        function = getattr(theirs, method)
        if callable(function) and inspect.isfunction(getattr(ours, method)):
            assert_takes_alike(getattr(ours, method), function, f"{ours}.{method}")


def test_the_names_of_their_package() -> None:
    assert set(sb3.__all__) - NOT_HERE <= set(own.vec_env.__all__) <= set(own.__all__)
    for name in ("VecEnvIndices", "VecEnvObs", "VecEnvStepReturn"):
        assert hasattr(base_vec_env, name)


def attributes(venv: Any) -> set[str]:
    return {name for name in vars(venv) if not name.startswith("_")}


def test_attributes_of_instances() -> None:
    """What theirs have besides is internal: buffers, pipes, a copy of the class's names."""
    inside = {"buf_obs", "buf_rews", "buf_dones", "buf_infos", "keys", "class_attributes"}
    env_fns = [WalkEnv]
    ours, theirs = own.DummyVecEnv(env_fns), sb3.DummyVecEnv(env_fns)
    assert all(hasattr(ours, name) for name in attributes(theirs) - inside)
    for name, kwargs in (
        ("VecNormalize", {}),
        ("VecFrameStack", {"n_stack": 2}),
        ("VecMonitor", {}),
        ("VecCheckNan", {}),
    ):
        wrapped = getattr(own, name)(ours, **kwargs)
        wrapped.reset()
        reference = getattr(sb3, name)(theirs, **kwargs)
        reference.reset()
        assert all(hasattr(wrapped, name) for name in attributes(reference) - inside), name


def test_theirs_and_ours_find_each_others_wrappers() -> None:
    for outer, inner in ((own, sb3), (sb3, own), (own, own)):
        venv = outer.VecMonitor(inner.VecNormalize(own.DummyVecEnv([WalkEnv])))
        for package in (own, sb3):
            assert own.unwrap_vec_normalize(venv) is venv.venv
            assert own.unwrap_vec_wrapper(venv, package.VecMonitor) is venv
            assert own.is_vecenv_wrapped(venv, package.VecNormalize)
            assert not own.is_vecenv_wrapped(venv, package.VecFrameStack)
        assert sb3.unwrap_vec_normalize(venv) is venv.venv
        assert sb3.is_vecenv_wrapped(venv, sb3.VecMonitor)
        assert isinstance(venv, sb3.VecEnv)
        assert venv.unwrapped is venv.venv.venv
        venv.close()
