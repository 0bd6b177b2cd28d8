"""VecNormalize: what it keeps, saves and loads."""

import collections
import copy
import io
import pickle

import numpy as np
import pytest
import stable_baselines3.common.running_mean_std as sb3_rms
import stable_baselines3.common.vec_env as sb3

import envpool_py.sb3 as own
from envpool_py.sb3.common import running_mean_std
from tests.sb3.envs import walkers
from tests.sb3.reference import assert_same


def dummy(obs="box", n=3):
    return own.DummyVecEnv(walkers(n, obs=obs))


def trained(package, obs="box", **kwargs):
    """A VecNormalize that has seen some steps."""
    venv = package.VecNormalize(package.DummyVecEnv(walkers(obs=obs)), **kwargs)
    venv.seed(0)
    venv.reset()
    for _ in range(30):
        venv.step(np.zeros(3, int))
    return venv


NAMES = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon")
NAMES += ("norm_obs_keys", "obs_rms", "ret_rms", "observation_space")


def kept(venv):
    """Settings and statistics."""
    return {name: getattr(venv, name) for name in NAMES if hasattr(venv, name)}


@pytest.mark.parametrize(
    ("obs", "kwargs"),
    [
        ("box", {"gamma": 0.9, "training": False}),
        ("dict", {"norm_obs_keys": ["z", "image"], "clip_obs": 3.0}),
        ("image", {"norm_reward": False}),
        ("discrete", {"norm_obs": False, "clip_reward": 2.0, "epsilon": 1e-3}),
    ],
)
@pytest.mark.parametrize(
    ("writer", "reader", "name"),
    [(own, own, "a.pkl"), (own, own, "a.npz"), (sb3, own, "a.pkl"), (own, sb3, "a.pkl")],
)
def test_a_round_trip(obs, kwargs, writer, reader, name, tmp_path):
    path = str(tmp_path / name)
    venv = trained(writer, obs, **kwargs)
    venv.save(path)
    other = reader.VecNormalize.load(path, dummy(obs, n=2))
    assert_same(kept(other), kept(venv))
    assert other.num_envs == 2
    other.training = False
    other.reset()
    original = other.get_original_obs()
    assert_same(other.normalize_obs(original), venv.normalize_obs(original))
    other.step(np.zeros(2, int))
    for wrong in ("image", "dict", "double") if obs == "box" and reader is own else ():
        with pytest.raises(ValueError, match="shape|statistics|Box"):
            own.VecNormalize.load(path, dummy(wrong))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(protocol, tmp_path):
    venv = trained(sb3, "dict", norm_obs_keys=["z"])
    venv.observation_space.seed(0)  # generators go with it
    venv.action_space.seed(0)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(venv, protocol))
    assert_same(kept(own.VecNormalize.load(tmp_path / "a.pkl", dummy("dict"))), kept(venv))


