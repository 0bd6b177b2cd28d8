"""Tianshou's multi-agent training, unmodified, over our pools."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.places import BACKENDS, POOLS, make_aec

if sys.version_info >= (3, 11):  # tianshou 2.0.1 asks for it
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv as TheirDummyVectorEnv
    from tianshou.env import PettingZooEnv as TheirPettingZooEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="tianshou 2.0.1 asks for Python 3.11"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def ours() -> Any:
    return PettingZooEnv(make_aec("classic/tictactoe-v3"))


def theirs() -> Any:
    return TheirPettingZooEnv(make_aec("classic/tictactoe-v3"))


def random_player(env: Any) -> Any:
    return MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=env.action_space)


def learner(env: Any) -> Any:
    # As Tianshou's own example reads the space of what a player sees.
    seen = env.observation_space.spaces["observation"]
    net = Net(state_shape=seen.shape, action_shape=env.action_space.n, hidden_sizes=[128, 128])
    policy = DiscreteQLearningPolicy(
        model=net,
        action_space=env.action_space,
        observation_space=seen,
        eps_training=0.1,
        eps_inference=0.0,
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=2,  # until it is the same player's turn again
        target_update_freq=300,
    )


def collected(pool: Any, env: Any) -> Any:
    """Return the buffer of a few steps of two players who choose at random."""
    np.random.seed(1)  # noqa: NPY002 - what Tianshou's random player draws from
    algorithm = MultiAgentOffPolicyAlgorithm(
        algorithms=[random_player(env), random_player(env)], env=env
    )
    buffer = VectorReplayBuffer(300, len(pool))
    Collector(algorithm, pool, buffer).collect(n_step=90, reset_before_collect=True)
    pool.close()
    return buffer


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_buffer_is_that_of_tianshou(backend: str) -> None:
    found = collected(POOLS[backend]([ours] * 3), ours())
    wanted = collected(TheirDummyVectorEnv([theirs] * 3), theirs())
    assert len(found) == len(wanted) == 90
    assert found.obs.agent_id.tolist() == wanted.obs.agent_id.tolist()
    for name in ("obs.obs", "obs.mask", "obs_next.obs", "act", "terminated", "truncated"):
        pair = [found, wanted]
        for part in name.split("."):
            pair = [getattr(one, part) for one in pair]
        assert np.array_equal(*map(np.asarray, pair)), name
    # Theirs keeps the rewards of an earlier episode after a reset: only ends are comparable.
    ends = np.flatnonzero(found.terminated)
    assert len(ends) >= 6
    assert np.array_equal(found.rew[ends], np.asarray(wanted.rew, float)[ends])
    assert not found.rew[~found.terminated].any(), "tic-tac-toe rewards its last move alone"


def test_a_player_learns_to_beat_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # a thread that would outlive the test
    torch.set_num_threads(1)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    env = ours()
    algorithm = MultiAgentOffPolicyAlgorithm(algorithms=[learner(env), random_player(env)], env=env)
    training = POOLS["shmem"]([ours] * 8, num_processes=2)
    testing = POOLS["dummy"]([ours] * 20)
    training_collector = Collector(
        algorithm, training, VectorReplayBuffer(10_000, 8), exploration_noise=True
    )
    training_collector.collect(n_step=512, random=False, reset_before_collect=True)
    test_collector = Collector(algorithm, testing)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=training_collector,
            test_collector=test_collector,
            max_epochs=4,
            epoch_num_steps=1_000,
            collection_step_num_env_steps=48,
            test_step_num_episodes=20,
            batch_size=64,
            update_step_num_gradient_steps_per_sample=0.25,
            multi_agent_return_reduction=lambda returns: returns[:, 0],
            verbose=False,
            show_progress=False,
        )
    )
    result = test_collector.collect(n_episode=100, reset_before_collect=True)
    wins = (result.returns[:, 0] > 0).mean()
    assert wins >= 0.6
    training.close()
    testing.close()
