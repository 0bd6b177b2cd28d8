"""Envs of these tests, and a comparison that lets no type pass for another."""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from tests.support.envs import Gate


SPACES: dict[str, gym.Space] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float64),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "bool": spaces.Box(0, 1, (2,), np.bool_),
    "discrete": spaces.Discrete(7, start=-3),
    "multidiscrete": spaces.MultiDiscrete([3, 4, 5]),
    "grid": spaces.MultiDiscrete([[3, 4], [5, 6]]),
    "multibinary": spaces.MultiBinary(4),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "pair": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Tuple((spaces.Discrete(3),)))),
    "dict": spaces.Dict(
        {
            "b": spaces.Box(-1, 1, (2,)),
            "a": spaces.Dict({"x": spaces.Discrete(3), "t": spaces.Tuple((spaces.Discrete(2),))}),
        }
    ),
    "text": spaces.Text(6),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,))),
    "stacked": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
    "oneof": spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "mixed": spaces.Dict(
        {"t": spaces.Text(3), "u": spaces.Tuple((spaces.Text(2), spaces.Box(0, 1)))}
    ),
    "empty": spaces.Dict({}),
}
"""Every space of Gymnasium, and nestings of them."""


class RandomEnv(gym.Env):
    """Random observations, rewards, ends and infos, all from the env's own generator.

    Infos have every type, keys that come and go, and dicts in dicts.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(self, space: gym.Space, action: gym.Space | None = None) -> None:
        self.observation_space = copy.deepcopy(space)  # each env samples from its own
        self.action_space = spaces.Discrete(5) if action is None else action
        self.render_mode = "rgb_array"
        self.level = 1

    def observe(self) -> Any:
        return self.observation_space.sample()

    def info(self) -> dict[str, Any]:
        rng = self.np_random
        every = {
            "int": int(rng.integers(9)),
            "float": float(rng.random()),
            "bool": bool(rng.random() < 0.5),
            "numpy": np.float32(rng.random()),
            "flag": np.bool_(True),
            "array": rng.random((2, 3)),
            "text": str(rng.integers(9)),
            "none": None,
            "list": [1, int(rng.integers(9))],
            "nested": {"x": int(rng.integers(9)), "deep": {"y": rng.integers(5, size=2)}},
        }
        return {key: value for key, value in every.items() if rng.random() < 0.4}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observe(), {**self.info(), "options": options}

    def step(self, action: Any) -> tuple:
        rng = self.np_random
        ends = rng.random() < 0.2, rng.random() < 0.1
        info = self.info()
        if rng.random() < 0.3:
            info["action"] = str(action)  # of one number, whether NumPy's scalar or array
        return self.observe(), float(rng.random()), *map(bool, ends), info

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.level, np.uint8)


class Trouble(gym.Env):
    """Does what the action says: 0 nothing, 1 raises, 2 ends the process, 3 waits at its gate."""

    observation_space = spaces.Box(0, 10**6, (3,), np.int64)
    action_space = spaces.Discrete(5)

    def __init__(self, tag: int, gate: Gate) -> None:
        self.tag, self.gate = tag, gate
        self.t, self.episode, self.naps = 0, -1, 0

    def observe(self) -> np.ndarray:
        return np.array([self.tag, self.episode, self.t])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        if options and options.get("wait") == self.tag:
            self.gate.wait()
        if options and options.get("bad") == self.tag:
            raise KeyError("reset")
        return self.observe(), {}

    def step(self, action: Any) -> tuple:
        self.t += 1
        if action == 1:
            raise LookupError(f"no such step {self.t}")
        if action == 2:
            os._exit(7)
        if action == 3:
            self.gate.wait()
        return self.observe(), float(self.t), False, False, {}

    def meet(self) -> int:
        self.gate.wait()
        return self.tag

    def jump(self, held: str) -> None:
        """Wait until the file has gone; then be ten steps further."""
        while Path(held).exists():
            time.sleep(1e-3)
        self.t += 10

    def nap(self) -> None:
        self.naps += 1
        time.sleep(0.05)

    def die(self, tag: int) -> None:
        if self.tag == tag:
            os._exit(7)


def equal(a: Any, b: Any) -> bool:
    """Whether two values are equal, in type, dtype and shape too, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype == object:
            return all(map(equal, a.ravel().tolist(), b.ravel().tolist()))
        return np.array_equal(a, b)
    return bool(a == b)
