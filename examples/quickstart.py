"""The pool in one screen: step it yourself, then let a collector do it.

python examples/quickstart.py
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from envpool_py import ShmemVectorEnv
from envpool_py.collector import AsyncCollector, RandomPolicy


def make_env() -> gym.Env:
    """Runs in a worker process."""
    return gym.make("CartPole-v1")


def main() -> None:
    """Step a pool in both ways."""
    with ShmemVectorEnv([make_env] * 4, wait_num=2, num_processes=2) as pool:
        obs, _ = pool.reset(seed=0)
        print("observations of the reset:", obs.shape)
        pool.send(np.array([0, 1, 0, 1]))
        for _ in range(4):
            obs, reward, terminated, truncated, infos = pool.recv()  # the two that finish first
            ids = [info["env_id"] for info in infos]
            print("from envs", ids, "rewards", reward)
            ended = terminated | truncated
            going_on = [i for i, end in zip(ids, ended, strict=True) if not end]
            pool.send([pool.action_space[i].sample() for i in going_on], going_on)
        pool.drain()

        collector = AsyncCollector(pool, RandomPolicy(pool, seed=0), seed=0)
        for episode in collector.episodes(8):
            print(episode)


if __name__ == "__main__":
    main()
