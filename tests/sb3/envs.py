"""Envs of the tests of the SB3 face, importable by name."""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.support.envs import draw

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "double": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(7),
    "multi-discrete": spaces.MultiDiscrete([3, 4, 5]),
    "multi-binary": spaces.MultiBinary(4),
    "image": IMAGE,
    "dict": spaces.Dict(
        [("z", spaces.Box(-1, 1, (3,), np.float32)), ("image", IMAGE), ("a", spaces.Discrete(4))]
    ),
    "vectors": spaces.Dict(
        [("z", spaces.Box(-1, 1, (3,), np.float32)), ("b", spaces.Box(-1, 1, (2,), np.float64))]
    ),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(5))),
}
INNER = spaces.Dict({"x": SPACES["box"], "y": SPACES["tuple"]})
SPACES["nested"] = spaces.Dict({"in": INNER, "b": SPACES["box"]})  # theirs refuses it

ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(3),
}


class WalkEnv(gym.Env):
    """Draws everything from its own generator; episodes are short and end either way."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 7}  # noqa: RUF012

    def __init__(
        self, obs: str = "box", action: str = "discrete", render_mode: str | None = None
    ) -> None:
        # Stable-Baselines3's VecNormalize writes into the space it is given.
        self.observation_space = copy.deepcopy(SPACES[obs])
        self.action_space = copy.deepcopy(ACTIONS[action])
        self.drawn_from = SPACES[obs]
        self.render_mode = render_mode
        self.tag = 0
        self.log: list[tuple] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.log.append((seed, options))
        self.left = int(self.np_random.integers(1, 7))
        task = int(self.np_random.integers(100))
        return self._obs(), {"task": task, "options": options, "from": "reset"}

    def step(self, action: Any) -> tuple:
        self.left -= 1
        ended, kind = self.left == 0, int(self.np_random.integers(3))
        reward = float(self.np_random.normal()) + float(np.sum(action)) / 3
        info = {"left": self.left, "nested": {"array": np.full(2, self.left)}}
        # Terminated, truncated, or both at once.
        return self._obs(), reward, ended and kind != 1, ended and kind != 0, info

    def _obs(self) -> Any:
        return draw(self.drawn_from, self.np_random)

    def render(self) -> Any:
        return np.full((4, 6, 3), 10 * self.tag, np.uint8)

    # What is called and read from outside.

    def add(self, number: int, *, times: int = 1) -> int:
        return self.tag + number * times

    def loaded(self, *names: str) -> list[str]:
        return [name for name in names if name in sys.modules]


RGB = functools.partial(WalkEnv, render_mode="rgb_array")


def walkers(n: int = 3, **kwargs: Any) -> list[Any]:
    """Functions that make ``n`` envs."""
    return [functools.partial(WalkEnv, **kwargs)] * n


class MaskedEnv(gym.Env):
    """Rewards the action that is allowed; one of three is, told by the observation."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def _obs(self) -> np.ndarray:
        return np.eye(3, dtype=np.float32)[self.allowed]

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple:
        super().reset(seed=seed)
        self.t, self.allowed = 0, int(self.np_random.integers(3))
        return self._obs(), {}

    def step(self, action: Any) -> tuple:
        assert action == self.allowed, "the mask was not heeded"
        self.t, self.allowed = self.t + 1, int(self.np_random.integers(3))
        return self._obs(), 1.0, False, self.t >= 8, {}

    def action_masks(self) -> np.ndarray:
        return np.arange(3) == self.allowed


class GoalEnv(gym.Env):
    """A point that is to reach a goal; for HER."""

    def __init__(self) -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": box, "achieved_goal": box, "desired_goal": box}
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self) -> dict:
        place = self.place.copy()
        return {"observation": place, "achieved_goal": place.copy(), "desired_goal": self.goal}

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple:
        super().reset(seed=seed)
        self.t = 0
        self.place = np.zeros(2, np.float32)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> tuple:
        self.t += 1
        self.place = np.clip(self.place + 0.3 * np.asarray(action), -1, 1).astype(np.float32)
        reward = self.compute_reward(self.place, self.goal, {})
        return self._obs(), float(reward), False, self.t >= 10, {}

    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.2).astype(np.float32)
