"""An env that is right in all, for tests of checks; what is put in its place makes it wrong."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Good(gym.Env):
    """Right in all."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def obs(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def step(self, action):
        del action
        self.t += 1
        return self.obs(), 1.0, False, self.t >= 5, {}


def changed(**attributes):
    """The class of such an env with other methods or attributes."""
    return type("Env", (Good,), attributes)


def raises(*_, **__):
    raise ValueError("boom")
