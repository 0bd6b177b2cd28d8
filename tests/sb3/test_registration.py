"""Stable-Baselines3 takes ours for its own, whichever is imported first."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3.common.env_util as sb3_env_util
import stable_baselines3.common.monitor as sb3_monitor
import stable_baselines3.common.running_mean_std as sb3_running_mean_std
import stable_baselines3.common.vec_env as sb3

import envpool_py
import envpool_py.sb3 as own
from envpool_py.sb3.common import env_util, monitor, running_mean_std
from envpool_py.sb3.registration import CLASSES
from tests.sb3.envs import WalkEnv

ROOT = Path(envpool_py.__file__).parent.parent

CHECK = """
import sys
import envpool_py.sb3 as own, stable_baselines3.common.vec_env as sb3
from envpool_py.sb3.registration import CLASSES, _Watcher
for cls in CLASSES:
    assert issubclass(cls, getattr(sb3, cls.__name__)), cls
assert issubclass(own.ShmemVecEnv, sb3.SubprocVecEnv)
assert not any(isinstance(finder, _Watcher) for finder in sys.meta_path)
print("registered")
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


ORDERS = {
    "ours first": "import envpool_py.sb3\nimport stable_baselines3",
    "theirs first": "import stable_baselines3\nimport envpool_py.sb3",
    "ours first, asked in between": """
import envpool_py.sb3 as own
venv = own.DummyVecEnv([lambda: __import__("gymnasium").make("CartPole-v1")])
from stable_baselines3.common.vec_env import VecEnv
assert isinstance(venv, VecEnv)
venv.close()
""",
    # A finder of the user's own, before and after ours.
    "beside another finder": """
import sys
class Silent:
    def find_spec(self, *_):
        return None
sys.meta_path.insert(0, Silent())
import envpool_py.sb3
sys.meta_path.insert(0, Silent())
import stable_baselines3
""",
    "from inside their import": """
import importlib.abc, sys
class Early(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "stable_baselines3.common.vec_env.dummy_vec_env":
            sys.meta_path.remove(self)
            import envpool_py.sb3
        return None
sys.meta_path.insert(0, Early())
import stable_baselines3
""",
}


@pytest.mark.parametrize("order", ORDERS)
def test_in_whatever_order_they_are_imported(order: str, tmp_path: Path) -> None:
    assert run(ORDERS[order] + CHECK, tmp_path) == "registered\n"


def test_without_stable_baselines3_and_torch(tmp_path: Path) -> None:
    for name in ("stable_baselines3", "torch", "cv2", "moviepy", "rich", "pandas"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not there')\n")
    code = """
import sys
import gymnasium, numpy
import envpool_py.sb3 as own
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


@pytest.mark.parametrize("cls", [*CLASSES, own.StackedObservations], ids=lambda cls: cls.__name__)
def test_every_public_name_and_parameter_of_theirs_is_here(cls: type) -> None:
    theirs = getattr(sb3, cls.__name__)
    assert public(theirs) <= public(cls)
    for name in (*public(theirs), "__init__"):
        function = getattr(theirs, name)
        if callable(function) and inspect.isfunction(getattr(cls, name)):
            assert_takes_alike(getattr(cls, name), function, f"{cls.__name__}.{name}")


def assert_takes_alike(ours: Any, theirs: Any, where: str) -> None:
    """Ours takes what theirs takes, in the same order, with the same defaults."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own_parameters = [p for p in inspect.signature(ours).parameters.values() if p.kind in kinds]
    for k, parameter in enumerate(inspect.signature(theirs).parameters.values()):
        if parameter.kind in kinds:
            assert own_parameters[k].name == parameter.name, where
            assert own_parameters[k].default == parameter.default, where


PRIVATE = {"CloudpickleWrapper"}
"""Names of theirs that have nothing to do with us: what pickles their env_fns."""


def test_the_names_of_their_package() -> None:
    assert set(sb3.__all__) - PRIVATE <= set(own.common.vec_env.__all__)
    assert set(own.common.vec_env.__all__) <= set(own.__all__)


@pytest.mark.parametrize("name", ["Monitor", "ResultsWriter"])
def test_the_monitor_is_alike(name: str) -> None:
    ours, theirs = getattr(monitor, name), getattr(sb3_monitor, name)
    assert public(theirs) <= public(ours)
    assert_takes_alike(ours.__init__, theirs.__init__, name)


def test_functions_are_alike() -> None:
    for name in ("make_vec_env", "is_wrapped", "unwrap_wrapper"):
        assert_takes_alike(getattr(env_util, name), getattr(sb3_env_util, name), name)
    for name in ("unwrap_vec_wrapper", "is_vecenv_wrapped", "sync_envs_normalization"):
        assert_takes_alike(getattr(own, name), getattr(sb3, name), name)
    ours, theirs = running_mean_std.RunningMeanStd, sb3_running_mean_std.RunningMeanStd
    assert public(theirs) <= public(ours)
    assert_takes_alike(ours.__init__, theirs.__init__, "RunningMeanStd")


MODULES = (
    "base_vec_env:VecEnv VecEnvWrapper VecEnvIndices VecEnvObs VecEnvStepReturn tile_images",
    "dummy_vec_env:DummyVecEnv",
    "stacked_observations:StackedObservations",
    "subproc_vec_env:SubprocVecEnv",
    "util:dict_to_obs obs_space_info",
    "vec_check_nan:VecCheckNan",
    "vec_extract_dict_obs:VecExtractDictObs",
    "vec_frame_stack:VecFrameStack",
    "vec_monitor:VecMonitor",
    "vec_normalize:VecNormalize",
    "vec_transpose:VecTransposeImage",
    "vec_video_recorder:VecVideoRecorder",
)


@pytest.mark.parametrize("entry", MODULES)
def test_module_paths_are_mirrored(entry: str) -> None:
    module, names = entry.split(":")
    for package in ("stable_baselines3", "envpool_py.sb3"):
        mirrored = __import__(f"{package}.common.vec_env.{module}", fromlist=["*"])
        assert all(hasattr(mirrored, name) for name in names.split())


def attributes(venv: Any) -> set[str]:
    return {name for name in vars(venv) if not name.startswith("_")}


def test_attributes_of_instances() -> None:
    """What theirs have besides is their inside: buffers, pipes, a copy of the class's names."""
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


def test_their_monitor_and_ours_stand_for_each_other() -> None:
    for wrapper in (own.Monitor, sb3_monitor.Monitor):
        venv = own.DummyVecEnv([lambda wrapper=wrapper: wrapper(WalkEnv())])
        assert venv.env_is_wrapped(own.Monitor) == [True]
        assert venv.env_is_wrapped(sb3_monitor.Monitor) == [True]
        venv.close()
