"""Envs of the tests of the SB3 face, importable by name."""

import copy
import functools
import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import envpool_py.sb3 as own
from tests.support.envs import draw

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "box": BOX,
    "double": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(7),
    "multi-discrete": spaces.MultiDiscrete([3, 4, 5]),
    "multi-binary": spaces.MultiBinary(4),
    "image": IMAGE,
    "dict": spaces.Dict([("z", BOX), ("image", IMAGE), ("a", spaces.Discrete(4))]),
    "vectors": spaces.Dict([("z", BOX), ("b", spaces.Box(-1, 1, (2,), np.float64))]),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(5))),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(3),
}


class WalkEnv(gym.Env):
    """Draws everything from its own generator; episodes are short and end either way."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, obs="box", action="discrete", render_mode=None):
        self.drawn_from = SPACES[obs] if isinstance(obs, str) else obs
        # Stable-Baselines3's VecNormalize writes into the space it is given.
        self.observation_space = copy.deepcopy(self.drawn_from)
        self.action_space = copy.deepcopy(ACTIONS[action])
        self.render_mode = render_mode
        self.tag = 0
        self.log = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.log.append((seed, options))
        self.left = int(self.np_random.integers(1, 7))
        task = int(self.np_random.integers(100))
        return self._obs(), {"task": task, "options": options, "from": "reset"}

    def step(self, action):
        self.left -= 1
        ended, kind = self.left == 0, int(self.np_random.integers(3))
        reward = float(self.np_random.normal()) + float(np.sum(action)) / 3
        info = {"left": self.left, "nested": {"array": np.full(2, self.left)}}
        # Terminated, truncated, or both at once.
        return self._obs(), reward, ended and kind != 1, ended and kind != 0, info

    def _obs(self):
        return draw(self.drawn_from, self.np_random)

    def render(self):
        return np.full((4, 6, 3), 10 * self.tag, np.uint8)

    # What is called and read from outside.

    def add(self, number, *, times=1):
        return self.tag + number * times

    def told(self, method, id, indices_=0):  # noqa: A002
        return method, id, indices_

    def loaded(self, *names):
        return [name for name in names if name in sys.modules]


RGB = functools.partial(WalkEnv, render_mode="rgb_array")


def walkers(n=3, **kwargs):
    """Functions that make ``n`` envs."""
    return [functools.partial(WalkEnv, **kwargs)] * n


class Native(own.VecEnv):
    """Steps all its envs at once, in NumPy; an env is one number that falls to 0."""

    def __init__(self, num_envs):
        self.state = np.zeros((num_envs, 1), np.float32)
        super().__init__(num_envs, spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2))

    def reset(self):
        self.state[:] = self._seeds[0] or 9
        self._reset_seeds()
        return self.state.copy()

    def step_async(self, actions):
        self.state -= actions[:, None] + 1

    def step_wait(self):
        dones = self.state[:, 0] <= 0
        infos = [{"terminal_observation": obs} if obs <= 0 else {} for obs in self.state.copy()]
        self.state[dones] = 9
        return self.state.copy(), np.ones(self.num_envs, np.float32), dones, infos

    def get_attr(self, attr_name, indices=None):
        return [vars(self).get(attr_name) for _ in self._get_indices(indices)]

    env_is_wrapped = get_attr
    close = set_attr = env_method = lambda *_, **__: None
