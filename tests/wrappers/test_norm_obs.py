"""Normalised observations against the mean and variance of all rows, computed at once."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.wrappers import RunningMeanStd, VectorEnvNormObs, VectorEnvWrapper
from tests.wrappers.envs import ARRAYS, SPACES, SampleEnv, env_fns

EPS = float(np.finfo(np.float32).eps)
POOLS = {"dummy": DummyVectorEnv, "shmem": ShmemVectorEnv}

#: The leaves that have statistics, by space; the rest passes unchanged.
NORMALISED = {
    **{name: [()] for name in ARRAYS},
    "dict": [("b",), ("a",)],
    "tuple": [(0,), (1,)],
    "nested": [("inner", "x"), ("pair", 0)],
}
UNTOUCHED = {"nested": [("inner", "kind"), ("pair", 1), ("mask",), ("word",)]}


@contextlib.contextmanager
def twins(kind: str, space: str, **options: Any) -> Iterator[tuple[Any, VectorEnvNormObs]]:
    """Two pools with the same envs; the second one normalises."""
    make = POOLS[kind]
    with make(env_fns(space), **options) as plain, make(env_fns(space), **options) as venv:
        yield plain, VectorEnvNormObs(venv)


def leaf(obs: Any, path: tuple) -> Any:
    """Take one leaf out of observations, in whatever form they are."""
    for n, key in enumerate(path):
        if isinstance(obs, np.ndarray):
            return np.array([leaf(row, path[n:]) for row in obs])
        obs = obs[key]
    return obs


class Reference:
    """All rows of one leaf so far."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def normalise(self, batch: np.ndarray) -> np.ndarray:
        self.rows.extend(np.asarray(batch, np.float64))
        mean, var = np.mean(self.rows, axis=0), np.var(self.rows, axis=0)
        return np.clip((np.asarray(batch, np.float64) - mean) / np.sqrt(var + EPS), -10, 10)


def tolerance(dtype: np.dtype) -> dict:
    bits = float(np.finfo(dtype).eps)
    return {"rtol": 2 * bits, "atol": 4 * bits}


# ------------------------------------------------------------------ every space, row by row