class Bomb:
    """Does something when it is unpickled."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


class Subclass(own.VecNormalize):
    """A custom subclass."""


def archive(settings):
    file = io.BytesIO()
    np.savez(file, settings=settings)
    return file.getvalue()


def test_a_file_of_something_else_runs_nothing(tmp_path):
    venv, path, refused = own.VecNormalize(dummy()), tmp_path / "a.pkl", pickle.UnpicklingError
    # Protocol 4 can name an attribute of an attribute.
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0cf2py.os.name\x93."
    contents = [b"nonsense", dotted, pickle.dumps(3)]
    for payload in (Bomb(), collections.Counter()):
        contents.append(pickle.dumps(payload))
        for owner, name in ((venv, "gamma"), (venv.observation_space, "low")):
            setattr(owner, name, payload)
            contents.append(pickle.dumps(owner))
    files = [(content, refused) for content in contents]
    files += [(b"", EOFError), (archive(np.array("{}")), ValueError)]  # without statistics
    for content, error in (*files, (archive(np.array([Bomb()], dtype=object)), ValueError)):
        path.write_bytes(content)
        with pytest.raises(error):
            own.VecNormalize.load(path, dummy())
    assert not Bomb.went_off
    Subclass(dummy()).save(path)
    with pytest.raises(refused, match="names .*Subclass.*trusted=True"):
        own.VecNormalize.load(path, dummy())
    assert type(own.VecNormalize.load(path, dummy(), trusted=True)) is Subclass


def test_copies_and_pickles_have_no_vec_env_yet():
    venv = trained(own)
    for other in (copy.deepcopy(venv), pickle.loads(pickle.dumps(venv))):
        assert other.venv is None
        with pytest.raises(AttributeError):
            other.reset()
        assert_same(kept(other), kept(venv))
        other.set_venv(dummy())
        other.reset()
        with pytest.raises(ValueError, match="there is a VecEnv already"):
            other.set_venv(venv.venv)


def combined(package):
    """Statistics that were updated and combined, and a copy from before."""
    left, right = package.RunningMeanStd(shape=(2,)), package.RunningMeanStd(shape=(2,))
    left.update(np.arange(10.0).reshape(5, 2))
    right.update(np.arange(10.0, 36.0).reshape(13, 2))
    copied = left.copy()
    left.combine(right)
    return [left, copied]


def test_running_averages(tmp_path):
    assert_same(combined(running_mean_std), combined(sb3_rms))
    folder = tmp_path / "averages"
    venv, other = trained(own, "vectors"), own.VecNormalize(dummy("vectors"))
    venv.save_running_average(folder)
    assert {path.name for path in folder.iterdir()} == {"obs_rms.pkl", "ret_rms.pkl"}
    other.load_running_average(folder)
    assert_same(kept(other), kept(venv))
    # Theirs too, and nothing but statistics of the right shape.
    path = folder / "ret_rms.pkl"
    path.write_bytes(pickle.dumps(sb3_rms.RunningMeanStd(3.0)))
    other.load_running_average(folder)
    assert other.ret_rms.count == 3.0
    for value in (sb3_rms.RunningMeanStd(shape=(2,)), {"a": other.ret_rms}, 3, Bomb()):
        path.write_bytes(pickle.dumps(value))
        error = pickle.UnpicklingError if isinstance(value, Bomb) else ValueError
        with pytest.raises(error, match=r"ret_rms.pkl has the shapes|trusted"):
            other.load_running_average(folder)
    assert not Bomb.went_off


@pytest.mark.parametrize("kwargs", [{}, {"norm_obs": False, "norm_reward": False}])
def test_what_is_returned_is_the_callers_own(kwargs):
    inner = dummy("dict")
    before = copy.deepcopy(inner.observation_space)
    venv = own.VecNormalize(inner, norm_obs_keys=["z"], **kwargs)
    with pytest.raises(ValueError, match="nothing was reset or stepped yet"):
        venv.get_original_obs()
    assert venv.get_original_reward().shape == (0,)
    venv.reset()
    obs, rewards, *_ = venv.step(np.zeros(3, int))
    for array in (obs["z"], obs["a"], rewards, venv.get_original_obs()["z"]):
        array[:] = 77
    assert not (venv.get_original_obs()["z"] == 77).any()
    assert not (venv.get_original_obs()["a"] == 77).any()
    assert not (venv.get_original_reward() == 77).any()
    assert inner.observation_space == before


@pytest.mark.parametrize("pair", [(own, own), (own, sb3), (sb3, own)])
def test_sync(pair):
    venv, evaluated = (
        package.VecNormalize(package.VecMonitor(package.DummyVecEnv(walkers()))) for package in pair
    )
    venv.reset()
    own.sync_envs_normalization(venv, evaluated)
    before = copy.deepcopy([venv.obs_rms, venv.ret_rms])
    venv.step(np.zeros(3, int))
    assert_same([evaluated.obs_rms, evaluated.ret_rms], before)
    assert venv.obs_rms.count > before[0].count
    plain, monitored = evaluated.unwrapped, evaluated.venv
    own.sync_envs_normalization(monitored, own.VecMonitor(plain))
    for one, other, found in (
        (venv, plain, "missing"),
        (venv, monitored, "VecMonitor"),
        (monitored, plain, "missing"),
    ):
        text = f"wrapper number 1 of eval_env is {found}, but that of env is {type(one).__name__}"
        for error in (ValueError, AssertionError):
            with pytest.raises(error, match=text):
                own.sync_envs_normalization(one, other)
