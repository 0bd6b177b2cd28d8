"""The statistics against references that know all the data at once."""

import numpy as np
import pytest

from envpool_py.wrappers import RunningMeanStd

EPS = float(np.finfo(np.float32).eps)


def after(*batches, **options):
    """Return statistics that were updated with these batches."""
    rms = RunningMeanStd(**options)
    for batch in batches:
        rms.update(batch)
    return rms


def test_by_hand():
    rms = after(np.empty((0, 2)), [[1.0, 10.0], [3.0, 10.0]], np.empty((0, 2)), [[8.0, 10.0]])
    assert repr(rms) == "RunningMeanStd(shape=(2,), count=3)"
    np.testing.assert_array_equal(rms.mean, [4.0, 10.0])
    np.testing.assert_allclose(rms.var, [(9 + 1 + 16) / 3, 0.0], rtol=1e-15)
    expected = [(8 - 4) / np.sqrt(26 / 3 + EPS), 0.0]
    np.testing.assert_allclose(rms.norm([8.0, 10.0]), expected, rtol=1e-15)
    assert rms.norm([[4.0, 10.5], [4.0, 9.5]])[:, 1].tolist() == [10.0, -10.0]  # cut off
    assert rms.norm(np.empty((0, 2))).shape == (0, 2)
    data = np.arange(24.0).reshape(3, 4, 2)  # any axes before those of a row
    np.testing.assert_array_equal(rms.norm(data)[2, 3], rms.norm(data[2, 3]))


def test_the_initial_values_serve_until_the_first_update():
    rms = RunningMeanStd()
    assert (rms.mean, rms.var, rms.count, rms.clip_max, rms.eps) == (0.0, 1.0, 0, 10.0, EPS)
    for clip_max in (None, 0):
        assert RunningMeanStd(clip_max=clip_max, epsilon=0.0).norm(1e6) == 1e6
    mean = np.array([1.0, 2.0])
    rms = RunningMeanStd(mean=mean, std=3.0, epsilon=0.0)
    np.testing.assert_array_equal(rms.norm([7.0, -1.0]), [2.0, -1.0])
    assert not np.shares_memory(rms.mean, mean)
    with pytest.raises(ValueError, match=r"rows have shape \(3,\), but the statistics have \(2,\)"):
        rms.update(np.ones((4, 3)))
    rms.update([[5.0, 5.0], [7.0, 9.0]])
    np.testing.assert_array_equal(rms.mean, [6.0, 7.0])
    np.testing.assert_array_equal(rms.var, [1.0, 4.0])


def test_rows_of_small_dtypes_are_summed_in_float64():
    rms = after(np.full((300, 2), 255, np.uint8), np.zeros((300, 2), np.uint8))
    np.testing.assert_array_equal([rms.mean, rms.var], [[127.5] * 2, [127.5**2] * 2])
    data = (5000 + np.random.default_rng(0).normal(size=(2000, 2))).astype(np.float32)
    rms = after(*np.split(data, 20))
    np.testing.assert_allclose(rms.var, data.astype(np.float64).var(axis=0), rtol=1e-10)


@pytest.mark.parametrize(
    ("method", "values", "error", "message"),
    [
        ("update", np.ones((2, 4)), ValueError, r"batch: rows have shape \(4,\), but .* \(3,\)"),
        ("update", np.empty((0, 4)), ValueError, r"rows have shape \(4,\)"),
        ("update", 5.0, ValueError, r"batch: got the scalar 5.0; its first axis must count rows"),
        ("update", np.ones((2, 3), complex), TypeError, "batch: got dtype complex128, but it must"),
        ("norm", np.ones((3, 4)), ValueError, r"x: has shape \(3, 4\), but the .* \(3,\)"),
        ("norm", 1.0, ValueError, r"x: has shape \(\)"),
        ("norm", "far", TypeError, "x: got dtype <U3, but it must be real numbers"),
    ],
)
def test_wrong_values_leave_the_statistics_unchanged(method, values, error, message):
    rms = after(np.arange(6.0).reshape(2, 3))
    with pytest.raises(error, match=message):
        getattr(rms, method)(values)
    assert rms.count == 2
    np.testing.assert_array_equal([rms.mean, rms.var], [[1.5, 2.5, 3.5], [2.25] * 3])


def test_wrong_parameters():
    for name, value in {"std": [1.0, np.nan], "clip_max": -1, "epsilon": -1}.items():
        with pytest.raises(ValueError, match=f"{name}: got .*, but it must not be negative"):
            RunningMeanStd(**{name: value})
    with pytest.raises(ValueError, match="shape mismatch"):
        RunningMeanStd(mean=np.zeros(2), std=np.ones(3))


def test_nan_stays_in_its_component():
    rms = after([[1.0, np.nan], [3.0, 1.0]], [[5.0, 1.0]])
    np.testing.assert_array_equal(rms.mean, [3.0, np.nan])
    np.testing.assert_allclose(rms.var, [8 / 3, np.nan])
    np.testing.assert_array_equal(np.isnan(rms.norm([[1.0, 1.0]])), [[False, True]])