@pytest.mark.parametrize(
    ("kind", "space", "columns"),
    [
        *(("dummy", space, False) for space in SPACES),
        *(("dummy", space, True) for space in ("dict", "tuple", "nested")),
        *(("shmem", "nested", columns) for columns in (False, True)),
    ],
)
def test_rows_of_every_space(kind: str, space: str, columns: bool) -> None:
    references = {path: Reference() for path in NORMALISED[space]}
    with twins(kind, space, columns=columns) as (plain, norm):
        for method, *args in [
            ("reset",),
            ("step", [0, 1, 0, 1]),
            ("step", [1, 0], [3, 0]),
            ("reset", [2]),
            ("step", [0, 1, 0, 1]),
        ]:
            seed = {"seed": 5} if method == "reset" else {}
            raw, got = getattr(plain, method)(*args, **seed), getattr(norm, method)(*args, **seed)
            assert type(got[0]) is type(raw[0])
            for path, reference in references.items():
                batch, normed = leaf(raw[0], path), leaf(got[0], path)
                floating = batch.dtype.kind == "f"
                assert normed.dtype == (batch.dtype if floating else np.float64)
                expected = reference.normalise(batch)
                np.testing.assert_allclose(normed, expected, **tolerance(normed.dtype))
            for path in UNTOUCHED.get(space, []):
                np.testing.assert_array_equal(leaf(got[0], path), leaf(raw[0], path))
            for left, right in zip(got[1:], raw[1:], strict=True):
                np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("space", ["float32", "scalar", "nested"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("declared", [False, True])
def test_an_empty_batch(space: str, columns: bool, declared: bool) -> None:
    columns = columns and declared  # without a space there is nothing to make columns of
    with DummyVectorEnv(env_fns(space, declared=declared), columns=columns) as venv:
        norm = VectorEnvNormObs(venv)
        before = learnt(norm)
        raw, obs = venv.drain()[0], norm.drain()[0]
        assert type(obs) is type(raw)
        if declared:
            for path in NORMALISED[space]:
                assert leaf(obs, path).shape == leaf(raw, path).shape
        else:
            assert obs.shape == (0,)
        assert learnt(norm) == before


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("columns", [False, True])
def test_the_space_tells_of_what_comes_out(space: str, columns: bool) -> None:
    with DummyVectorEnv(env_fns(space), columns=columns) as venv:
        norm = VectorEnvNormObs(venv)
        assert norm.observation_space is norm.observation_space
        assert len(norm.observation_space) == 4
        declared = norm.observation_space[0]
        obs, _ = norm.reset(seed=0)
        for path in NORMALISED[space]:
            part, normed = declared, leaf(obs, path)
            for key in path:
                part = part[key]
            assert part == spaces.Box(-10, 10, normed.shape[1:], normed.dtype)
            for row in normed:
                assert part.contains(np.asarray(row))
        assert venv.observation_space[0] == SPACES[space]


# ------------------------------------------- every way out, once: see test_vector.py, and this


def test_the_statistics_are_the_same_in_every_autoreset_mode() -> None:
    found = {}
    for mode in (None, "next_step", "same_step"):
        fns = [functools.partial(SampleEnv, "float32", length=3) for _ in range(2)]
        with DummyVectorEnv(fns, autoreset_mode=mode) as venv:
            norm = VectorEnvNormObs(venv)
            norm.reset(seed=4)
            for _ in range(2):
                for _ in range(3):
                    norm.step([0, 0])
                if mode is None:
                    norm.reset()
                elif mode == "next_step":
                    norm.step([0, 0])
            found[mode] = norm.obs_rms
    for rms in found.values():
        assert rms.count == 2 * 9
        np.testing.assert_allclose(rms.mean, found[None].mean, rtol=1e-13)
        np.testing.assert_allclose(rms.var, found[None].var, rtol=1e-12)


def test_what_the_pool_gave_is_not_written_to() -> None:
    for columns in (False, True):
        with DummyVectorEnv(env_fns("nested"), columns=columns, copy=False) as venv:
            kept = []

            class Keep(VectorEnvWrapper):
                def observations(self, obs: Any) -> Any:
                    kept[:] = [obs, copy.deepcopy(obs)]  # noqa: B023
                    return obs

            VectorEnvNormObs(Keep(venv)).reset(seed=0)
            obs, before = kept
            for path in NORMALISED["nested"] + UNTOUCHED["nested"]:
                np.testing.assert_array_equal(leaf(obs, path), leaf(before, path))


# --------------------------------------------------------------- learning, sharing, leaving out


def test_frozen_statistics() -> None:
    with DummyVectorEnv(env_fns("float32")) as venv:
        norm = VectorEnvNormObs(venv, update_obs_rms=False)
        raw, _ = venv.reset(seed=0)
        obs, _ = norm.reset(seed=0)
        expected = np.clip(raw / np.sqrt(1 + EPS), -10, 10)
        np.testing.assert_allclose(obs, expected, rtol=1e-6)
        assert norm.obs_rms.count == 0
        norm.update_obs_rms = True
        norm.seed(3)
        assert norm.obs_rms.count == 0  # its rows are dropped
        norm.reset(seed=0)
        np.testing.assert_allclose(obs, expected, rtol=1e-6)  # nothing returned changes
        assert norm.obs_rms.count == 4
        norm.update_obs_rms = False
        norm.step([0] * 4)
        assert norm.obs_rms.count == 4


@pytest.mark.parametrize("space", ["float32", "nested"])
def test_two_pools_share_statistics(space: str) -> None:
    with DummyVectorEnv(env_fns(space)) as one, DummyVectorEnv(env_fns(space)) as two:
        train, test = VectorEnvNormObs(one), VectorEnvNormObs(two, update_obs_rms=False)
        test.set_obs_rms(train.get_obs_rms())
        assert test.obs_rms is train.obs_rms
        train.reset(seed=0)
        train.step([0] * 4)
        for path in NORMALISED[space]:
            assert leaf(test.obs_rms, path).count == 8
        train.update_obs_rms = False
        got, expected = test.reset(seed=7)[0], train.reset(seed=7)[0]
        for path in NORMALISED[space]:
            np.testing.assert_array_equal(leaf(got, path), leaf(expected, path))


@pytest.mark.parametrize("clip_max", [2.0, None])
def test_statistics_with_other_limits_may_be_assigned_and_saved(
    clip_max: float | None, tmp_path: Path
) -> None:
    with DummyVectorEnv(env_fns("float32")) as venv:
        norm, other = VectorEnvNormObs(venv), VectorEnvNormObs(venv)
        norm.obs_rms = rms = RunningMeanStd(clip_max=clip_max, epsilon=0.25)
        assert norm.get_obs_rms() is rms
        limit = clip_max or np.inf
        assert norm.observation_space[0] == spaces.Box(-limit, limit, (3,), np.float32)
        norm.save(tmp_path / "s.npz")
        other.load(tmp_path / "s.npz")
        assert (other.obs_rms.clip_max, other.obs_rms.eps) == (clip_max, 0.25)


def test_none_leaves_observations_alone() -> None:
    with DummyVectorEnv(env_fns("dict")) as venv:
        raw, _ = venv.reset(seed=0)
        norm = VectorEnvNormObs(venv)
        norm.set_obs_rms({"a": None, "b": RunningMeanStd()})
        obs, _ = norm.reset(seed=0)
        np.testing.assert_array_equal(leaf(obs, ("a",)), leaf(raw, ("a",)))
        assert leaf(obs, ("a",)).dtype == np.uint8
        assert np.abs(leaf(obs, ("b",))).max() < 2
        assert norm.observation_space[0]["a"] == SPACES["dict"]["a"]
        norm.set_obs_rms(None)
        obs, _ = norm.reset(seed=0)
        np.testing.assert_array_equal(leaf(obs, ("b",)), leaf(raw, ("b",)))
        assert norm.observation_space == venv.observation_space


class NotRms:
    """Not statistics."""


@pytest.mark.parametrize(
    ("space", "obs_rms", "error", "message"),
    [
        (
            "float32",
            {"b": RunningMeanStd()},
            TypeError,
            "obs_rms: got a dict, but the space is Box",
        ),
        (
            "float32",
            NotRms(),
            TypeError,
            "obs_rms: got .*NotRms.*, but it must be a RunningMeanStd",
        ),
        ("float32", RunningMeanStd(np.zeros(4)), ValueError, r"has shape \(4,\), .* has \(3,\)"),
        (
            "dict",
            RunningMeanStd(),
            TypeError,
            "obs_rms: got RunningMeanStd.*, but the space is Dict",
        ),
        ("dict", {"a": None}, ValueError, r"obs_rms: has \['a'\], but the space has"),
        ("dict", {"a": None, "b": 3}, TypeError, r"env 0: obs_rms\['b'\]: got 3, but it must be"),
        ("dict", (None, None), TypeError, "obs_rms: got a tuple, but the space is Dict"),
        ("tuple", (None,), ValueError, r"obs_rms: has \[0\], but the space has \[0, 1\]"),
    ],
)
def test_statistics_that_do_not_fit(
    space: str, obs_rms: Any, error: type[Exception], message: str
) -> None:
    with DummyVectorEnv(env_fns(space)) as venv:
        norm = VectorEnvNormObs(venv)
        before = norm.obs_rms
        with pytest.raises(error, match=message):
            norm.set_obs_rms(obs_rms)
        assert norm.obs_rms is before


# --------------------------------------------------------------------- spaces out of the ordinary


@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Dict({"m": spaces.MultiBinary(2)}), spaces.Sequence(ARRAYS["float32"])],
)
def test_nothing_to_normalise(space: spaces.Space) -> None:
    class Other(SampleEnv):
        def __init__(self) -> None:
            super().__init__("float32")
            self.observation_space = space

    message = r"observation_space: .* has nothing to normalise"
    with DummyVectorEnv([Other]) as venv, pytest.raises(TypeError, match=message):
        VectorEnvNormObs(venv)


