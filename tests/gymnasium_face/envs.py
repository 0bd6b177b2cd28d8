"""A random env, and how these tests make our vector envs without processes."""

import copy

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py.gymnasium import VectorEnv

NUM_ENVS = 3
BOX = spaces.Box(-1, 1, (3,), np.float32)


class RandomEnv(gym.Env):
    """Random observations, rewards, ends and infos, all from the env's own generator.

    Infos have every type, keys that come and go, and dicts in dicts.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, space=BOX, action=None):
        self.observation_space = copy.deepcopy(space)  # each env samples from its own
        self.action_space = spaces.Discrete(5) if action is None else action

    def info(self):
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

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {**self.info(), "options": options}

    def step(self, action):
        rng = self.np_random
        ends = rng.random() < 0.2, rng.random() < 0.1
        info = self.info()
        if rng.random() < 0.3:
            info["action"] = str(action)  # of one number, whether NumPy's scalar or array
        return self.observation_space.sample(), float(rng.random()), *map(bool, ends), info

    def render(self):
        return self.np_random.integers(256, size=(4, 4, 3), dtype=np.uint8)


def in_process(fns, mode="NextStep", **options):
    """Make our envs without processes; `tests/backends` shows that these make no difference."""
    pool = DummyVectorEnv(fns, **VectorEnv.options({"autoreset_mode": mode}))
    return VectorEnv(pool, **options)
