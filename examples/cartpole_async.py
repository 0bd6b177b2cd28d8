"""A small policy, in NumPy alone, that learns CartPole on the asynchronous collector.

    python examples/cartpole_async.py

The actor is a network of one hidden layer, trained by policy gradient (PPO's clipped objective,
with the mean return at each time step as the baseline). Episodes that run during an update began
with older weights. So the actor stores the probability of each action at the time of the action,
and the objective is clipped.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np

from envpool_py import ShmemVectorEnv
from envpool_py.collector import AsyncCollector, Episode

SCALE = np.array([2.4, 2.0, 0.2, 2.0])  # typical sizes of the four observations
DISCOUNT = 0.99
HIDDEN = 32


class Actor:
    """The policy: action 1 with the probability that the network gives."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights = {
            "w1": self.rng.normal(size=(4, HIDDEN)) / 2,
            "b1": np.zeros(HIDDEN),
            "w2": np.zeros(HIDDEN),
            "b2": np.zeros(1),
        }
        self.moments = {
            name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self.weights.items()
        }
        self.updates = 0
        self.taken: list[list[float]] = [[] for _ in range(num_envs)]

    def start_episodes(self, env_ids: np.ndarray) -> None:
        """Called by the collector when episodes begin."""
        for i in env_ids:
            self.taken[i] = []

    def __call__(self, obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        """Called by the collector with whichever envs are ready."""
        _, one = self.forward(obs)
        actions = self.rng.random(len(obs)) < one
        for i, p in zip(env_ids, np.where(actions, one, 1 - one), strict=True):
            self.taken[i].append(p)
        return actions.astype(np.int64)

    def forward(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hidden layer, and the probability of action 1."""
        w = self.weights
        hidden = np.tanh(obs / SCALE @ w["w1"] + w["b1"])
        return hidden, 1 / (1 + np.exp(-(hidden @ w["w2"] + w["b2"])))

    def update(
        self, obs: np.ndarray, actions: np.ndarray, old: np.ndarray, gains: np.ndarray
    ) -> None:
        """Some passes over one batch of steps."""
        for _ in range(10):
            for rows in np.array_split(self.rng.permutation(len(obs)), max(1, len(obs) // 512)):
                hidden, one = self.forward(obs[rows])
                ratio = np.where(actions[rows], one, 1 - one) / old[rows]
                gain = gains[rows]
                # Beyond the clip there is nothing to gain by going further the same way.
                useful = ~((gain > 0) & (ratio > 1.2) | (gain < 0) & (ratio < 0.8))
                slope = useful * gain * ratio * (actions[rows] - one) / len(rows)
                back = np.outer(slope, self.weights["w2"]) * (1 - hidden**2)
                self.ascend(
                    w1=(obs[rows] / SCALE).T @ back,
                    b1=back.sum(axis=0),
                    w2=hidden.T @ slope,
                    b2=slope.sum(keepdims=True),
                )

    def ascend(self, rate: float = 3e-3, **gradients: np.ndarray) -> None:
        """One step of Adam."""
        self.updates += 1
        for name, gradient in gradients.items():
            mean, square = self.moments[name]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            fair = mean / (1 - 0.9**self.updates), square / (1 - 0.999**self.updates)
            self.weights[name] += rate * fair[0] / (np.sqrt(fair[1]) + 1e-8)


def returns_to_go(rewards: np.ndarray) -> np.ndarray:
    """The discounted return from each step on."""
    found = np.zeros(len(rewards) + 1)
    for t in range(len(rewards) - 1, -1, -1):
        found[t] = rewards[t] + DISCOUNT * found[t + 1]
    return found[:-1]


def learn_from(actor: Actor, batch: list[tuple[Episode, list[float]]]) -> None:
    """Update the actor on some whole episodes."""
    to_go = [returns_to_go(episode.rewards) for episode, _ in batch]
    longest = max(map(len, to_go))
    table = np.full((len(to_go), longest), np.nan)
    for row, values in zip(table, to_go, strict=True):
        row[: len(values)] = values
    baseline = np.nanmean(table, axis=0)
    gains = np.concatenate([values - baseline[: len(values)] for values in to_go])
    actor.update(
        np.concatenate([episode.obs[:-1] for episode, _ in batch]),
        np.concatenate([episode.actions for episode, _ in batch]),
        np.concatenate([probabilities for _, probabilities in batch]),
        gains / (gains.std() + 1e-8),
    )


def make_env() -> gym.Env:
    """Runs in a worker process."""
    return gym.make("CartPole-v1")


def main() -> None:
    """Collect, learn, and stop when the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=475, help="mean return of 100 episodes")
    parser.add_argument("--max-steps", type=int, default=2_000_000)
    args = parser.parse_args()

    actor = Actor(args.num_envs, args.seed)
    batch: list[tuple[Episode, list[float]]] = []
    returns: list[float] = []
    started = time.perf_counter()
    wait_num = max(1, args.num_envs // 2)
    with ShmemVectorEnv([make_env] * args.num_envs, wait_num, num_processes=2) as pool:
        collector = AsyncCollector(pool, actor, seed=args.seed)
        for episode in collector.episodes():
            # The env's next episode has not begun, so ``taken`` belongs to the ended episode.
            batch.append((episode, actor.taken[episode.env_id]))
            returns.append(episode.total_reward)
            if len(batch) == 32:
                learn_from(actor, batch)
                batch.clear()
                mean = float(np.mean(returns[-100:]))
                seconds = time.perf_counter() - started
                print(f"{collector.num_steps:8} steps  {seconds:5.1f} s  mean return {mean:5.1f}")
                if len(returns) >= 100 and mean >= args.goal:
                    print("learnt")
                    return
                if collector.num_steps > args.max_steps:
                    raise SystemExit("not learnt")


if __name__ == "__main__":
    main()
