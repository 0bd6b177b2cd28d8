"""Values: casts that lose nothing, dtypes and shapes; see `tests/backends/test_matrix.py` too."""

from __future__ import annotations

import collections
import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import same

# ------------------------------------------------- casts; tests/unit/test_spaces.py has them all


def says(dtype: str) -> envs.ChangedEnv:
    """Make an env that observes what its action, or the option `obs` of a reset, says."""
    env = envs.ChangedEnv(
        step=lambda env, action, row: (action, *row[1:]),  # noqa: ARG005
        reset=lambda env, row: ((row[1]["options"] or {}).get("obs", [0, 0]), {}),  # noqa: ARG005
        space=envs.box(dtype, (2,)),
    )
    del env.action_space
    return env


@pytest.mark.parametrize("place", QUICK)
def test_casts_that_lose_nothing_are_made_and_others_refused_at_any_step(place: str) -> None:
    fns = [functools.partial(says, "float32")] * 2
    with PLACES[place](fns) as pool:
        pool.reset()
        for fine in (np.array([0.1, 2.0]), np.array([3, -4]), [1, 2.5], np.arange(8.0)[::4]):
            wanted = np.asarray([fine]).astype(np.float32)
            assert same(pool.step([fine], [1])[0], wanted)
            assert same(pool.reset([1], options={"obs": fine})[0], wanted)
        for wrong in (np.array([2**24 + 1, 0]), np.array([1e300, 0.0]), "no", b"ab"):
            with pytest.raises(EnvError, match=r"env 1: step raised .*float32"):
                pool.step([[3, -4], wrong])
            assert pool.drain()[0].tolist() == [[3.0, -4.0]]
            with pytest.raises(EnvError, match=r"env 1: reset raised .*float32"):
                pool.reset([1], options={"obs": wrong})
            pool.reset([1])


# --------------------------------------------------------------------------------- rewards, flags


GIVEN: list[tuple[Any, Any, Any]] = [
    (1, False, False),
    (np.float32(0.1), np.bool_(True), False),
    (np.int8(-3), False, np.bool_(True)),
    (np.array(2.5), False, False),
    (True, False, False),
    (float("nan"), False, False),
    (float("-inf"), True, True),
    (2**53, np.False_, np.True_),
    (0.1, 1, 0),
    (np.float16(0.1), np.array(True), np.array(False)),
]


@pytest.mark.parametrize("place", QUICK)
def test_rewards_are_float64_and_flags_bool(place: str) -> None:
    def give(_: Any, action: Any, row: tuple) -> tuple:
        return row[0], *GIVEN[int(action)], row[4]

    with PLACES[place]([functools.partial(envs.ChangedEnv, step=give)]) as pool:
        pool.reset()
        for action, (reward, terminated, truncated) in enumerate(GIVEN):
            batch = pool.step([action])
            assert same(batch[1], np.array([np.float64(reward)]))
            assert same(batch[2], np.array([bool(terminated)]))
            assert same(batch[3], np.array([bool(truncated)]))


@pytest.mark.parametrize("place", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "declared", "row"),
    [
        ((), False, ()),
        ((1, 1), False, ()),
        ((1,), True, (1,)),
        ((3,), False, (3,)),
        ((3,), True, (3,)),
    ],
)
def test_one_element_is_a_scalar_unless_a_reward_space_declares_its_shape(
    place: str, shape: tuple[int, ...], declared: bool, row: tuple[int, ...]
) -> None:
    def make() -> envs.ChangedEnv:
        reward = np.full(shape, 2.5, np.float32)
        env = envs.ChangedEnv(step=lambda env, action, row: (row[0], reward, *row[2:]))  # noqa: ARG005
        if declared:
            env.reward_space = gym.spaces.Box(-np.inf, np.inf, shape)
        return env

    with PLACES[place]([make] * 2, validate="off") as pool:
        pool.reset()
        for _ in range(2):
            assert same(pool.step([0, 0])[1], np.full((2, *row), 2.5))
        assert pool.step([], [])[1].shape == (0, *row)


# --------------------------------------------------------------------------------- aliasing


def test_an_object_of_any_kind_in_an_info_is_copied() -> None:
    queue = collections.deque([0])

    def change(env: Any, _: Any, row: tuple) -> tuple:
        queue[0] = env.t
        return *row[:4], {"queue": queue}

    with DummyVectorEnv([functools.partial(envs.ChangedEnv, step=change)]) as pool:
        pool.reset()
        first = pool.step([0])[4][0]["queue"]
        pool.step([0])
        assert list(first) == [1]
