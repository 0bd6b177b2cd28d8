"""An env that counts its steps in a file, so that they can be counted from another process."""

import functools

import gymnasium as gym
import numpy as np


class Counting(gym.Env):
    """Its episodes have three steps; the number of all its steps is its place in the file."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    left = 0

    def __init__(self, path, place):
        self.count = np.memmap(path, np.int64, "r+")[place : place + 1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        assert self.left > 0, "stepped without a reset"
        self.left -= 1
        self.count += 1
        return np.ones(2, np.float32), 1.0, self.left == 0, False, {}


def check(start, path, num_envs, wait_num):
    """Assert that a pool makes the steps that it says."""
    np.zeros(num_envs, np.int64).tofile(path)
    env_fns = [functools.partial(Counting, path, i) for i in range(num_envs)]
    running = start(env_fns, list(np.random.default_rng(0).integers(0, 2, (8, num_envs))))
    assert not np.fromfile(path, np.int64).any(), "stepped before it was asked to"
    said = [running.advance() for _ in range(20)]
    counted = np.fromfile(path, np.int64)
    running.close()
    if wait_num is None:
        # Batches in which envs are only reset come for all envs at once.
        assert counted.tolist() == [sum(said) // num_envs] * num_envs
        assert set(said) <= {num_envs, 0}
        assert sum(said) >= 15 * num_envs
    else:
        finished = int(np.fromfile(path, np.int64).sum())
        assert sum(said) <= finished <= sum(said) + num_envs
        assert sum(said) >= 20
