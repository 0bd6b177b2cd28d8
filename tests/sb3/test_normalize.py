"""VecNormalize: what it keeps, saves and loads."""

from __future__ import annotations

import collections
import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3.common.running_mean_std as sb3_rms
import stable_baselines3.common.vec_env as sb3

import envpool_py.sb3 as own
from envpool_py.sb3.common.running_mean_std import RunningMeanStd
from tests.sb3.envs import walkers
from tests.sb3.reference import assert_same


def dummy(obs: str = "box", n: int = 3) -> Any:
    return own.DummyVecEnv(walkers(n, obs=obs))


def trained(package: Any, obs: str = "box", **kwargs: Any) -> Any:
    """A VecNormalize that has seen some steps."""
    venv = package.VecNormalize(package.DummyVecEnv(walkers(obs=obs)), **kwargs)
    venv.seed(0)
    venv.reset()
    for _ in range(30):
        venv.step(np.zeros(3, int))
    return venv


def statistics(venv: Any) -> list[Any]:
    rms = getattr(venv, "obs_rms", {})
    parts = {"returns": venv.ret_rms, **(rms if isinstance(rms, dict) else {"": rms})}
    return [(key, np.asarray(r.mean), np.asarray(r.var), r.count) for key, r in parts.items()]


SETTINGS = ["training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon"]
SETTINGS += ["norm_obs_keys"]

CASES: dict[str, tuple[str, dict]] = {
    "box": ("box", {"gamma": 0.9, "training": False}),
    "dict": ("dict", {"norm_obs_keys": ["z", "image"], "clip_obs": 3.0}),
    "images": ("image", {"norm_reward": False}),
    "rewards": ("discrete", {"norm_obs": False, "clip_reward": 2.0, "epsilon": 1e-3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("writer", "reader", "name"),
    [(own, own, "a.pkl"), (own, own, "a.npz"), (sb3, own, "a.pkl"), (own, sb3, "a.pkl")],
)
def test_a_round_trip(case: str, writer: Any, reader: Any, name: str, tmp_path: Path) -> None:
    obs, kwargs = CASES[case]
    venv = trained(writer, obs, **kwargs)
    venv.save(str(tmp_path / name))
    other = reader.VecNormalize.load(str(tmp_path / name), dummy(obs, n=2))
    assert_same(statistics(other), statistics(venv))
    assert [getattr(other, n) for n in SETTINGS] == [getattr(venv, n) for n in SETTINGS]
    assert other.observation_space == venv.observation_space
    assert other.num_envs == 2
    other.training = False
    other.reset()
    original = other.get_original_obs()
    assert_same(other.normalize_obs(original), venv.normalize_obs(original))
    other.step(np.zeros(2, int))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(protocol: int, tmp_path: Path) -> None:
    venv = trained(sb3, "dict", norm_obs_keys=["z"])
    venv.observation_space.seed(0)  # generators go with it
    venv.action_space.seed(0)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(venv, protocol))
    other = own.VecNormalize.load(tmp_path / "a.pkl", dummy("dict"))
    assert_same(statistics(other), statistics(venv))


class Bomb:
    """Does something when it is unpickled."""

    went_off = False

    def __reduce__(self) -> Any:
        return setattr, (Bomb, "went_off", True)


class Subclass(own.VecNormalize):
    """A custom subclass."""


@pytest.mark.parametrize("where", ["itself", "gamma", "within the space"])
@pytest.mark.parametrize("payload", [Bomb, collections.Counter])
def test_a_file_runs_nothing(where: str, payload: Any, tmp_path: Path) -> None:
    venv = trained(own)
    if where == "gamma":
        venv.gamma = payload()
    elif where == "within the space":
        venv.observation_space.low = payload()
    content = payload() if where == "itself" else venv
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="trusted=True|holds a"):
        own.VecNormalize.load(tmp_path / "a.pkl", venv.venv)
    assert not Bomb.went_off


def archive(settings: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, settings=settings)
    return file.getvalue()


