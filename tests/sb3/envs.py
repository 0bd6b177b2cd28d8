"""Envs of the tests of the SB3 face, importable by name."""

import copy
import functools

import numpy as np
from gymnasium import spaces

from tests.support.envs import CountEnv, draw

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "box": BOX,
    "double": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(7),
    "image": IMAGE,
    "dict": spaces.Dict([("z", BOX), ("image", IMAGE), ("a", spaces.Discrete(4))]),
    "vectors": spaces.Dict([("z", BOX), ("b", spaces.Box(-1, 1, (2,), np.float64))]),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(5))),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
}


class WalkEnv(CountEnv):
    """Draws everything from its own generator; episodes are short and end either way."""

    def __init__(self, obs="box", action="discrete", render_mode=None):
        super().__init__(render_mode=render_mode)
        self.drawn_from = SPACES[obs] if isinstance(obs, str) else obs
        # Stable-Baselines3's VecNormalize writes into the space it is given.
        self.observation_space = copy.deepcopy(self.drawn_from)
        self.action_space = copy.deepcopy(ACTIONS[action])
        self.log = []

    def observe(self):
        return draw(self.drawn_from, self.np_random)

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        self.log.append((seed, options))
        self.left = int(self.np_random.integers(1, 7))
        return obs, {"task": int(self.np_random.integers(100)), "options": options, "from": "reset"}

    def step(self, action):
        self.left -= 1
        ended, kind = self.left == 0, int(self.np_random.integers(3))
        reward = float(self.np_random.normal()) + float(np.sum(action)) / 3
        info = {"left": self.left, "nested": {"array": np.full(2, self.left)}}
        # Terminated, truncated, or both at once.
        return self.observe(), reward, ended and kind != 1, ended and kind != 0, info

    def told(self, method, id=None, env_id=None):  # noqa: A002
        return method, id or env_id


RGB = functools.partial(WalkEnv, render_mode="rgb_array")


def walkers(n=3, **kwargs):
    """Functions that make ``n`` envs."""
    return [functools.partial(WalkEnv, **kwargs)] * n
