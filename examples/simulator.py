"""An env that waits for a simulator, as many do: put your own class in its place.

envpool-py bench examples/simulator.py:Simulator --num-envs 64
envpool-py tune examples/simulator.py:Simulator --env-kwarg seconds=0.001
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np


class Simulator(gym.Env[Any, Any]):
    """A point that shall reach a goal; each step waits for the answer of a simulator.

    Args:
        seconds: how long a step waits, without using the CPU.
        crash: the probability that a step kills the process, as a bug in C++ does.
        bug: the probability that a step raises an exception.
    """

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self, seconds: float = 0.002, crash: float = 0.0, bug: float = 0.0) -> None:
        self.seconds, self.crash, self.bug = seconds, crash, bug

    def _obs(self) -> Any:
        return np.array([self.place, self.goal], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self.place, self.goal = 0.0, self.np_random.uniform(-9, 9)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        """Walk half a metre to the left or to the right."""
        time.sleep(self.seconds)  # the simulator computes elsewhere
        if self.np_random.random() < self.crash:
            os.abort()
        if self.np_random.random() < self.bug:
            raise ValueError(f"no collision mesh at {self.place} m")
        self.steps += 1
        self.place = float(np.clip(self.place + (0.5 if action == 1 else -0.5), -10, 10))
        arrived = abs(self.goal - self.place) < 0.5
        return self._obs(), float(arrived), arrived, self.steps >= 100, {}
