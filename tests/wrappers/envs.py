"""Envs whose observations are random numbers, of every form that a wrapper may meet."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv

POOLS = {"dummy": DummyVectorEnv, "shmem": ShmemVectorEnv}

ARRAYS = {
    "float32": spaces.Box(-1e3, 1e3, (3,), np.float32),
    "float64": spaces.Box(-1e3, 1e3, (2, 2), np.float64),
    "float16": spaces.Box(-200, 200, (2,), np.float16),
    "uint8": spaces.Box(0, 255, (4, 2, 1), np.uint8),
    "scalar": spaces.Box(-200, 200, (), np.float32),
    "discrete": spaces.Discrete(9, start=3),
    "multi-binary": spaces.MultiBinary(4),
}
TREES = {
    "dict": spaces.Dict({"b": ARRAYS["float32"], "a": ARRAYS["uint8"]}),
    "tuple": spaces.Tuple((ARRAYS["float64"], ARRAYS["scalar"])),
    "nested": spaces.Dict(
        {
            "inner": spaces.Dict({"x": ARRAYS["float32"], "kind": spaces.Discrete(4)}),
            "pair": spaces.Tuple((ARRAYS["float16"], spaces.MultiBinary(2))),
            "mask": spaces.MultiBinary(3),
            "word": spaces.Text(5),
        }
    ),
}
SPACES = {**ARRAYS, **TREES}


class SampleEnv(gym.Env):
    """Observes samples of a space, drawn from the env's own stream; ends after `length` steps."""

    def __init__(self, space: Any, length: int = 3, declared: bool = True) -> None:
        self.space = SPACES[space] if isinstance(space, str) else space
        self.length, self.t = length, 0
        if declared:
            self.observation_space = self.space
        self.action_space = spaces.Discrete(2)

    def observe(self) -> Any:
        return sample(self.space, self.np_random)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple:
        self.t += 1
        return self.observe(), float(self.t), self.t >= self.length, False, {"action": int(action)}


def sample(space: spaces.Space, rng: np.random.Generator) -> Any:
    """Draw from a space by a generator: its own sampling has a stream apart from the env's."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Box):
        drawn = rng.normal(60.0, 20.0, space.shape)
        return np.clip(drawn, space.low, space.high).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + rng.integers(space.n))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=space.shape).astype(np.int8)
    return "abcde"[: 1 + int(rng.integers(5))]


def env_fns(space: str, count: int = 4, **kwargs: Any) -> list[Callable[[], gym.Env]]:
    """Make env_fns of unequal episode lengths."""
    return [functools.partial(SampleEnv, space, 2 + i % 3, **kwargs) for i in range(count)]


@contextlib.contextmanager
def twins(kind: str, space: str, wrap: Any, **options: Any) -> Iterator[tuple[BaseVectorEnv, Any]]:
    """Two pools with the same envs; the second one is wrapped."""
    make = POOLS[kind]
    with make(env_fns(space), **options) as plain, make(env_fns(space), **options) as venv:
        yield plain, wrap(venv)