def test_keys_keep_their_order() -> None:
    class Ordered(SampleEnv):
        def __init__(self) -> None:
            super().__init__("dict")
            self.space = spaces.Dict([("z", ARRAYS["float32"]), ("a", ARRAYS["scalar"])])
            self.observation_space = self.space

    for columns in (False, True):
        with DummyVectorEnv([Ordered], columns=columns) as venv:
            norm = VectorEnvNormObs(venv)
            norm.set_obs_rms({"a": RunningMeanStd(), "z": RunningMeanStd()})
            obs, _ = norm.reset(seed=0)
            assert list(norm.observation_space[0].spaces) == ["z", "a"]
            assert list(obs if columns else obs[0]) == ["z", "a"]


def test_envs_whose_spaces_are_not_of_one_form() -> None:
    fns = [functools.partial(SampleEnv, space) for space in ("dict", "nested")]
    message = (
        r"env 1: obs_rms: has \['a', 'b'\], but the space has \['inner', 'mask', 'pair', 'word'\]"
    )
    with DummyVectorEnv(fns) as venv, pytest.raises(ValueError, match=message):
        VectorEnvNormObs(venv)


class CustomEnv(SampleEnv):
    """Its space says its shape and dtype alone."""

    def __init__(self) -> None:
        super().__init__("float32")
        self.observation_space = spaces.Space((3,), np.float32)


