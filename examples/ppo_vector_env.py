"""PPO in one file, over any `gymnasium.vector.VectorEnv`: ours or Gymnasium's own.

    python examples/ppo_vector_env.py
    python examples/ppo_vector_env.py --vector gymnasium

It is written for Gymnasium's next-step autoreset: the step after the end of an episode resets the
env, ignores the action, and is no part of the training data.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2


def make_envs(args: argparse.Namespace) -> gym.vector.VectorEnv:
    """Make the vector env; only the import differs between the two libraries."""
    if args.vector == "ours":
        from envpool_py.gymnasium import make_vec  # noqa: PLC0415
    else:
        from gymnasium import make_vec  # noqa: PLC0415
    envs = make_vec(args.env, num_envs=args.num_envs, vectorization_mode=args.mode)
    return RecordEpisodeStatistics(envs)


def network(inputs: int, outputs: int) -> nn.Module:
    """Two hidden layers."""
    hidden = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


class Agent(nn.Module):
    """A policy and a value function, with PPO's update."""

    def __init__(self, inputs: int, choices: int) -> None:
        super().__init__()
        self.actor, self.critic = network(inputs, choices), network(inputs, 1)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, eps=1e-5)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An action for each row, and the logarithm of its probability."""
        policy = self.policy(torch.as_tensor(obs))
        action = policy.sample()
        return action.numpy(), policy.log_prob(action).numpy()

    @torch.no_grad()
    def value(self, obs: np.ndarray) -> np.ndarray:
        """The value of each observation."""
        return self.critic(torch.as_tensor(obs)).squeeze(-1).numpy()

    def policy(self, obs: torch.Tensor) -> torch.distributions.Categorical:
        """The distribution of actions."""
        return torch.distributions.Categorical(logits=self.actor(obs))

    def learn(self, *rows: np.ndarray) -> None:
        """Four passes over observations, actions, their probabilities, advantages and returns."""
        rows = [torch.as_tensor(each) for each in rows]
        rows[3] = (rows[3] - rows[3].mean()) / (rows[3].std() + 1e-8)
        for _ in range(4):
            for part in torch.randperm(len(rows[0])).split(256):
                obs, action, old, gain, target = (each[part] for each in rows)
                policy = self.policy(obs)
                ratio = (policy.log_prob(action) - old).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                of_actor = -torch.min(ratio * gain, clipped * gain).mean()
                of_critic = (self.critic(obs).squeeze(-1) - target).pow(2).mean()
                loss = of_actor + 0.5 * of_critic - 0.01 * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters(), 0.5)
                self.optimizer.step()


def advantages(
    reward: np.ndarray, value: np.ndarray, terminated: np.ndarray, over: np.ndarray
) -> np.ndarray:
    """GAE; ``value`` has one row more than the others, that of the last observation."""
    found = np.zeros_like(reward)
    later = np.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        gain = reward[t] + DISCOUNT * value[t + 1] * ~terminated[t] - value[t]
        later = gain + DISCOUNT * LAMBDA * ~over[t] * later
        found[t] = later
    return found


def main() -> None:
    """Collect, learn, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vector", choices=["ours", "gymnasium"], default="ours")
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--env", default="CartPole-v1", help="observes a vector, acts by an int")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128, help="of each env, per update")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = make_envs(args)
    if envs.metadata["autoreset_mode"] is not gym.vector.AutoresetMode.NEXT_STEP:
        raise SystemExit("this script is written for next-step autoreset")
    size = envs.single_observation_space.shape[0]
    agent = Agent(size, int(envs.single_action_space.n))

    shape = args.num_steps, args.num_envs
    observed = np.zeros((args.num_steps + 1, args.num_envs, size), np.float32)
    acted = np.zeros(shape, np.int64)
    chance, reward = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    terminated, over, live = (np.zeros(shape, dtype=bool) for _ in range(3))
    returns: list[float] = []

    obs, _ = envs.reset(seed=args.seed)
    ended = np.zeros(args.num_envs, dtype=bool)
    for update in range(args.updates):
        for t in range(args.num_steps):
            observed[t], live[t] = obs, ~ended
            acted[t], chance[t] = agent.act(observed[t])
            obs, reward[t], terminated[t], truncated, info = envs.step(acted[t])
            over[t] = ended = terminated[t] | truncated
            if "episode" in info:
                returns += info["episode"]["r"][info["_episode"]].tolist()
        observed[-1] = obs
        value = agent.value(observed)
        gain = advantages(reward, value, terminated, over)
        rows = observed[:-1], acted, chance, gain, gain + value[:-1]
        agent.learn(*(each[live] for each in rows))
        if update % 10 == 9 or update == args.updates - 1:
            steps = (update + 1) * args.num_steps * args.num_envs
            print(f"{steps:8} steps  mean return {np.mean(returns[-100:]):.1f}")
    envs.close()


if __name__ == "__main__":
    main()
