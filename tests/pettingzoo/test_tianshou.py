"""Tianshou's multi-agent collecting, unmodified, over our pools; an example trains with it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.places import BACKENDS, POOLS, make_aec

if sys.version_info >= (3, 11):  # tianshou 2.0.1 asks for it
    from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv as TheirDummyVectorEnv
    from tianshou.env import PettingZooEnv as TheirPettingZooEnv

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
