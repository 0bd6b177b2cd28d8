"""Seconds of a batch of cheap envs with two agents: a loop over them, and our pools, in turns.

python examples/benchmark/agents.py
python examples/benchmark/agents.py --num-envs 64 --json agents.json
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where envpool_py is

import gymnasium as gym
import numpy as np
import pettingzoo

from envpool_py.pettingzoo import ParallelVectorEnv


class TwoAgents(pettingzoo.ParallelEnv):
    """An env whose step takes some microseconds."""

    metadata, render_mode, possible_agents = {"name": "two"}, None, ["a", "b"]
    spaces = gym.spaces.Box(-1, 1, (8,), np.float32), gym.spaces.Discrete(5)

    def observation_space(self, _: str) -> Any:
        """That of both agents."""
        return self.spaces[0]

    def action_space(self, _: str) -> Any:
        """That of both agents."""
        return self.spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        del seed, options
        self.agents = [*self.possible_agents]
        return {a: np.zeros(8, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: Any) -> Any:
        """Return new arrays, as most envs do."""
        none = dict.fromkeys(actions, False)
        obs = {agent: np.full(8, action, np.float32) for agent, action in actions.items()}
        return obs, dict.fromkeys(actions, 0.0), none, none, {a: {} for a in actions}


def main() -> None:
    """Measure, and print a line for each way to step the envs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40, help="of 20 batches each")
    parser.add_argument("--json", metavar="FILE", help="write the medians")
    args = parser.parse_args()

    envs = [TwoAgents() for _ in range(args.num_envs)]
    one = dict.fromkeys(TwoAgents.possible_agents, 0)
    actions = dict.fromkeys(one, np.zeros(args.num_envs, np.int64))
    env_fns = [TwoAgents] * args.num_envs
    pools = {
        "dummy": ParallelVectorEnv(env_fns, backend="dummy"),
        "two": ParallelVectorEnv(env_fns, num_processes=2),
    }
    for env in (*envs, *pools.values()):
        env.reset(seed=0)
    steps: dict[str, Callable[[], Any]] = {"loop": lambda: [env.step(one) for env in envs]}
    steps |= {name: functools.partial(pool.step, actions) for name, pool in pools.items()}
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            for _ in range(20):
                step()
            times[name].append((time.perf_counter() - begun) / 20)
    for pool in pools.values():
        pool.close()
    found = {name: median(own) for name, own in times.items()}
    for name, seconds in found.items():
        print(f"{name}: {1e3 * seconds:.2f} ms per batch")
    if args.json:
        Path(args.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