DOTTED = b"\x80\x04\x8c\x05numpy\x8c\x0cf2py.os.name\x93."
"""Protocol 4 can name an attribute of an attribute."""


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", EOFError),
        (b"nonsense", pickle.UnpicklingError),
        (DOTTED, pickle.UnpicklingError),
        (pickle.dumps(3), pickle.UnpicklingError),
        (archive(np.array("{}")), KeyError),  # without statistics
        (archive(np.array([Bomb()], dtype=object)), ValueError),
    ],
)
def test_a_file_of_something_else(content: bytes, error: type, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(error):
        own.VecNormalize.load(tmp_path / "a", dummy())
    assert not Bomb.went_off


def test_a_subclass_is_read_when_trusted(tmp_path: Path) -> None:
    venv = Subclass(dummy())
    venv.save(tmp_path / "a.pkl")
    with pytest.raises(pickle.UnpicklingError, match="names .*Subclass.*trusted=True"):
        own.VecNormalize.load(tmp_path / "a.pkl", venv.venv)
    other = own.VecNormalize.load(tmp_path / "a.pkl", venv.venv, trusted=True)
    assert type(other) is Subclass


@pytest.mark.parametrize("suffix", ["pkl", "npz"])
def test_other_observations(suffix: str, tmp_path: Path) -> None:
    venv = trained(own)
    venv.save(tmp_path / f"a.{suffix}")
    for obs in ("image", "dict", "double"):
        other = dummy(obs)
        with pytest.raises(ValueError, match="shape|Dict|Box"):
            own.VecNormalize.load(tmp_path / f"a.{suffix}", other)
        other.close()


def test_copies_and_pickles_have_no_vec_env_yet() -> None:
    venv = trained(own)
    for other in (copy.deepcopy(venv), pickle.loads(pickle.dumps(venv))):
        assert other.venv is None
        with pytest.raises(AttributeError):
            other.reset()
        assert_same(statistics(other), statistics(venv))
        other.set_venv(dummy())
        other.reset()
        with pytest.raises(ValueError, match="there is a VecEnv already"):
            other.set_venv(venv.venv)
        other.close()


def test_running_averages_as_of_old(tmp_path: Path) -> None:
    venv = trained(own, "vectors")
    venv.save_running_average(tmp_path / "averages")
    assert {p.name for p in (tmp_path / "averages").iterdir()} == {"obs_rms.pkl", "ret_rms.pkl"}
    other = own.VecNormalize(dummy("vectors"))
    other.load_running_average(tmp_path / "averages")
    assert_same(statistics(other), statistics(venv))
    # Theirs too, and nothing but statistics of the right shape.
    rms = sb3_rms.RunningMeanStd(shape=())
    rms.update(np.arange(5.0))
    (tmp_path / "averages" / "ret_rms.pkl").write_bytes(pickle.dumps(rms))
    other.load_running_average(tmp_path / "averages")
    assert other.ret_rms.mean == rms.mean
    for wrong in (RunningMeanStd(shape=(2,)), {"a": rms}, 3):
        (tmp_path / "averages" / "ret_rms.pkl").write_bytes(pickle.dumps(wrong))
        with pytest.raises(ValueError, match="ret_rms.pkl has the shapes"):
            other.load_running_average(tmp_path / "averages")
    (tmp_path / "averages" / "ret_rms.pkl").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(pickle.UnpicklingError):
        other.load_running_average(tmp_path / "averages")
    assert not Bomb.went_off


@pytest.mark.parametrize("kwargs", [{}, {"norm_obs": False, "norm_reward": False}])
def test_what_is_returned_is_the_callers_own(kwargs: dict) -> None:
    venv = own.VecNormalize(dummy(), **kwargs)
    with pytest.raises(ValueError, match="nothing was reset or stepped yet"):
        venv.get_original_obs()
    assert venv.get_original_reward().shape == (0,)
    venv.reset()
    obs, rewards, *_ = venv.step(np.zeros(3, int))
    obs[:] = rewards[:] = 77
    venv.get_original_obs()[:] = 77
    assert not (venv.get_original_obs() == 77).any()
    assert not (venv.get_original_reward() == 77).any()


def test_their_spaces_are_left_alone() -> None:
    venv = dummy("dict")
    before = copy.deepcopy(venv.observation_space)
    normalized = own.VecNormalize(venv, norm_obs_keys=["image"], clip_obs=4.0)
    assert venv.observation_space == before
    assert normalized.observation_space["image"].dtype == np.float32
    assert normalized.observation_space["image"].high.max() == 4
    assert list(normalized.observation_space.spaces) == list(before.spaces)


@pytest.mark.parametrize(
    ("obs", "kwargs", "text"),
    [
        ("discrete", {}, r"observation_space is Discrete\(7\): VecNormalize only supports Box"),
        ("dict", {}, r"observation_space\['a'\] is Discrete.*only supports Box"),
        ("dict", {"norm_obs_keys": ["q"]}, r"norm_obs_keys is \['q'\], but the space has"),
        ("box", {"norm_obs_keys": ["z"]}, "is applicable only to a Dict"),
    ],
)
def test_what_can_not_be_normalized(obs: str, kwargs: dict, text: str) -> None:
    venv = dummy(obs)
    with pytest.raises(ValueError, match=text):
        own.VecNormalize(venv, **kwargs)


def test_statistics_are_combined_and_copied() -> None:
    found = []
    for cls in (RunningMeanStd, sb3_rms.RunningMeanStd):
        left, right = cls(shape=(2,)), cls(shape=(2,))
        left.update(np.arange(10.0).reshape(5, 2))
        right.update(np.arange(10.0, 36.0).reshape(13, 2))
        kept = left.copy()
        left.combine(right)
        found.append([(rms.mean, rms.var, rms.count) for rms in (left, kept)])
    assert_same(*found)


@pytest.mark.parametrize("pair", [(own, own), (own, sb3), (sb3, own)])
def test_sync_copies(pair: tuple[Any, Any]) -> None:
    venv, evaluated = (
        package.VecNormalize(package.VecMonitor(package.DummyVecEnv(walkers()))) for package in pair
    )
    venv.reset()
    venv.step(np.zeros(3, int))
    own.sync_envs_normalization(venv, evaluated)
    assert_same(statistics(evaluated), statistics(venv))
    before = copy.deepcopy(statistics(evaluated))
    venv.step(np.zeros(3, int))
    assert_same(statistics(evaluated), before)
    assert statistics(venv)[1][3] > before[1][3]


def test_sync_of_different_stacks() -> None:
    venv, plain = own.VecNormalize(dummy()), dummy()
    monitored = own.VecMonitor(plain)
    for one, other, found in (
        (venv, plain, "missing"),
        (venv, monitored, "VecMonitor"),
        (monitored, plain, "missing"),
    ):
        text = f"wrapper number 1 of eval_env is {found}, but that of env is {type(one).__name__}"
        for error in (ValueError, AssertionError):
            with pytest.raises(error, match=text):
                own.sync_envs_normalization(one, other)
    own.sync_envs_normalization(own.VecMonitor(plain), own.VecMonitor(plain))
