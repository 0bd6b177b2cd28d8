"""Tic-tac-toe by self-play with Tianshou: two players learn from each other.

Both players are DQNs that see the board and the mask of legal moves. At the end the first player
plays against a random player.

python examples/tictactoe_self_play.py
"""

from __future__ import annotations

import argparse

import numpy as np
import pettingzoo
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.pettingzoo import PettingZooEnv


def make_env() -> PettingZooEnv:
    """Runs in a worker process."""
    return PettingZooEnv(pettingzoo.make("aec", "classic/tictactoe-v3"))


def make_player(env: PettingZooEnv) -> DQN:
    """A player that learns."""
    seen = env.observation_space["obs"]
    net = Net(state_shape=seen.shape, action_shape=env.action_space.n, hidden_sizes=[128, 128])
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, observation_space=seen, eps_training=0.1
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=2,  # until it is the same player's turn again
        target_update_freq=320,
    )


def play(first: DQN, games: int) -> float:
    """The share of games that ``first`` wins against a random player."""
    env = make_env()
    second = MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=env.action_space)
    players = MultiAgentOffPolicyAlgorithm(algorithms=[first, second], env=env)
    with DummyVectorEnv([make_env] * 20) as pool:
        result = Collector(players, pool).collect(n_episode=games, reset_before_collect=True)
    return float((result.returns[:, 0] > 0).mean())


def main() -> None:
    """Train, and play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--epoch-steps", type=int, default=2_000)
    parser.add_argument("--games", type=int, default=200, help="to tell how good the player is")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - Tianshou draws from it
    env = make_env()
    players = MultiAgentOffPolicyAlgorithm(algorithms=[make_player(env), make_player(env)], env=env)
    first = players.get_algorithm("player_1")
    print(f"untrained, the first player wins {play(first, args.games):.2f} of the games")
    with ShmemVectorEnv([make_env] * args.num_envs, num_processes=2) as pool:
        collector = Collector(
            players, pool, VectorReplayBuffer(20_000, args.num_envs), exploration_noise=True
        )
        collector.collect(n_step=640, reset_before_collect=True)
        players.run_training(
            OffPolicyTrainerParams(
                training_collector=collector,
                max_epochs=args.epochs,
                epoch_num_steps=args.epoch_steps,
                collection_step_num_env_steps=48,
                batch_size=64,
                update_step_num_gradient_steps_per_sample=0.2,
                # The returns of the two players sum to zero, so report that of the first.
                multi_agent_return_reduction=lambda returns: returns[:, 0],
                verbose=False,
                show_progress=False,
            )
        )
    print(f"trained, the first player wins {play(first, args.games):.2f} of the games")


if __name__ == "__main__":
    main()
