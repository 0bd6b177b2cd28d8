"""Stable-Baselines3 accepts our classes, and they have its names, parameters and attributes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3.common.atari_wrappers as sb3_atari
import stable_baselines3.common.env_util as sb3_env_util
import stable_baselines3.common.monitor as sb3_monitor
import stable_baselines3.common.running_mean_std as sb3_running_mean_std
import stable_baselines3.common.vec_env as sb3

import envpool_py
import envpool_py.sb3 as own
from envpool_py.sb3.common import atari_wrappers, env_util, monitor, running_mean_std
from tests.sb3.envs import WalkEnv

ROOT = Path(envpool_py.__file__).parent.parent
CLASSES = [getattr(own, name) for name in sb3.__all__ if inspect.isclass(getattr(own, name, None))]

BEGIN = """
import sys
import gymnasium
import envpool_py.sb3 as own
finders = list(sys.meta_path)
def made():
    return own.VecMonitor(own.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
"""
CHECK = """
import stable_baselines3.common.vec_env as sb3
assert isinstance(venv, sb3.VecEnv) and isinstance(venv, sb3.VecMonitor), type(venv).__mro__
assert isinstance(venv.unwrapped, sb3.DummyVecEnv)
assert not isinstance(venv.unwrapped, sb3.VecEnvWrapper)
venv.close()
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


ORDERS = {
    "ours first": f"{BEGIN}\nimport stable_baselines3\nvenv = made()",
    "theirs first": f"import stable_baselines3\n{BEGIN}\nvenv = made()",
    "theirs last": f"{BEGIN}\nvenv = made()\nimport stable_baselines3\nassert own.register()",
    "by hand": f"{BEGIN}\nvenv = made()\nassert own.register()\nassert own.register()",
}


@pytest.mark.parametrize("order", ORDERS)
def test_in_whatever_order_they_are_imported(order: str, tmp_path: Path) -> None:
    assert run(ORDERS[order] + CHECK, tmp_path) == "accepted\n"


def test_importing_this_package_changes_no_import(tmp_path: Path) -> None:
    """Finding 20: neither the package nor a VecEnv installs a finder or patches a loader."""
    code = f"""
import sys
before = list(sys.meta_path)
{BEGIN}
venv = made()
assert sys.meta_path == before
import stable_baselines3.common.vec_env.base_vec_env as module
assert "exec_module" not in vars(module.__loader__)
venv.close()
"""
    assert run(code, tmp_path) == ""


def test_registration_covers_every_class() -> None:
    assert own.register()
    for cls in CLASSES:
        if issubclass(cls, own.VecEnv):
            assert issubclass(cls, getattr(sb3, cls.__name__)), cls
    assert issubclass(own.ShmemVecEnv, sb3.SubprocVecEnv)


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


# ------------------------------------------------------------------------ names and parameters


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


PAIRS: dict[str, tuple[Any, Any]] = {
    **{cls.__name__: (cls, getattr(sb3, cls.__name__)) for cls in CLASSES},
    **{
        name: (getattr(module, name), getattr(theirs, name))
        for module, theirs, names in (
            (own, sb3, "unwrap_vec_wrapper is_vecenv_wrapped sync_envs_normalization"),
            (env_util, sb3_env_util, "make_vec_env make_atari_env is_wrapped unwrap_wrapper"),
            (monitor, sb3_monitor, "Monitor ResultsWriter load_results get_monitor_files"),
            (running_mean_std, sb3_running_mean_std, "RunningMeanStd"),
            (atari_wrappers, sb3_atari, "StickyActionEnv NoopResetEnv FireResetEnv WarpFrame"),
            (atari_wrappers, sb3_atari, "EpisodicLifeEnv MaxAndSkipEnv ClipRewardEnv AtariWrapper"),
        )
        for name in names.split()
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_public_name_and_parameter_of_theirs_is_here(name: str) -> None:
    ours, theirs = PAIRS[name]
    if not inspect.isclass(theirs):
        assert_takes_alike(ours, theirs, name)
        return
    assert public(theirs) <= public(ours)
    for method in (*(public(theirs) if issubclass(ours, own.VecEnv) else ()), "__init__"):
        function = getattr(theirs, method)
        if callable(function) and inspect.isfunction(getattr(ours, method)):
            assert_takes_alike(getattr(ours, method), function, f"{name}.{method}")


def test_the_names_of_their_package() -> None:
    private = {"CloudpickleWrapper"}  # pickles their env_fns
    assert set(sb3.__all__) - private <= set(own.common.vec_env.__all__)
    assert set(own.common.vec_env.__all__) <= set(own.__all__)


MODULES = (
    "atari_wrappers:AtariWrapper",
    "env_checker:check_env",
    "env_util:make_vec_env make_atari_env is_wrapped unwrap_wrapper",
    "monitor:Monitor ResultsWriter LoadMonitorResultsError load_results get_monitor_files",
    "preprocessing:is_image_space is_image_space_channels_first",
    "running_mean_std:RunningMeanStd",
    "vec_env.base_vec_env:VecEnv VecEnvWrapper VecEnvIndices VecEnvStepReturn tile_images",
    "vec_env.dummy_vec_env:DummyVecEnv",
    "vec_env.patch_gym:_patch_env _convert_space",
    "vec_env.stacked_observations:StackedObservations",
    "vec_env.subproc_vec_env:SubprocVecEnv",
    "vec_env.util:dict_to_obs obs_space_info",
    "vec_env.vec_check_nan:VecCheckNan",
    "vec_env.vec_extract_dict_obs:VecExtractDictObs",
    "vec_env.vec_frame_stack:VecFrameStack",
    "vec_env.vec_monitor:VecMonitor",
    "vec_env.vec_normalize:VecNormalize",
    "vec_env.vec_transpose:VecTransposeImage",
    "vec_env.vec_video_recorder:VecVideoRecorder",
)


@pytest.mark.parametrize("entry", MODULES)
def test_module_paths_are_mirrored(entry: str) -> None:
    module, names = entry.split(":")
    for package in ("stable_baselines3", "envpool_py.sb3"):
        mirrored = __import__(f"{package}.common.{module}", fromlist=["*"])
        assert all(hasattr(mirrored, name) for name in names.split())


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


def test_their_monitor_and_ours_count_as_one_class() -> None:
    for wrapper in (own.Monitor, sb3_monitor.Monitor):
        venv = own.DummyVecEnv([lambda wrapper=wrapper: wrapper(WalkEnv())])
        assert venv.env_is_wrapped(own.Monitor) == [True]
        assert venv.env_is_wrapped(sb3_monitor.Monitor) == [True]
        venv.close()
