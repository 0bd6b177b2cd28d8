"""DQN with n-step returns on batches of transitions from a pool whose envs never wait.

    python examples/dqn_collector.py
    python examples/dqn_collector.py --n 1  # plain DQN
    python examples/dqn_collector.py --sync  # the same in a plain synchronous loop, to compare

`collector.steps(batch_size=...)` yields transitions as the envs finish their steps. Those of each
env are in order, so n-step returns are computed for each env on its own, whatever the other envs
do. `next_obs` is the last observation of an episode where one ends.

The values of good states differ little (about 100 here, for each action), so noise in them decides
what the greedy policy does. A first version copied its target network after every 128 gradient
steps, with a learning rate of 1e-3: it reached 500 after 40 000 steps, and was back at 28 after
90 000. The slow target network (`TAU`), half the learning rate, twice the batch and n-step returns
hold 500 from 40 000 to 100 000 steps. Partial batches are not the cause: `--sync` does the same.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from envpool_py import DummyVectorEnv, ShmemVectorEnv, evaluate
from envpool_py.collector import AsyncCollector, Transitions

DISCOUNT, CAPACITY, WARM_UP, TAU = 0.99, 50_000, 1_000, 0.005
STEPS_PER_UPDATE, GRADIENT_STEPS, BATCH, LEARNING_RATE = 64, 32, 128, 5e-4


class NStepBuffer:
    """Replays `(obs, action, n-step return, discount, next_obs)`, the oldest overwritten first."""

    def __init__(self, obs_size: int, num_envs: int, n: int) -> None:
        self.obs, self.next_obs = (np.zeros((CAPACITY, obs_size), np.float32) for _ in range(2))
        self.action = np.zeros(CAPACITY, np.int64)
        self.reward, self.discount = (np.zeros(CAPACITY, np.float32) for _ in range(2))
        self.stored = 0
        # Of each env, the steps whose n-step return is not complete: obs, action, reward.
        self.open: list[deque] = [deque() for _ in range(num_envs)]
        self.n = n

    def add(self, batch: Transitions) -> None:
        """Store what is complete with these transitions."""
        for t, i in enumerate(batch.env_id):
            steps = self.open[i]
            steps.append((batch.obs[t], batch.actions[t], batch.rewards[t]))
            over = batch.terminated[t] or batch.truncated[t]
            while len(steps) == self.n or (over and steps):
                # Nothing follows a termination; after a truncation the value of next_obs does.
                discount = 0.0 if batch.terminated[t] else DISCOUNT ** len(steps)
                total = sum(DISCOUNT**k * reward for k, (_, _, reward) in enumerate(steps))
                obs, action, _ = steps.popleft()
                row = self.stored % CAPACITY
                self.obs[row], self.next_obs[row] = obs, batch.next_obs[t]
                self.action[row], self.reward[row], self.discount[row] = action, total, discount
                self.stored += 1

    def sample(self, rng: np.random.Generator) -> list[torch.Tensor]:
        """Draw a batch."""
        rows = rng.integers(min(self.stored, CAPACITY), size=BATCH)
        parts = (self.obs, self.action, self.reward, self.discount, self.next_obs)
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
    """One gradient step of double DQN, and one of the target network towards the other."""
    obs, action, reward, discount, next_obs = sample
    with torch.no_grad():
        best = network(next_obs).argmax(dim=1, keepdim=True)
        expected = reward + discount * target(next_obs).gather(1, best).squeeze(1)
    value = network(obs).gather(1, action[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, expected)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10)
    optimiser.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, TAU)


def make_env() -> gym.Env:
    """Runs in a worker process."""
    return gym.make("CartPole-v1")


def main() -> None:
    """Learn, and evaluate the greedy policy now and then, until it has held the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--n", type=int, default=3, help="steps of a return")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=450, help="mean return of 20 episodes")
    parser.add_argument("--hold", type=int, default=5, help="evaluations in a row with the goal")
    parser.add_argument("--max-steps", type=int, default=100_000)
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
    with pool, DummyVectorEnv(env_fns) as test_pool:
        obs_size, num_actions = pool.single_observation_space.shape[0], 2
        network = nn.Sequential(
            *(nn.Linear(obs_size, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, num_actions),
        )
        target = copy.deepcopy(network)
        optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        policy, greedy = (Policy(network, num_actions, rng) for _ in range(2))
        greedy.epsilon = 0.0
        buffer = NStepBuffer(obs_size, args.num_envs, args.n)
        collector = AsyncCollector(pool, policy, seed=args.seed)
        started, held = time.perf_counter(), 0
        for number, batch in enumerate(collector.steps(STEPS_PER_UPDATE), 1):
            steps = number * STEPS_PER_UPDATE
            buffer.add(batch)
            policy.epsilon = max(0.05, 1 - steps / 10_000)
            if buffer.stored < WARM_UP:
                continue
            for _ in range(GRADIENT_STEPS):
                learn(network, target, optimiser, buffer.sample(rng))
            if number % 80 == 0:
                result = evaluate(test_pool, greedy, episodes=20, seed=1_000)
                seconds = time.perf_counter() - started
                print(f"{steps:8} steps  {seconds:6.1f} s  {result}")
                held = held + 1 if result.returns.mean() >= args.goal else 0
                if held == args.hold:
                    print(f"learnt after {steps} steps and {seconds:.1f} s")
                    return
            if steps >= args.max_steps:
                raise SystemExit("not learnt")


if __name__ == "__main__":
    main()
