"""PPO in one file, in whole and in partial batches, over a `VectorEnv` or over `send` and `recv`.

    python examples/ppo_torch.py
    python examples/ppo_torch.py --interface gymnasium
    python examples/ppo_torch.py --interface envpool --num-envs 8 --batch-size 4

With `gymnasium` and `vector` a step waits for all envs: Gymnasium's `make_vec` or ours. With
`envpool` each batch holds the envs that finished first, so envs advance at their own speed and each
env has its own column of the rollout. With `import envpool` this part runs on EnvPool too.

All of them reset an env in the step after the end of its episode: this step ignores the action, and
is no part of the training data.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2


class WholeBatches:
    """A `gymnasium.vector.VectorEnv` with EnvPool's `send` and `recv`."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.interface == "vector":
            from envpool_py.gymnasium import make_vec  # noqa: PLC0415
        else:
            from gymnasium import make_vec  # noqa: PLC0415
        self.envs = make_vec(args.env, num_envs=args.num_envs, vectorization_mode=args.mode)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space
        self.ids, self.seed, self.close = np.arange(args.num_envs), args.seed, self.envs.close

    def async_reset(self) -> None:
        """Reset all envs."""
        none = np.zeros(len(self.ids), dtype=bool)
        obs, info = self.envs.reset(seed=self.seed)
        self.rows = obs, none.astype(float), none, none, info

    def send(self, action: np.ndarray, _ids: np.ndarray) -> None:
        """Step all envs."""
        self.rows = self.envs.step(action)

    def recv(self) -> tuple[Any, ...]:
        """The rows of all envs."""
        *row, info = self.rows
        return *row, {**info, "env_id": self.ids}


def make_envs(args: argparse.Namespace) -> Any:
    """Make the envs: the loop below is the same for each interface."""
    if args.interface != "envpool":
        return WholeBatches(args)
    from envpool_py import envpool  # noqa: PLC0415

    return envpool.make(
        args.env,
        env_type="gymnasium",
        num_envs=args.num_envs,
        batch_size=args.batch_size,
        num_threads=args.num_threads,
        seed=args.seed,
    )


class Rollout:
    """What each env did: ``length[i]`` steps in column ``i``, of which the last is in flight."""

    def __init__(self, rows: int, num_envs: int, size: int) -> None:
        shape = rows, num_envs
        self.obs = np.zeros((*shape, size), np.float32)
        self.action = np.zeros(shape, np.int64)
        self.chance, self.reward = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.terminated, self.over, self.live = (np.zeros(shape, dtype=bool) for _ in range(3))
        self.length = np.zeros(num_envs, np.int64)

    def finish(self, ids: np.ndarray, reward: np.ndarray, *flags: np.ndarray) -> None:
        """Store the results of the steps in flight; no env has one after its first reset."""
        known = self.length[ids] > 0
        place = self.length[ids[known]] - 1, ids[known]
        terminated, truncated = flags
        self.reward[place] = reward[known]
        self.terminated[place] = terminated[known]
        self.over[place] = (terminated | truncated)[known]

    def begin(self, ids: np.ndarray, **step: np.ndarray) -> None:
        """Store steps that are being sent."""
        for name, values in step.items():
            getattr(self, name)[self.length[ids], ids] = values
        self.length[ids] += 1

    def keep_last(self) -> None:
        """Begin the next rollout with the steps in flight."""
        last = self.length - 1, np.arange(len(self.length))
        for part in (self.obs, self.action, self.chance, self.live):
            part[0] = part[last]
        self.length[:] = 1

    def advantages(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return GAE advantages, and a mask of the rows whose result is known."""
        gain, later = np.zeros_like(self.reward), np.zeros(len(self.length), np.float32)
        done = np.arange(len(gain))[:, None] < self.length - 1
        for t in range(len(gain) - 2, -1, -1):
            ahead = DISCOUNT * value[t + 1] * ~self.terminated[t]
            later = self.reward[t] + ahead - value[t] + DISCOUNT * LAMBDA * ~self.over[t] * later
            gain[t] = later = later * done[t]
        return gain, done & self.live


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


def main() -> None:
    """Collect, learn, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interface", choices=["vector", "gymnasium", "envpool"], default="vector")
    parser.add_argument("--mode", choices=["sync", "async"], default="sync", help="of a VectorEnv")
    parser.add_argument("--env", default="CartPole-v1", help="observes a vector, acts by an int")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4, help="of envpool")
    parser.add_argument("--num-threads", type=int, default=2, help="of envpool")
    parser.add_argument("--num-steps", type=int, default=128, help="of each env, per update")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = make_envs(args)
    size = envs.observation_space.shape[0]
    agent = Agent(size, int(envs.action_space.n))
    batch_size = args.batch_size if args.interface == "envpool" else args.num_envs
    num_batches = args.num_steps * args.num_envs // batch_size
    rollout = Rollout(num_batches + 1, args.num_envs, size)
    totals, returns = np.zeros(args.num_envs), []

    envs.async_reset()
    for update in range(args.updates):
        for _ in range(num_batches):
            obs, reward, terminated, truncated, info = envs.recv()
            ids, over = info["env_id"], terminated | truncated
            rollout.finish(ids, reward, terminated, truncated)
            action, chance = agent.act(obs)
            rollout.begin(ids, obs=obs, action=action, chance=chance, live=~over)
            envs.send(action, ids)
            totals[ids] += reward
            returns += totals[ids[over]].tolist()
            totals[ids[over]] = 0
        value = agent.value(rollout.obs)
        gain, live = rollout.advantages(value)
        rows = rollout.obs, rollout.action, rollout.chance, gain, gain + value
        agent.learn(*(each[live] for each in rows))
        rollout.keep_last()
        if update % 10 == 9 or update == args.updates - 1:
            steps = (update + 1) * num_batches * batch_size
            print(f"{steps:8} steps  mean return {np.mean(returns[-100:]):.1f}")
    envs.close()


if __name__ == "__main__":
    main()
