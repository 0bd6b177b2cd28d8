"""PPO on rollouts of a collector, in which no env waits for the slowest.

    python examples/ppo_rollouts.py
    python examples/ppo_rollouts.py --sync  # the same learner on whole batches, to compare

In place of the loop over `envs.step`, `collector.rollout(T)` returns the columns `[T, N]` of
observations, actions, rewards, log-probabilities and values. An env that is ready takes its next
step at once; one that has its T steps waits for the others. All else is PPO as ever.
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
from envpool_py.collector import AsyncCollector, Rollout

DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
STEPS, EPOCHS, BATCH, LEARNING_RATE = 128, 6, 256, 1e-3


class ActorCritic(nn.Module):
    """The policy and the value function."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()

        def mlp(outputs: int) -> nn.Sequential:
            hidden = nn.Linear(obs_size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
            return nn.Sequential(*hidden, nn.Linear(64, outputs))

        self.actor, self.critic = mlp(num_actions), mlp(1)

    @torch.no_grad()
    def forward(self, obs: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, dict]:
        """Called by the collector with the envs that are ready."""
        del env_ids
        rows = torch.as_tensor(obs)
        choice = Categorical(logits=self.actor(rows))
        action = choice.sample()
        extras = {"log_prob": choice.log_prob(action), "value": self.critic(rows).squeeze(1)}
        return action.numpy(), extras

    @torch.no_grad()
    def value(self, obs: np.ndarray) -> np.ndarray:
        """The value of each observation."""
        return self.critic(torch.as_tensor(obs)).squeeze(1).numpy()


def advantages(model: ActorCritic, rollout: Rollout) -> np.ndarray:
    """Generalised advantage estimates, `[T, N]`."""
    done, rewards = rollout.terminated | rollout.truncated, rollout.rewards.copy()
    # A truncated episode goes on beyond its last observation: its value stands for the rest.
    truncated = (rollout.truncated & ~rollout.terminated)[done]
    rewards[done] += DISCOUNT * truncated * model.value(rollout.final_obs)
    value, found = rollout.extras["value"], np.zeros_like(rewards)
    next_value, later = model.value(rollout.next_obs), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + DISCOUNT * next_value * ~done[t] - value[t]
        found[t] = later = delta + DISCOUNT * LAMBDA * later * ~done[t]
        next_value = value[t]
    return found


def learn(model: ActorCritic, optimiser: torch.optim.Optimizer, rollout: Rollout) -> None:
    """Some epochs of PPO over one rollout."""
    gain = advantages(model, rollout).astype(np.float32)
    target = gain + rollout.extras["value"]
    columns = [rollout.obs, rollout.actions, rollout.extras["log_prob"], gain, target]
    columns = [torch.as_tensor(each).flatten(0, 1) for each in columns]
    for _ in range(EPOCHS):
        for rows in torch.randperm(gain.size).split(BATCH):
            obs, action, old, advantage, target = (column[rows] for column in columns)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            choice = Categorical(logits=model.actor(obs))
            ratio = (choice.log_prob(action) - old).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            loss += 0.5 * (model.critic(obs).squeeze(1) - target).square().mean()
            loss -= ENTROPY * choice.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()


def make_env() -> gym.Env:
    """Runs in a worker process; puts the return of each episode into its last info."""
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


def main() -> None:
    """Collect and learn until the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=450, help="mean return of 50 episodes")
    parser.add_argument("--max-steps", type=int, default=300_000)
    parser.add_argument("--sync", action="store_true", help="wait for all envs at each step")
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
        optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        collector = AsyncCollector(pool, model, seed=args.seed, keep_infos=["episode"])
        returns: list[float] = []
        started, steps = time.perf_counter(), 0
        while steps < args.max_steps:
            rollout = collector.rollout(STEPS)
            steps += STEPS * args.num_envs
            infos = rollout.next_infos.flat
            returns += [info["episode"]["r"] for info in infos if "episode" in info]
            learn(model, optimiser, rollout)
            mean, seconds = np.mean(returns[-50:]), time.perf_counter() - started
            if steps % (10 * STEPS * args.num_envs) == 0:
                print(f"{steps:8} steps  {seconds:6.1f} s  return {mean:6.1f}")
            if len(returns) >= 50 and mean >= args.goal:
                print(f"learnt after {steps} steps and {seconds:.1f} s")
                return
        raise SystemExit("not learnt")


if __name__ == "__main__":
    main()
