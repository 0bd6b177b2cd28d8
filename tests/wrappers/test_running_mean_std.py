"""The statistics against references that know all the data at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envpool_py.wrappers import RunningMeanStd

EPS = float(np.finfo(np.float32).eps)


def after(*batches: object, **options: object) -> RunningMeanStd:
    """Return statistics that were updated with these batches."""
    rms = RunningMeanStd(**options)
    for batch in batches:
        rms.update(batch)
    return rms


def test_a_million_samples_against_one_pass() -> None:
    # The spread is a ten-thousandth of the mean: a naive sum of squares loses half its digits.
    center, chunk, chunks = 12345.0, 5000, 200
    rng = np.random.default_rng(0)
    rms = RunningMeanStd()
    sums, squares = [], []
    for _ in range(chunks):
        data = rng.normal(center, 1.25, chunk)
        for part in np.split(data, [1, 65, 2000]):  # batches of very unequal size
            rms.update(part)
        # The reference: one pass in float64 over the distances from a point that is known.
        distance = data - center
        sums.append(distance.sum())
        squares.append(np.square(distance).sum())
    count = chunk * chunks
    offset = math.fsum(sums) / count
    assert rms.count == count
    np.testing.assert_allclose(rms.mean, center + offset, rtol=1e-13)
    np.testing.assert_allclose(rms.var, math.fsum(squares) / count - offset**2, rtol=1e-10)


@given(
    values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_the_cut_into_batches_does_not_matter(values: list[int], cuts: list[int]) -> None:
    data = np.array(values, dtype=np.float64)
    rms = after(*np.split(data, sorted(cuts)))
    assert rms.count == len(data)
    np.testing.assert_allclose(rms.mean, data.mean(), rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(rms.var, data.var(), rtol=1e-12, atol=1e-9)


def test_by_hand() -> None:
    rms = after([[1.0, 10.0], [3.0, 10.0]], [[8.0, 10.0]])
    assert rms.count == 3
    np.testing.assert_array_equal(rms.mean, [4.0, 10.0])
    np.testing.assert_allclose(rms.var, [(9 + 1 + 16) / 3, 0.0], rtol=1e-15)
    expected = [(8 - 4) / np.sqrt(26 / 3 + EPS), 0.0]
    np.testing.assert_allclose(rms.norm([8.0, 10.0]), expected, rtol=1e-15)
    assert rms.norm([4.0, 10.5])[1] == 10.0  # 0.5 / sqrt(eps), cut off
    assert rms.norm([4.0, 9.5])[1] == -10.0
    data = np.arange(24.0).reshape(3, 4, 2)  # any axes before those of a row
    assert rms.norm(data).shape == data.shape
    np.testing.assert_array_equal(rms.norm(data)[2, 3], rms.norm(data[2, 3]))
    assert repr(rms) == "RunningMeanStd(shape=(2,), count=3)"


def test_defaults() -> None:
    rms = RunningMeanStd()
    assert (rms.mean, rms.var, rms.count, rms.clip_max, rms.eps) == (0.0, 1.0, 0, 10.0, EPS)
    assert rms.mean.dtype == rms.var.dtype == np.float64
    assert rms.norm(2.0) == 2.0 / np.sqrt(1 + EPS)
    for clip_max in (None, 0):
        assert RunningMeanStd(clip_max=clip_max, epsilon=0.0).norm(1e6) == 1e6


def test_the_initial_values_serve_until_the_first_update() -> None:
    rms = RunningMeanStd(mean=[1.0, 2.0], std=3.0, epsilon=0.0)
    np.testing.assert_array_equal(rms.norm([7.0, -1.0]), [2.0, -1.0])
    with pytest.raises(ValueError, match=r"rows have shape \(3,\), but the statistics have \(2,\)"):
        rms.update(np.ones((4, 3)))
    rms.update([[5.0, 5.0], [7.0, 9.0]])
    np.testing.assert_array_equal(rms.mean, [6.0, 7.0])
    np.testing.assert_array_equal(rms.var, [1.0, 4.0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.bool_])
def test_norm_keeps_a_floating_dtype_and_makes_float64_of_others(dtype: type) -> None:
    data = np.array([[0, 1], [1, 1]], dtype)
    rms = after(data)
    assert rms.mean.dtype == rms.var.dtype == np.float64
    normed = rms.norm(data)
    assert normed.dtype == (dtype if np.dtype(dtype).kind == "f" else np.float64)
    expected = np.array([-0.5, 0.5]) / np.sqrt(0.25 + EPS)
    np.testing.assert_allclose(normed[:, 0], expected, rtol=np.finfo(normed.dtype).eps)


def test_rows_of_small_dtypes_are_summed_in_float64() -> None:
    rms = after(np.full((300, 2), 255, np.uint8), np.zeros((300, 2), np.uint8))
    np.testing.assert_array_equal(rms.mean, [127.5, 127.5])
    np.testing.assert_array_equal(rms.var, [127.5**2, 127.5**2])
    data = (5000 + np.random.default_rng(0).normal(size=(2000, 2))).astype(np.float32)
    rms = after(*np.split(data, 20))
    np.testing.assert_allclose(rms.var, data.astype(np.float64).var(axis=0), rtol=1e-10)


def test_neither_argument_nor_result_is_shared() -> None:
    mean, data = np.zeros(2), np.ones((1, 2))
    rms = RunningMeanStd(mean=mean, clip_max=None)
    assert not np.shares_memory(rms.mean, mean)
    normed = rms.norm(data)
    rms.update(data)
    normed[:] = 7
    np.testing.assert_array_equal(mean, [0.0, 0.0])
    np.testing.assert_array_equal(data, [[1.0, 1.0]])


def test_an_empty_batch_changes_nothing() -> None:
    rms = after(np.empty((0, 3)))
    assert (rms.count, rms.mean.shape) == (0, ())
    rms.update(np.ones((2, 3)))
    rms.update(np.empty((0, 3)))
    assert rms.count == 2
    np.testing.assert_array_equal(rms.mean, np.ones(3))
    assert rms.norm(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (np.ones((2, 4)), ValueError, r"batch: rows have shape \(4,\), but the .* have \(3,\)"),
        (np.empty((0, 4)), ValueError, r"rows have shape \(4,\)"),
        (5.0, ValueError, r"batch: got the scalar 5.0; its first axis must count rows"),
        (np.array([{}, {}]), TypeError, "batch: got dtype object"),
        (["a", "b"], TypeError, "batch: got dtype <U1"),
        (np.ones((2, 3), complex), TypeError, "complex128, but it must be real numbers"),
    ],
)
def test_a_wrong_batch_leaves_the_statistics_as_they_were(
    batch: object, error: type[Exception], message: str
) -> None:
    rms = after(np.arange(6.0).reshape(2, 3))
    with pytest.raises(error, match=message):
        rms.update(batch)
    assert rms.count == 2
    np.testing.assert_array_equal(rms.mean, [1.5, 2.5, 3.5])
    np.testing.assert_array_equal(rms.var, [2.25, 2.25, 2.25])


def test_wrong_values_to_normalise() -> None:
    rms = after(np.ones((1, 3)))
    for x in (np.ones(4), np.ones((3, 4)), 1.0):
        with pytest.raises(ValueError, match=r"x: has shape .*, but the statistics have \(3,\)"):
            rms.norm(x)
    with pytest.raises(TypeError, match="x: got dtype <U3"):
        rms.norm("far")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            ({name: value}, f"{name}: got .*, but it must not be negative")
            for name, value in [
                *(("std", -1.0), ("std", [1.0, np.nan])),
                *(("clip_max", np.nan), ("epsilon", -1)),
            ]
        ),
        ({"mean": np.zeros(2), "std": np.ones(3)}, "shape mismatch"),
    ],
)
def test_wrong_parameters(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RunningMeanStd(**options)


def test_nan_stays_in_its_component() -> None:
    rms = after([[1.0, np.nan], [3.0, 1.0]], [[5.0, 1.0]])
    np.testing.assert_array_equal(rms.mean, [3.0, np.nan])
    np.testing.assert_allclose(rms.var, [8 / 3, np.nan])
    np.testing.assert_array_equal(np.isnan(rms.norm([[1.0, 1.0]])), [[False, True]])
