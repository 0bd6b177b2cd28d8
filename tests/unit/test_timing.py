"""Percentiles of step times."""

import numpy as np
import pytest

from envpool_py import timing


@pytest.mark.parametrize("nanoseconds", [1, 7, 8, 9, 1000, 12345, 10**6, 10**9, 2**39, 2**45])
def test_a_percentile_is_known_to_a_few_percent(nanoseconds):
    counts = np.zeros((2, timing.NUMBERS), np.int64)
    timing.StepTimes(counts[1]).note_step(nanoseconds)
    found = timing.percentile(counts, 0.5)
    assert np.isnan(found[0])
    seconds = min(nanoseconds, 2**40) * 1e-9
    assert found[1] == pytest.approx(seconds, rel=0.07, abs=8e-9)
