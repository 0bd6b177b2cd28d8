"""The matrix of `tests.faults.test_matrix` on Ray: an eleventh of it, the rest with the soaks."""

import itertools
import os
import signal

import pytest

from tests.faults import helpers
from tests.faults.test_matrix import FAULTS, MODES, MOMENTS, check_a_failure

CASES = [
    pytest.param(*case, marks=[pytest.mark.soak] if number % 11 else [])
    for number, case in enumerate(itertools.product(FAULTS, MOMENTS, MODES, [0, 1]))
    if case[:2] != ("value", "idle") and case[1:3] != ("automatic reset", None)
]


@pytest.mark.parametrize(("fault", "moment", "mode", "partial"), CASES)
def test_a_failure_on_ray_is_one_row(fault, moment, mode, partial, tmp_path, monkeypatch):
    def kill(pool, i):
        os.kill(pool.apply(lambda _: os.getpid(), id=i)[0], signal.SIGKILL)

    monkeypatch.setattr(helpers, "kill", kill)
    check_a_failure(fault, moment, mode, "ray", partial, tmp_path)
