"""Games that count their steps in a file, so that they can be counted from another process.

As a script, where the libraries are installed: ``python -m tests.pettingzoo.counting LIBRARY ...``.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

from envpool_py.bench import contestants, games
from envpool_py.bench.contestants import AGENT_CONTESTANTS
from envpool_py.bench.job import Job
from tests.pettingzoo.envs import SmallEnv


class CountingGame(SmallEnv):
    """Two agents, episodes of three steps; the number of all its steps is its place in the file."""

    possible_agents: ClassVar = ["a_0", "a_1"]
    seen = spaces.Box(-10, 10, (2,), np.float32)
    acts = spaces.Discrete(5)

    def __init__(self, path: str, place: int) -> None:
        self.agents: list[str] = []
        self._path, self._place = path, place

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        # Opened now: SuperSuit copies its envs before.
        self._count = np.memmap(self._path, np.int64, "r+")[self._place : self._place + 1]
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert list(actions) == self.agents == self.possible_agents, "stepped without a reset"
        assert all(action in self.acts for action in actions.values())
        self.t += 1
        self._count += 1
        over = self.t == 3
        if over:
            self.agents = []
        flags = self.of_all(over), self.of_all(False)
        return self.look(), self.of_all(1.0), *flags, self.of_all({})


def make(face: str, path: str, place: int) -> Any:
    """Make the game; in turns its step is made at the turn of the second agent."""
    game = CountingGame(path, place)
    return game if face == games.PARALLEL else parallel_to_aec(game)


def check(contestant: contestants.Contestant, path: str, wait_num: int | None) -> None:
    """Assert that a driver makes the steps that it says."""
    num_envs, face = 4, contestant.plays
    np.zeros(num_envs, np.int64).tofile(path)
    env_fns = [functools.partial(make, face, path, i) for i in range(num_envs)]
    if contestant.library == "supersuit":  # it copies one env; they share a place
        env_fns = env_fns[:1] * num_envs
    shape = (num_envs, 2) if face == games.PARALLEL else (num_envs,)
    batches = [np.random.default_rng(n).integers(0, 5, shape) for n in range(3)]
    job = Job(contestant.name, "spread", num_envs, wait_num, 2, 0.0)
    running = contestants.driver(contestant.name)(job, env_fns, batches)
    assert not np.fromfile(path, np.int64).any(), "stepped before it was asked to"
    said = sum(running.advance() for _ in range(24))
    running.close()
    counted = 2 * int(np.fromfile(path, np.int64).sum())
    if contestant.library == "supersuit" and contestant.processes != contestants.INSIDE:
        assert said == 24 * num_envs * 2  # its processes write to one place, and lose counts
    elif wait_num is None:
        assert counted == said
    else:  # turns that wait for the other agent are not counted yet, steps under way are
        assert abs(counted - said) <= 2 * num_envs
    assert said >= 24 * (wait_num or num_envs)


def main(libraries: list[str]) -> None:
    """Check all contestants of some libraries, with whole and with partial batches."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "counts")
        for contestant in AGENT_CONTESTANTS:
            if contestant.library in libraries and contestant.name != "tianshou-turns-shmem":
                check(contestant, path, None)
                if contestant.partial:
                    check(contestant, path, 2)
                print(contestant.name)  # noqa: T201 - those that were checked


if __name__ == "__main__":
    main(sys.argv[1:])
