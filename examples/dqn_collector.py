"""DQN on batches of transitions from a pool whose envs never wait for each other.

    python examples/dqn_collector.py
    python examples/dqn_collector.py --sync  # the same in a plain synchronous loop, to compare

`collector.steps(batch_size=...)` yields transitions as the envs finish their steps. `next_obs` is
the last observation of an episode where one ends, so the replay buffer needs no special case. While
the network learns, the envs carry out the actions that were sent before.
"""

from __future__ import annotations

import argparse
import copy
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.collector import AsyncCollector, Transitions

DISCOUNT, CAPACITY, WARM_UP = 0.99, 100_000, 1_000
STEPS_PER_UPDATE, GRADIENT_STEPS, BATCH = 256, 128, 64


class ReplayBuffer:
    """The last transitions, overwritten from the oldest on."""

    def __init__(self, obs_size: int) -> None:
        self.obs, self.next_obs = (np.zeros((CAPACITY, obs_size), np.float32) for _ in range(2))
        self.action = np.zeros(CAPACITY, np.int64)
        self.reward = np.zeros(CAPACITY, np.float32)
        self.terminated = np.zeros(CAPACITY, np.float32)
        self.stored = 0

    def add(self, batch: Transitions) -> None:
        """Store a batch."""
        rows = (self.stored + np.arange(len(batch))) % CAPACITY
        for name in ("obs", "action", "reward", "terminated", "next_obs"):
            getattr(self, name)[rows] = getattr(batch, name)
        self.stored += len(batch)

    def sample(self, rng: np.random.Generator) -> list[torch.Tensor]:
        """Draw transitions: obs, action, reward, terminated, next_obs."""
        rows = rng.integers(min(self.stored, CAPACITY), size=BATCH)
        parts = (self.obs, self.action, self.reward, self.terminated, self.next_obs)
        return [torch.as_tensor(part[rows]) for part in parts]


class Policy:
    """Epsilon-greedy over the values of a network."""

    def __init__(self, network: nn.Module, num_actions: int, rng: np.random.Generator) -> None:
        self.network, self.num_actions, self.rng = network, num_actions, rng
        self.epsilon = 1.0

    @torch.no_grad()
    def __call__(self, obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        """Called by the collector with the envs that are ready."""
        greedy = self.network(torch.as_tensor(obs)).argmax(dim=1).numpy()
        random = self.rng.integers(self.num_actions, size=len(env_ids))
        return np.where(self.rng.random(len(env_ids)) < self.epsilon, random, greedy)


def learn(
    network: nn.Module,
    target: nn.Module,
    optimiser: torch.optim.Optimizer,
    sample: list[torch.Tensor],
) -> None:
    """One gradient step of double DQN."""
    obs, action, reward, terminated, next_obs = sample
    with torch.no_grad():
        best = network(next_obs).argmax(dim=1, keepdim=True)
        later = target(next_obs).gather(1, best).squeeze(1)
        expected = reward + DISCOUNT * (1 - terminated) * later
    value = network(obs).gather(1, action[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, expected)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10)
    optimiser.step()


class Returns:
    """The returns of the episodes, from the rewards of transitions in any order of the envs."""

    def __init__(self, num_envs: int) -> None:
        self.running = np.zeros(num_envs)
        self.finished: list[float] = []

    def add(self, batch: Transitions) -> None:
        """Take a batch into account."""
        over = batch.terminated | batch.truncated
        for i, reward, ended in zip(batch.env_id, batch.reward, over, strict=True):
            self.running[i] += reward
            if ended:
                self.finished.append(self.running[i])
                self.running[i] = 0

    def mean(self) -> float:
        """Over the last 50 episodes."""
        return float(np.mean(self.finished[-50:])) if self.finished else 0.0


def make_env() -> gym.Env:
    """Runs in a worker process."""
    return gym.make("CartPole-v1")


def main() -> None:
    """Collect and learn until the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=300, help="mean return of 50 episodes")
    parser.add_argument("--max-steps", type=int, default=150_000)
    parser.add_argument("--sync", action="store_true", help="step all envs, one after another")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env_fns = [make_env] * args.num_envs
    if args.sync:
        pool = DummyVectorEnv(env_fns)
    else:
        pool = ShmemVectorEnv(env_fns, wait_num=args.num_envs // 2, num_processes=1)
    with pool:
        obs_size, num_actions = pool.single_observation_space.shape[0], 2
        network = nn.Sequential(
            *(nn.Linear(obs_size, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()),
            nn.Linear(256, num_actions),
        )
        target = copy.deepcopy(network)
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        policy = Policy(network, num_actions, rng)
        buffer, returns = ReplayBuffer(obs_size), Returns(args.num_envs)
        collector = AsyncCollector(pool, policy, seed=args.seed)
        started = time.perf_counter()
        for batch in collector.steps(STEPS_PER_UPDATE):
            buffer.add(batch)
            returns.add(batch)
            policy.epsilon = max(0.04, 1 - buffer.stored / 8_000)
            if buffer.stored >= WARM_UP:
                for _ in range(GRADIENT_STEPS):
                    learn(network, target, optimiser, buffer.sample(rng))
                target.load_state_dict(network.state_dict())
            if buffer.stored % (20 * STEPS_PER_UPDATE) == 0:
                seconds = time.perf_counter() - started
                print(f"{buffer.stored:8} steps  {seconds:6.1f} s  return {returns.mean():6.1f}")
            if len(returns.finished) >= 50 and returns.mean() >= args.goal:
                seconds = time.perf_counter() - started
                print(f"learnt after {buffer.stored} steps and {seconds:.1f} s")
                return
            if buffer.stored >= args.max_steps:
                raise SystemExit("not learnt")


if __name__ == "__main__":
    main()
