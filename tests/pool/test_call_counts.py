"""How many Python functions the caller of ``step`` goes through, counted by ``sys.setprofile``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ShmemVectorEnv

NUM_ENVS = 16
WARM_UP, COUNTED = 50, 101


class PoleEnv(gym.Env):
    """As CartPole: four float32 numbers, two actions, a reward of 1, no infos; no episode ends."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.state = np.zeros(4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> tuple:
        x, speed, angle, turn = self.state.tolist()
        force = 0.2 if action == 1 else -0.2
        turned = turn + 0.02 * (angle - force)
        self.state = np.array([x + 0.02 * speed, speed + force, angle + 0.02 * turn, turned]) % 1.0
        return self.state.astype(np.float32), 1.0, False, False, {}


def calls_of(act: Callable[[], Any]) -> tuple[list[str], Any]:
    """Return the Python functions that are called in this thread, and the result."""
    called: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:  # noqa: ARG001 - the signature of a profiler
        if event == "call":
            called.append(frame.f_code.co_qualname if QUALIFIED else frame.f_code.co_name)

    before = sys.getprofile()
    gc.disable()  # what the collector calls is not the pool's
    try:
        sys.setprofile(note)
        result = act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return called[1:], result  # without ``act`` itself


QUALIFIED = sys.version_info >= (3, 11)


@pytest.mark.parametrize(("wait_num", "limit"), [(NUM_ENVS, 26), (NUM_ENVS // 2, 28)])
def test_calls_of_a_step(wait_num: int, limit: int, capsys: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    with ShmemVectorEnv([PoleEnv] * NUM_ENVS, num_processes=2, wait_num=wait_num) as pool:
        pool.reset(seed=0)
        ids = None if wait_num == NUM_ENVS else np.arange(NUM_ENVS)
        counts = []
        for _ in range(WARM_UP + COUNTED):
            actions = rng.integers(2, size=NUM_ENVS if ids is None else len(ids))
            called, batch = calls_of(lambda a=actions, i=ids: pool.step(a, i))
            assert len(batch[1]) >= wait_num
            ids = ids if ids is None else np.array([info["env_id"] for info in batch[4]])
            counts.append(called)
        pool.drain()
    counts = sorted(counts[WARM_UP:], key=len)
    median = counts[COUNTED // 2]
    shortest, longest = len(counts[0]), len(counts[-1])
    text = f"{len(median)} calls in the median, {shortest} to {longest}: {', '.join(median)}"
    with capsys.disabled():
        print(f"\nwait_num={wait_num}: {text}")  # noqa: T201 - the figure is worth a look
    assert len(median) <= limit, text