def test_custom_and_undeclared_spaces_of_arrays() -> None:
    with DummyVectorEnv([CustomEnv] * 2) as venv:
        norm = VectorEnvNormObs(venv)
        raw, obs = venv.reset(seed=0)[0], norm.reset(seed=0)[0]
        np.testing.assert_allclose(obs, Reference().normalise(raw), **tolerance(np.float32))
        assert norm.observation_space == [spaces.Box(-10, 10, (3,), np.float32)] * 2
    with DummyVectorEnv(env_fns("float32", declared=False)) as venv:
        norm = VectorEnvNormObs(venv)
        raw, obs = venv.reset(seed=0)[0], norm.reset(seed=0)[0]
        np.testing.assert_allclose(obs, Reference().normalise(raw), **tolerance(np.float32))
        assert norm.observation_space == [None] * 4
        norm.set_obs_rms({"a": RunningMeanStd()})
        with pytest.raises(TypeError, match=r"obs: got a ndarray, but obs_rms has \['a'\]"):
            norm.reset()


def test_an_undeclared_space_of_dicts() -> None:
    with DummyVectorEnv(env_fns("dict", declared=False)) as venv:
        norm = VectorEnvNormObs(venv)
        with pytest.raises(
            TypeError, match=r"obs: got a dict, .* declare an observation_space, or give"
        ):
            norm.reset(seed=0)
        norm.set_obs_rms({"b": RunningMeanStd(), "a": None})
        raw, _ = venv.reset(seed=0)
        obs, _ = norm.reset(seed=0)
        expected = Reference().normalise(leaf(raw, ("b",)))
        np.testing.assert_allclose(leaf(obs, ("b",)), expected, **tolerance(np.float32))
        norm.set_obs_rms({"b": RunningMeanStd()})
        with pytest.raises(ValueError, match=r"obs: has \['a', 'b'\], but obs_rms has \['b'\]"):
            norm.reset(seed=0)


# ------------------------------------------------------------------------------ the file


def learnt(norm: VectorEnvNormObs) -> list[tuple]:
    """All numbers of the statistics."""
    parts, found = [norm.obs_rms], []
    while parts:
        part = parts.pop()
        if isinstance(part, RunningMeanStd):
            found.append(
                (part.mean.tolist(), part.var.tolist(), part.count, part.clip_max, part.eps)
            )
        elif part is not None:
            parts += part.values() if isinstance(part, dict) else part
    return found


@pytest.mark.parametrize("space", ["float32", "scalar", "dict", "tuple", "nested"])
def test_save_and_load(space: str, tmp_path: Path) -> None:
    path = tmp_path / "statistics"  # as it stands: no .npz is added
    with DummyVectorEnv(env_fns(space)) as venv:
        norm, other = VectorEnvNormObs(venv), VectorEnvNormObs(venv)
        norm.reset(seed=0)
        norm.step([0] * 4)
        norm.save(path)
        assert [entry.name for entry in tmp_path.iterdir()] == ["statistics"]
        shared = other.get_obs_rms()
        other.load(str(path))
        assert other.get_obs_rms() is shared
        assert learnt(other) == learnt(norm)
        norm.update_obs_rms = other.update_obs_rms = False
        got, expected = other.reset(seed=3)[0], norm.reset(seed=3)[0]
        for leaf_path in NORMALISED[space]:
            np.testing.assert_array_equal(leaf(got, leaf_path), leaf(expected, leaf_path))


def test_the_file_is_plain_arrays(tmp_path: Path) -> None:
    path = tmp_path / "statistics.npz"
    with DummyVectorEnv(env_fns("nested")) as venv:
        norm = VectorEnvNormObs(venv)
        norm.reset(seed=0)
        norm.save(path)
    with np.load(path, allow_pickle=False) as file:
        assert json.loads(str(file["paths"])) == [["inner", "x"], ["pair", 0]]
        np.testing.assert_array_equal(file["mean_1"], norm.obs_rms["pair"][0].mean)
        assert file["count_0"] == 4
        assert all(file[name].dtype != object for name in file.files)


def test_saving_again_replaces_the_file_and_a_failure_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.npz"
    with DummyVectorEnv(env_fns("float32")) as venv:
        norm = VectorEnvNormObs(venv)
        norm.save(path)
        norm.reset(seed=0)
        norm.save(path)
        good = path.read_bytes()

        def full(file: Any, **_: Any) -> None:
            file.write(b"half")
            message = "no space left"
            raise OSError(message)

        monkeypatch.setattr(np, "savez", full)
        with pytest.raises(OSError, match="no space left"):
            norm.save(path)
        assert path.read_bytes() == good
        assert [entry.name for entry in tmp_path.iterdir()] == ["s.npz"]


