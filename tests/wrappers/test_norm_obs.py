"""Normalised observations against the mean and variance of all rows, computed at once."""

import collections
import copy
import io
import os
import zipfile
from operator import methodcaller

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.wrappers import RunningMeanStd, VectorEnvNormObs
from tests.support import envs
from tests.support.reference import same
from tests.wrappers.envs import env_fns

EPS = float(np.finfo(np.float32).eps)
BOX = spaces.Box(-10, 10, (2, 3), np.float32)
FLAT = tuple(f"box-{dtype}" for dtype in ("float16", "float32", "float64", "uint8", "bool"))
FLAT += ("box-scalar", "discrete-start", "multi-binary")
TREES = ("dict", "tuple", "nested", "mixed")


@pytest.fixture
def venv():
    with DummyVectorEnv(env_fns("float32")) as pool:
        yield pool


def leaves(space, batch):
    """Yield each leaf of a space with its column of a batch, in whatever form that is."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        is_dict = isinstance(space, spaces.Dict)
        for key, part in space.items() if is_dict else enumerate(space):
            in_rows = isinstance(batch, (np.ndarray, list))
            yield from leaves(part, [row[key] for row in batch] if in_rows else batch[key])
    else:
        yield space, list(batch) if space.shape is None else np.array(batch)


def check(rows, normed, batch):
    """Assert that a batch of one leaf is normalised by all rows so far; append it to `rows`."""
    rows.extend(np.asarray(batch, np.float64))
    mean, var = np.mean(rows, axis=0), np.var(rows, axis=0)
    expected = np.clip((np.asarray(batch, np.float64) - mean) / np.sqrt(var + EPS), -10, 10)
    assert normed.dtype == (batch.dtype if batch.dtype.kind == "f" else np.float64)
    bits = float(np.finfo(normed.dtype).eps)
    np.testing.assert_allclose(normed, expected, rtol=2 * bits, atol=4 * bits)


@pytest.mark.parametrize(
    ("kind", "name", "columns"),
    [
        *((DummyVectorEnv, name, False) for name in FLAT + TREES),
        *((DummyVectorEnv, name, True) for name in TREES),
        (ShmemVectorEnv, "nested", False),
    ],
)
def test_rows_and_spaces_of_every_space(kind, name, columns):
    fns, space, rows = env_fns(name), envs.SPACES[name](), collections.defaultdict(list)
    with kind(fns, columns=columns) as plain, kind(fns, columns=columns, copy=False) as pool:
        norm = VectorEnvNormObs(pool)
        for call in (
            methodcaller("reset", seed=0),
            methodcaller("step", [0, 1, 0, 1]),
            methodcaller("step", [1, 0], [3, 0]),
            methodcaller("reset", [2]),
            methodcaller("drain"),  # nothing
            methodcaller("step", [0, 1, 0, 1]),
        ):
            raw, got = call(plain)[0], call(norm)[0]
            assert type(got) is type(raw)
            pairs = zip(leaves(space, raw), leaves(norm.observation_space[0], got), strict=True)
            for n, ((part, batch), (ours, normed)) in enumerate(pairs):
                if part is not space and not isinstance(part, spaces.Box):
                    assert (part, same(normed, batch)) == (ours, True)
                elif len(batch):
                    check(rows[n], normed, batch)
                    assert ours == spaces.Box(-10, 10, part.shape, normed.dtype)


def test_two_pools_share_statistics_that_one_or_none_updates():
    with DummyVectorEnv(env_fns("nested")) as one, DummyVectorEnv(env_fns("nested")) as two:
        train, test = VectorEnvNormObs(one), VectorEnvNormObs(two, update_obs_rms=False)
        test.set_obs_rms(train.get_obs_rms())
        assert test.obs_rms is train.obs_rms
        train.seed(3)  # its observations are dropped, and do not count
        train.reset(seed=0)
        train.step([0] * 4)
        train.update_obs_rms = False
        got, expected = test.reset(seed=7)[0], train.reset(seed=7)[0]
        assert same(got, expected)
        assert train.obs_rms["c"]["speed"].count == 8
        test.update_obs_rms = True
        test.step([0] * 4)
        assert train.obs_rms["c"]["speed"].count == 12
        assert same(got, expected)  # nothing returned changes


def test_none_leaves_observations_alone():
    with DummyVectorEnv(env_fns("dict")) as pool:
        norm = VectorEnvNormObs(pool)
        norm.set_obs_rms({"speed": RunningMeanStd(), "image": None})
        (raw, *_), (obs, *_) = pool.reset(seed=0)[0], norm.reset(seed=0)[0]
        assert list(obs) == list(norm.observation_space[0].spaces) == ["image", "speed"]
        assert same(obs["image"], raw["image"])
        assert np.abs(obs["speed"]).max() < 2
        assert norm.observation_space[0]["image"] == pool.observation_space[0]["image"]
        norm.set_obs_rms(None)
        assert same(norm.reset(seed=0)[0], pool.reset(seed=0)[0])
        assert norm.observation_space == pool.observation_space
        with pytest.raises(ValueError, match=r"obs_rms: has \['image'\], but the space has"):
            norm.set_obs_rms({"image": None})
        assert norm.obs_rms is None


@pytest.mark.parametrize("columns", [False, True])
def test_none_leaves_a_part_of_nested_observations_alone(columns):
    with DummyVectorEnv(env_fns("nested"), columns=columns) as pool:
        norm = VectorEnvNormObs(pool)
        norm.set_obs_rms({**norm.obs_rms, "c": None})
        raw, obs = pool.reset(seed=0)[0], norm.reset(seed=0)[0]
        inner = [each["c"] if columns else [row["c"] for row in each] for each in (raw, obs)]
        assert same(*inner)
        assert norm.observation_space[0]["c"] == pool.observation_space[0]["c"]


NOTHING = "observation_space: .* has nothing to normalise"
NO_BOX = spaces.Dict({"m": spaces.MultiBinary(2)})
KEYS = r"env 1: obs_rms: has \['image', 'speed'\], but the space has \['a', 'b', 'c'\]"
RMS = RunningMeanStd()
NUMBER = r"env 0: obs_rms\['speed'\]: got 3, but it must be a RunningMeanStd"
# Env_fns, the statistics that are set, and the error.
WRONG = [
    (env_fns("float32"), {"b": None}, TypeError, "obs_rms: got a dict, but the space is Box"),
    (env_fns("dict"), RMS, TypeError, "got RunningMeanStd.*, but the space is Dict"),
    (env_fns("dict"), {"image": None, "speed": 3}, TypeError, NUMBER),
    (env_fns("tuple"), (None,), ValueError, r"obs_rms: has \[0\], but the space has \[0, 1, 2\]"),
    (env_fns("float32", declared=spaces.Text(3)), None, TypeError, NOTHING),
    (env_fns("dict", declared=NO_BOX), None, TypeError, NOTHING),
    ([*env_fns("dict", 1), *env_fns("nested", 1)], None, ValueError, KEYS),
    # Envs that declare no space: what they observe does not fit.
    (env_fns("dict", declared=None), RMS, TypeError, "got a dict, .* declare an observation_space"),
    (env_fns("dict", declared=None), {"speed": None}, ValueError, r"but obs_rms has \['speed'\]"),
    (env_fns("float32", declared=None), {"a": RMS}, TypeError, r"a ndarray, but obs_rms has \['a"),
]


@pytest.mark.parametrize(("fns", "obs_rms", "error", "message"), WRONG)
def test_what_does_not_fit(fns, obs_rms, error, message):
    def normalise():
        norm = VectorEnvNormObs(pool)
        norm.set_obs_rms(obs_rms)
        norm.reset()

    with DummyVectorEnv(fns) as pool, pytest.raises(error, match=message):
        normalise()


def test_custom_and_undeclared_spaces():
    for declared, normalised in ((spaces.Space((2, 3), np.float32), BOX), (None, None)):
        with DummyVectorEnv(env_fns("float32", declared=declared)) as pool:
            norm = VectorEnvNormObs(pool)
            check([], norm.reset(seed=0)[0], pool.reset(seed=0)[0])
            assert norm.observation_space == [normalised] * 4
            assert norm.drain()[0].shape == pool.drain()[0].shape
    with DummyVectorEnv(env_fns("dict", declared=None)) as pool:
        norm = VectorEnvNormObs(pool)
        norm.set_obs_rms({"speed": RunningMeanStd(), "image": None})
        assert np.abs(norm.reset()[0][0]["speed"]).max() < 2


SAVED = [("float32", 2.0), ("float32", None), ("box-scalar", 10.0), ("nested", 10.0)]


@pytest.mark.parametrize(("space", "clip_max"), SAVED)
def test_save_and_load(space, clip_max, tmp_path):
    path = tmp_path / "statistics"  # no .npz is added
    with DummyVectorEnv(env_fns(space)) as pool:
        norm, other = VectorEnvNormObs(pool), VectorEnvNormObs(pool)
        if space == "float32":
            norm.obs_rms = RunningMeanStd(clip_max=clip_max, epsilon=0.25)
            limit = clip_max or np.inf
            assert norm.observation_space[0] == spaces.Box(-limit, limit, (2, 3), np.float32)
        norm.reset(seed=0)
        norm.step([0] * 4)
        norm.save(path)
        assert [entry.name for entry in tmp_path.iterdir()] == ["statistics"]
        shared = other.get_obs_rms()
        other.load(str(path))
        assert other.get_obs_rms() is shared
        with np.load(path, allow_pickle=False) as file:
            assert all(array.dtype != object for array in file.values())
        for seed in (1, 2):  # both continue from there
            assert same(other.reset(seed=seed)[0], norm.reset(seed=seed)[0])


def test_saving_again_replaces_the_file_and_a_failure_leaves_it(tmp_path, monkeypatch, venv):
    path = tmp_path / "s.npz"
    path.write_text("older")
    norm = VectorEnvNormObs(venv)
    norm.save(path)
    good = path.read_bytes()
    norm.load(path)

    def full(file, **_):
        file.write(b"half")
        message = "no space left"
        raise OSError(message)

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space left"):
        norm.save(path)
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.npz"]
    with pytest.raises(FileNotFoundError):
        norm.load(tmp_path / "none.npz")


def saved(space, path):
    with DummyVectorEnv(env_fns(space)) as pool:
        norm = VectorEnvNormObs(pool)
        norm.reset(seed=0)
        norm.save(path)


def npy(value):
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def damaged(path, **parts):
    """Write a file of statistics, with these bytes in the places of some arrays."""
    whole = {name: npy(value) for name, value in {"mean_0": 1.0, **FIELDS}.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**whole, **parts}.items():
            archive.writestr(f"{name}.npy", data)


LARGE = npy(np.zeros(1)).replace(b"(1,), }" + b" " * 10, b"(10000000000,), }")
FIELDS = {"paths": "[[]]", "var_0": 1.0, "count_0": 1, "clip_max_0": 1, "eps_0": 1}
NO_FILE = "is no file that VectorEnvNormObs.save wrote"
OTHER_SPACE = r"has statistics at .*speed.*, but obs_rms has them at \['\(\)'\]"
BAD_FILES = [
    (lambda path: path.write_text("mean=3"), NO_FILE),
    (lambda path: path.touch(), NO_FILE),
    (lambda path: zipfile.ZipFile(path, "w").close(), NO_FILE),
    (lambda path: np.savez(path, x=np.ones(3)), NO_FILE),
    (lambda path: np.savez(path, paths=np.array([print], object)), NO_FILE),
    (lambda path: np.savez(path, mean_0=np.zeros((2, 3)), **FIELDS), NO_FILE),
    (lambda path: damaged(path, eps_0=npy(1e-8 + 0j)), f"{NO_FILE}: .*epsilon: got dtype complex"),
    (lambda path: damaged(path, mean_0=LARGE), f"{NO_FILE}: .*mean_0: needs"),
    (lambda path: damaged(path, paths=npy("[" * 100_000)), f"{NO_FILE}: RecursionError"),
    (os.mkfifo, f"{NO_FILE}: .*not a regular file"),
    (lambda path: saved("dict", path), OTHER_SPACE),
    (lambda path: saved("multi-binary", path), r"has shape \(4,\), .* has \(2, 3\)"),
]


@pytest.mark.parametrize(("write", "message"), BAD_FILES)
def test_a_wrong_file_leaves_the_statistics_unchanged(write, message, venv, tmp_path):
    path = tmp_path / "s.npz"
    write(path)
    norm = VectorEnvNormObs(venv)
    norm.reset(seed=0)
    before = copy.deepcopy(vars(norm.obs_rms))
    with pytest.raises(ValueError, match=f"{path}: {message}"):
        norm.load(path)
    assert same(vars(norm.obs_rms), before)


class Foreign:
    """A vector env of another library, as EnvPool's: one space, and infos in a dict of arrays."""

    config = "of its own"

    def __init__(self, pool):
        self.pool, self.observation_space = pool, pool.observation_space[0]

    def reset(self, id=None):  # noqa: A002
        obs, _ = self.pool.reset(id)
        return obs, {"final_obs": obs}

    def step(self, action, id=None):  # noqa: A002
        *row, _ = self.pool.step(action, id)
        return *row, {"final_obs": row[0]}


def test_a_vector_env_of_another_library(venv):
    norm, rows = VectorEnvNormObs(Foreign(venv)), []
    assert norm.observation_space == BOX
    assert norm.config == "of its own"
    for call in (methodcaller("reset"), methodcaller("step", [0, 0], [0, 2])):
        venv.seed(1)
        obs, *_, infos = call(norm)
        assert infos.keys() == {"final_obs"}
        venv.seed(1)
        check(rows, obs, call(venv)[0])
    with pytest.raises(TypeError, match="venv: got .*, which has no reset, step"):
        VectorEnvNormObs("CartPole-v1")
