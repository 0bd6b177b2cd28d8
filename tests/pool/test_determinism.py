"""Seeds: of action spaces, and of episodes under `episode_seeds` and `reset_fn`.

Calls of `reset` and `seed` in any order are in `tests/backends/test_matrix.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES
from tests.support.reference import same

NUM = 4
FNS = [functools.partial(envs.RandomEnv, tag) for tag in range(NUM)]
COUNT_FNS = [functools.partial(envs.CountEnv, tag, 3) for tag in range(NUM)]


def test_action_spaces_are_seeded_with_their_envs() -> None:
    with DummyVectorEnv(FNS) as pool:
        # Tianshou's Collector keeps the list of spaces from its construction on.
        kept = pool.action_space

        def samples() -> list[list[Any]]:
            return [[space.sample() for _ in range(20)] for space in kept]

        pool.seed(11)
        by_seed = samples()
        assert len({repr(one) for one in by_seed}) == NUM, "each env samples its own actions"
        pool.reset(seed=11)
        assert samples() == by_seed
        pool.seed(12)
        assert samples() != by_seed
        pool.seed(11)
        assert samples() == by_seed


def first_obs(pool: BaseVectorEnv, steps: list[int], seed: int) -> list[np.ndarray]:
    """First observations of successive episodes, `steps[k]` steps after each other."""
    found = [pool.reset(seed=seed)[0]]
    for count in steps:
        for _ in range(count):
            pool.step([1] * NUM)
        found.append(pool.reset()[0])
    return found


def test_with_episode_seeds_an_episode_does_not_depend_on_what_came_before() -> None:
    found = []
    for place in BACKENDS:
        with PLACES[place](FNS, episode_seeds=True) as pool:
            found.append(first_obs(pool, [1, 1, 1], seed=5))
            assert not same(first_obs(pool, [7, 2, 9], seed=6), found[-1])
            assert same(first_obs(pool, [7, 2, 9], seed=5), found[-1])  # it begins again
    assert same(found[0], found[-1])
    flat = [row.tobytes() for obs in found[0] for row in obs]
    assert len(set(flat)) == len(flat), "all episodes of all envs differ"


@pytest.mark.parametrize("place", BACKENDS)
def test_reset_fn_may_be_a_closure_and_serves_sent_resets(place: str) -> None:
    base = np.int64(70)

    def closure(env_id: int, episode: int) -> tuple[Any, dict | None]:
        return base + env_id if episode < 2 else None, None if episode else {"first": True}

    with PLACES[place](COUNT_FNS, reset_fn=closure) as pool:
        assert [info["options"] for info in pool.reset()[1]] == [{"first": True}] * NUM
        for seed in (72, None):
            pool.send_reset([2])
            info = pool.recv()[4][0]
            assert (info["seed"], info["options"]) == (seed, None)