def other_space(path: Path) -> None:
    with DummyVectorEnv(env_fns("dict")) as venv:
        VectorEnvNormObs(venv).save(path)


def other_shape(path: Path) -> None:
    with DummyVectorEnv(env_fns("float64")) as venv:
        norm = VectorEnvNormObs(venv)
        norm.reset(seed=0)
        norm.save(path)


def uneven(path: Path) -> None:
    paths = np.array("[[]]")
    np.savez(path, paths=paths, mean_0=np.zeros(3), var_0=1.0, count_0=1, clip_max_0=1, eps_0=1)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BAD_FILES = {
    "text": (lambda path: path.write_text("mean=3"), "is no file that VectorEnvNormObs.save wrote"),
    "empty": (lambda path: path.touch(), "is no file that VectorEnvNormObs.save wrote"),
    "zip": (lambda path: zipfile.ZipFile(path, "w").close(), "is no file that"),
    "array": (lambda path: path.write_bytes(npy(np.ones(3))), "is no file that"),
    "other-npz": (lambda path: np.savez(path, x=np.ones(3)), "is no file that"),
    "pickle": (lambda path: np.savez(path, paths=np.array([print], object)), "is no file that"),
    "uneven": (uneven, "is no file that"),
    "space": (other_space, r"has statistics at .*'b'.*, but obs_rms has them at \['\(\)'\]"),
    "shape": (other_shape, r"has shape \(2, 2\), but the space has \(3,\)"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_wrong_file_leaves_the_statistics_as_they_were(name: str, tmp_path: Path) -> None:
    write, message = BAD_FILES[name]
    path = tmp_path / "s.npz"
    write(path)
    with DummyVectorEnv(env_fns("float32")) as venv:
        norm = VectorEnvNormObs(venv)
        norm.reset(seed=0)
        before = learnt(norm)
        with pytest.raises(ValueError, match=f"{path}: {message}"):
            norm.load(path)
        assert learnt(norm) == before


def test_a_missing_file(tmp_path: Path) -> None:
    with DummyVectorEnv(env_fns("float32")) as venv:
        norm = VectorEnvNormObs(venv)
        with pytest.raises(FileNotFoundError):
            norm.load(tmp_path / "none.npz")
        with pytest.raises(FileNotFoundError):
            norm.save(tmp_path / "no" / "such.npz")


class Foreign:
    """A vector env of another library, as EnvPool's: one space, and infos in a dict of arrays."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)
    config = "of its own"

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 3

    def _rows(self, id: Any) -> tuple:  # noqa: A002
        ids = np.arange(3) if id is None else np.asarray(id)
        obs = self.rng.normal(2, 3, (len(ids), 2)).astype(np.float32)
        return obs, ids, {"env_id": ids, "final_obs": obs}

    def reset(self, id: Any = None) -> tuple:  # noqa: A002
        obs, _, infos = self._rows(id)
        return obs, infos

    def step(self, action: Any, id: Any = None) -> tuple:  # noqa: A002
        obs, ids, infos = self._rows(id)
        return obs, np.zeros(len(ids)), np.zeros(len(ids), bool), np.asarray(action) > 9, infos


def test_a_vector_env_of_another_library() -> None:
    """Finding 22: anything with the methods that it needs."""
    norm, reference, plain = VectorEnvNormObs(Foreign()), Reference(), Foreign()
    assert norm.observation_space == spaces.Box(-10, 10, (2,), np.float32)
    assert (len(norm), norm.config) == (3, "of its own")
    for k in range(4):
        ids = None if k % 2 else [0, 2]
        batch, other = (
            (env.step(np.zeros(3), id=ids) if k else env.reset(id=ids)) for env in (norm, plain)
        )
        expected = reference.normalise(other[0])
        np.testing.assert_allclose(batch[0], expected, **tolerance(np.dtype(np.float32)))
        assert batch[-1].keys() == {"env_id", "final_obs"}
    test = VectorEnvNormObs(Foreign(), update_obs_rms=False)
    test.set_obs_rms(norm.get_obs_rms())
    assert test.obs_rms is norm.obs_rms


@pytest.mark.parametrize("venv", [None, [lambda: None], "CartPole-v1"])
def test_an_object_that_is_no_vector_env(venv: Any) -> None:
    with pytest.raises(TypeError, match="venv: got .*, which has no reset, step"):
        VectorEnvNormObs(venv)
