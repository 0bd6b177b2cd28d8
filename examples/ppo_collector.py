"""PPO on transitions from a pool whose envs never wait for each other.

    python examples/ppo_collector.py
    python examples/ppo_collector.py --sync  # the same in a plain synchronous loop, to compare

The policy returns the log-probability of each action and the value of each observation as extras,
and the collector stores them with the transition. Actions that are in flight during an update were
chosen by the old policy; their stored log-probabilities let PPO's ratio account for that.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.collector import AsyncCollector, Transitions

DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2
ROLLOUT, EPOCHS, BATCH = 2048, 8, 256


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), nn.Linear(64, outputs)
    )


class ActorCritic(nn.Module):
    """The policy and the value function."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor, self.critic = mlp(obs_size, num_actions), mlp(obs_size, 1)

    def forward(self, obs: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, dict]:
        """Called by the collector with the envs that are ready."""
        del env_ids
        with torch.no_grad():
            rows = torch.as_tensor(obs)
            choice = Categorical(logits=self.actor(rows))
            action = choice.sample()
            extras = {"log_prob": choice.log_prob(action), "value": self.value(rows)}
        return action.numpy(), extras

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """The value of each observation."""
        return self.critic(obs).squeeze(1)


def advantages(batch: Transitions, next_value: np.ndarray) -> np.ndarray:
    """Generalised advantage estimates of transitions that are ordered by env."""
    value = batch.extras["value"]
    delta = batch.reward + DISCOUNT * next_value * ~batch.terminated - value
    # A row is followed by the next unless its episode, or the rows of its env, end there.
    goes_on = ~(batch.terminated | batch.truncated)
    goes_on[:-1] &= batch.env_id[1:] == batch.env_id[:-1]
    found, later = np.zeros_like(delta), 0.0
    for t in reversed(range(len(delta))):
        later = delta[t] + DISCOUNT * LAMBDA * later * goes_on[t]
        found[t] = later
    return found


def learn(model: ActorCritic, optimiser: torch.optim.Optimizer, batch: Transitions) -> None:
    """Some epochs of PPO over one rollout."""
    batch = batch[np.argsort(batch.env_id, kind="stable")]
    with torch.no_grad():
        next_value = model.value(torch.as_tensor(batch.next_obs)).numpy()
    gain = advantages(batch, next_value)
    columns = [
        torch.as_tensor(column)
        for column in (
            *(batch.obs, batch.action, batch.extras["log_prob"]),
            *(gain.astype(np.float32), (gain + batch.extras["value"]).astype(np.float32)),
        )
    ]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch)).split(BATCH):
            obs, action, old, advantage, target = (column[rows] for column in columns)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            choice = Categorical(logits=model.actor(obs))
            ratio = (choice.log_prob(action) - old).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            loss += 0.5 * (model.value(obs) - target).square().mean()
            loss -= 0.01 * choice.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()


def make_env() -> gym.Env:
    """Runs in a worker process; keeps the return of each episode in its infos."""
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


def main() -> None:
    """Collect and learn until the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=450, help="mean return of 50 episodes")
    parser.add_argument("--max-steps", type=int, default=400_000)
    parser.add_argument("--sync", action="store_true", help="step all envs, one after another")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    env_fns = [make_env] * args.num_envs
    if args.sync:
        pool = DummyVectorEnv(env_fns)
    else:
        pool = ShmemVectorEnv(env_fns, wait_num=args.num_envs // 2, num_processes=1)
    with pool:
        model = ActorCritic(pool.single_observation_space.shape[0], 2)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        collector = AsyncCollector(pool, model, seed=args.seed, keep_infos=["episode"])
        returns: list[float] = []
        started = time.perf_counter()
        for number, batch in enumerate(collector.steps(ROLLOUT), 1):
            returns += [info["episode"]["r"] for info in batch.next_info if "episode" in info]
            learn(model, optimiser, batch)
            mean, seconds = np.mean(returns[-50:]), time.perf_counter() - started
            steps = number * ROLLOUT
            if number % 5 == 0:
                print(f"{steps:8} steps  {seconds:6.1f} s  return {mean:6.1f}")
            if len(returns) >= 50 and mean >= args.goal:
                print(f"learnt after {steps} steps and {seconds:.1f} s")
                return
            if steps >= args.max_steps:
                raise SystemExit("not learnt")


if __name__ == "__main__":
    main()
