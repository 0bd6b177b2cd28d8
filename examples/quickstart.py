"""The pool in one screen: make one, step it, step the envs that are ready, let a collector do it.

python examples/quickstart.py
"""

from __future__ import annotations

import envpool_py
from envpool_py.collector import AsyncCollector, RandomPolicy


def main() -> None:
    """Step a pool in three ways."""
    with envpool_py.make("CartPole-v1", 4) as envs:
        obs, infos = envs.reset(seed=0)
        print("observations of the reset:", obs.shape)
        for _ in range(4):
            actions = [space.sample() for space in envs.action_space]  # your policy
            obs, reward, terminated, truncated, infos = envs.step(actions)
        print("rewards:", reward, "ended:", terminated | truncated, "info of env 0:", infos[0])

    with envpool_py.make("CartPole-v1", 4, wait_num=2, backend="shmem") as envs:
        envs.reset(seed=0)
        envs.send([0, 1, 0, 1])
        for _ in range(4):
            obs, reward, *_ = envs.recv()  # those of the envs that finish first
            ids = envs.batch_ids
            print("from envs", ids, "rewards", reward)
            envs.send([envs.action_space[i].sample() for i in ids], ids)
        envs.drain()

        collector = AsyncCollector(envs, RandomPolicy(envs, seed=0), seed=0)
        for episode in collector.episodes(8):
            print(episode)


if __name__ == "__main__":
    main()
