"""Envs of these tests."""

import copy
import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.support import envs

BOX = spaces.Box(-1, 1, (3,), np.float32)


class RandomEnv(gym.Env):
    """Random observations, rewards, ends and infos, all from the env's own generator.

    Infos have every type, keys that come and go, and dicts in dicts.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(self, space=BOX, action=None):
        self.observation_space = copy.deepcopy(space)  # each env samples from its own
        self.action_space = spaces.Discrete(5) if action is None else action
        self.render_mode = "rgb_array"
        self.level = 1

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
        return np.full((4, 4, 3), self.level, np.uint8)


class Trouble(envs.CountEnv):
    """Does what the action says: 0 nothing, 1 raises, 2 ends the process, 3 waits at its gate."""

    def __init__(self, tag, gate):
        super().__init__(tag, 10**6)
        self.gate, self.naps = gate, 0

    def reset(self, *, seed=None, options=None):
        if options and options.get("wait") == self.tag:
            self.gate.wait()
        if options and options.get("bad") == self.tag:
            raise KeyError("reset")
        return super().reset(seed=seed)

    def step(self, action):
        if action == 1:
            raise LookupError(f"no such step {self.t + 1}")
        if action == 2:
            os._exit(7)
        if action == 3:
            self.gate.wait()
        return super().step(action)

    def meet(self):
        self.gate.wait()
        return self.tag

    def jump(self, held):
        """Wait until the file has gone; then be ten steps further."""
        while Path(held).exists():
            time.sleep(1e-3)
        self.t += 10

    def nap(self):
        self.naps += 1
        time.sleep(0.05)

    def die(self, tag):
        if self.tag == tag:
            os._exit(7)
