"""How many Python functions the caller of ``step`` goes through, counted by ``sys.setprofile``."""

from __future__ import annotations

import gc
import statistics
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from envpool_py import ShmemVectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

NUM_ENVS = 16
WARM_UP, COUNTED = 50, 101
MAX_SYNCHRONOUS = 26
MAX_PARTIAL = 28


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


def median_of(counts: list[list[str]]) -> tuple[int, str]:
    """Return the median number of calls, and a text that tells of the figures."""
    lengths = [len(called) for called in counts]
    median = int(statistics.median(lengths))
    typical = counts[lengths.index(median)]
    text = f"{median} calls in the median, {min(lengths)} to {max(lengths)}: {', '.join(typical)}"
    return median, text


def test_calls_of_a_synchronous_step(capsys: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    with ShmemVectorEnv([PoleEnv] * NUM_ENVS, num_processes=2) as pool:
        pool.reset(seed=0)
        counts = []
        for n in range(WARM_UP + COUNTED):
            actions = rng.integers(2, size=NUM_ENVS)
            called, batch = calls_of(lambda actions=actions: pool.step(actions))
            assert batch[0].shape == (NUM_ENVS, 4)
            if n >= WARM_UP:
                counts.append(called)
    median, text = median_of(counts)
    with capsys.disabled():
        print(f"\nsynchronous batch: {text}")  # noqa: T201 - the figure is worth a look
    assert median <= MAX_SYNCHRONOUS, text


def test_calls_of_a_partial_batch(capsys: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    with ShmemVectorEnv([PoleEnv] * NUM_ENVS, num_processes=2, wait_num=NUM_ENVS // 2) as pool:
        pool.reset(seed=0)
        ids = np.arange(NUM_ENVS)
        counts = []
        for n in range(WARM_UP + COUNTED):
            actions = rng.integers(2, size=len(ids))
            called, batch = calls_of(lambda a=actions, i=ids: pool.step(a, i))
            assert len(batch[1]) >= NUM_ENVS // 2
            ids = np.array([info["env_id"] for info in batch[4]])
            if n >= WARM_UP:
                counts.append(called)
        pool.drain()
    median, text = median_of(counts)
    with capsys.disabled():
        print(f"\npartial batch: {text}")  # noqa: T201 - as above
    assert median <= MAX_PARTIAL, text
