"""A plain asynchronous loop over knights_archers_zombies, where agents die one by one.

Every batch has the envs that are ready. In each env the agents that are alive act. An agent that
mostly walks back crosses the line behind it and dies, so agents die early in this example.

python examples/knights_async.py
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import pettingzoo

from envpool_py.pettingzoo import ParallelVectorEnv

# Walk forward, walk back, and attack, as the env numbers its actions.
ACTIONS = np.array([0, 1, 1, 1, 4])


def main() -> None:
    """Step the envs, and count the steps that each agent is alive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--wait-num", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=20)
    args = parser.parse_args()

    make_env = functools.partial(
        pettingzoo.make, "parallel", "butterfly/knights_archers_zombies-v11", line_death=True
    )
    rng = np.random.default_rng(0)
    with ParallelVectorEnv([make_env] * args.num_envs, wait_num=args.wait_num) as pool:
        lived = {agent: np.zeros(args.num_envs, int) for agent in pool.possible_agents}
        rewards_of = dict.fromkeys(pool.possible_agents, 0.0)
        lives: list[int] = []
        episodes = 0
        pool.send_reset(seed=0)
        while episodes < args.episodes:
            _, rewards, _, _, info = pool.recv()
            ids = info["env_id"]
            for agent in pool.possible_agents:
                # Where valid is False the agent was dead before: its zeros are no transition.
                valid = info["valid"][agent]
                lived[agent][ids[valid]] += 1
                rewards_of[agent] += float(rewards[agent][valid].sum())
            over = ids[info["env_done"]]
            for i in over:
                episodes += 1
                lives += [int(steps[i]) for steps in lived.values()]
                print(f"env {i}:", {agent: int(steps[i]) for agent, steps in lived.items()})
                for steps in lived.values():
                    steps[i] = 0
            pool.send_reset(over)
            going_on = ids[~info["env_done"]]
            # The dead agents' rows of a batch of actions are not looked at.
            actions = {agent: rng.choice(ACTIONS, len(going_on)) for agent in pool.possible_agents}
            pool.send(actions, going_on)
        pool.drain()
    print("rewards:", rewards_of)
    print(f"{episodes} episodes; an agent lived {np.mean(lives):.0f} steps on average")


if __name__ == "__main__":
    main()
