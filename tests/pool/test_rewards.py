"""Rewards: one element of any shape is a scalar, unless a ``reward_space`` declares its shape."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import BaseVectorEnv
from tests.backends.test_worker_contract import ThreadWorker
from tests.support.envs import CountEnv
from tests.support.places import PLACES, QUICK

POOLS: dict[str, Any] = {name: PLACES[name] for name in QUICK}
POOLS["custom worker"] = functools.partial(BaseVectorEnv, worker_fn=ThreadWorker)


class ShapedReward(CountEnv):
    """Its reward has the given shape; it declares it if asked to."""

    def __init__(self, tag: int, shape: tuple[int, ...], *, declared: bool) -> None:
        super().__init__(tag, 3)
        self.shape = shape
        if declared:
            self.reward_space = gym.spaces.Box(-np.inf, np.inf, shape)

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, _, *rest = super().step(action)
        return (obs, np.full(self.shape, 2.5, np.float32), *rest)


@pytest.mark.parametrize("kind", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize(
    ("shape", "declared", "expected"),
    [
        ((), False, (2,)),
        ((1,), False, (2,)),
        ((1, 1), False, (2,)),
        ((1,), True, (2, 1)),
        ((3,), False, (2, 3)),
        ((3,), True, (2, 3)),
    ],
)
def test_the_shape_of_rewards(
    kind: Any, shape: tuple[int, ...], declared: bool, expected: tuple[int, ...]
) -> None:
    fns = [functools.partial(ShapedReward, i, shape, declared=declared) for i in range(2)]
    with kind(fns, validate="off") as pool:
        pool.reset()
        for _ in range(2):
            reward = pool.step([0, 0])[1]
            assert (reward.shape, reward.dtype) == (expected, np.float64)
            assert (reward == 2.5).all()
