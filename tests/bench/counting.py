"""An env that counts its steps in a file, so that they can be counted from another process.

As a script, where the libraries are installed: ``python -m tests.bench.counting LIBRARY ...``.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.bench import contestants, workloads
from envpool_py.bench.contestants import CONTESTANTS
from envpool_py.bench.job import Job


class Counting(gym.Env):
    """Its episodes have three steps; the number of all its steps is its place in the file."""

    def __init__(self, path: str, place: int) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._count = np.memmap(path, np.int64, "r+")[place : place + 1]
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        self._left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple:
        assert action in self.action_space
        assert self._left > 0, "stepped without a reset"
        self._left -= 1
        self._count += 1
        return np.ones(2, np.float32), 1.0, self._left == 0, False, {}


def check(contestant: str, path: str, num_envs: int, wait_num: int | None) -> None:
    """Assert that a driver makes the steps that it says."""
    np.zeros(num_envs, np.int64).tofile(path)
    env_fns = [functools.partial(Counting, path, i) for i in range(num_envs)]
    batches = workloads.draw_actions(gym.spaces.Discrete(2), num_envs)
    job = Job(contestant, "counting", num_envs, wait_num, 2, 0.0)
    running = contestants.driver(contestant)(job, env_fns, batches)
    assert not np.fromfile(path, np.int64).any(), "stepped before it was asked to"
    said = [running.advance() for _ in range(20)]
    counted = np.fromfile(path, np.int64)
    running.close()
    if wait_num is None:
        # Those in which an env is reset apart, if it is, come for all envs at once.
        assert counted.tolist() == [sum(said) // num_envs] * num_envs
        assert set(said) <= {num_envs, 0}
        assert sum(said) >= 15 * num_envs
    else:
        finished = int(np.fromfile(path, np.int64).sum())
        assert sum(said) <= finished <= sum(said) + num_envs
        assert sum(said) >= 20


def main(libraries: list[str]) -> None:
    """Check all contestants of some libraries, with whole and with partial batches."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "counts")
        for contestant in CONTESTANTS:
            if contestant.library in libraries:
                check(contestant.name, path, 4, None)
                if contestant.partial:
                    check(contestant.name, path, 6, 2)
                print(contestant.name)  # noqa: T201 - those that were checked


if __name__ == "__main__":
    main(sys.argv[1:])
