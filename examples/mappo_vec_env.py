"""A pool of PettingZoo envs with the interface that the trainers of MAPPO and HARL expect."""

import functools

import numpy as np
from mpe2 import simple_spread_v3

from envpool_py.pettingzoo import ParallelVectorEnv


class TrainerVecEnv:  # lists of spaces, arrays (envs, agents, ...), flags per agent
    def __init__(self, env_fns, **options):
        self.pool = ParallelVectorEnv(env_fns, autoreset_mode="same_step", **options)
        self.agents = self.pool.possible_agents
        self.observation_space = [self.pool.observation_space(agent) for agent in self.agents]
        self.action_space = [self.pool.action_space(agent) for agent in self.agents]

    def _joined(self, values):
        return np.stack([*values.values()], axis=1)

    def reset(self):
        return self._joined(self.pool.reset(seed=0)[0])

    def step(self, actions):  # (envs, agents): their numbers
        given = {agent: actions[:, a] for a, agent in enumerate(self.agents)}
        obs, rewards, terminated, truncated, _ = self.pool.step(given)
        dones = self._joined(terminated) | self._joined(truncated)  # of the step that ended
        infos = [{"dones": row, "env_done": row.all()} for row in dones]
        return self._joined(obs), self._joined(rewards)[..., None], dones, infos


if __name__ == "__main__":
    make_env = functools.partial(simple_spread_v3.parallel_env, max_cycles=25)
    envs = TrainerVecEnv([make_env] * 16, num_processes=2)
    obs, rng = envs.reset(), np.random.default_rng(0)
    for _ in range(50):
        obs, rewards, dones, infos = envs.step(rng.integers(5, size=obs.shape[:2]))
    print(obs.shape, rewards.shape, dones.all(), infos[0])
    envs.pool.close()
