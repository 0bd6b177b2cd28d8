"""Random sequences of everything a caller may do, against the oracle (Hypothesis).

Hypothesis draws the calls, each with a number from which its details follow: which envs are
ready when a call is made is for the operating system to say, and what is drawn must not hang on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import envs
from tests.support.places import PLACES, QUICK, slow
from tests.support.session import CALLS, Session

SUBJECTS: dict[str, Callable[..., Any]] = {
    "random": envs.RandomEnv,
    "counting": functools.partial(envs.CountEnv, length=2),
    "box": functools.partial(envs.SpaceEnv, name="box-float16", length=2),
    "nested": functools.partial(envs.SpaceEnv, name="nested", length=2),
    "mixed": functools.partial(envs.SpaceEnv, name="mixed", length=2),
    "ragged": functools.partial(envs.UndeclaredEnv, kind="ragged", length=2),
    "buffers": functools.partial(envs.BufferEnv, length=2),
    "rewards": functools.partial(envs.VectorRewardEnv, length=2),
}
EXAMPLES = {"dummy": 100, "subproc-fork": 40, "shmem-fork-packed": 60, "shmem-fork-caller": 60}


@pytest.mark.parametrize("place", ["dummy", *slow(*QUICK[1:])])
def test_any_sequence_of_calls_gives_what_raw_envs_give(place: str) -> None:
    @settings(
        max_examples=EXAMPLES[place],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,  # the same search on every run
    )
    @given(
        subject=st.sampled_from(sorted(SUBJECTS)),
        mode=st.sampled_from([None, "same_step", "next_step"]),
        calls=st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 2**16)), max_size=25),
    )
    def run(subject: str, mode: str | None, calls: list[tuple[str, int]]) -> None:
        fns = [functools.partial(SUBJECTS[subject], tag) for tag in range(3)]
        Session(PLACES[place], fns, mode).run(calls)

    run()
