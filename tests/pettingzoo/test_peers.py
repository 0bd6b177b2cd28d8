"""PettingZoo's own tests on our envs and pools, and Tianshou's collecting over them."""

import contextlib
import sys
import warnings

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.by_hand import row_of
from tests.pettingzoo.envs import KAZ, make_aec, make_parallel

with warnings.catch_warnings():
    # They import an env in the way of old, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

HAS_TIANSHOU = sys.version_info >= (3, 11)  # tianshou 2.0.1 asks for it
if HAS_TIANSHOU:
    from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv as TheirDummyVectorEnv
    from tianshou.env import PettingZooEnv as TheirPettingZooEnv

PARALLELS = ["simple_spread", "simple_adversary", "sisl/multiwalker-v9", KAZ, "classic/rps-v2"]


@pytest.mark.parametrize("name", [*PARALLELS, "classic/tictactoe-v3", "table"])
def test_a_wrapped_env_is_a_pettingzoo_env(name):
    env = PettingZooEnv(make_aec(name), heterogeneous=True)
    api_test(env, num_cycles=30)
    env.close()
    seed_test(lambda: PettingZooEnv(make_aec(name), heterogeneous=True), num_cycles=30)


class View(ParallelEnv):
    """Env 0 of a pool, as a parallel env."""

    render_mode = None

    def __init__(self, pool):
        self.pool = pool
        self.possible_agents, self.metadata = pool.possible_agents, pool.metadata
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        self.agents = []

    def recv(self):
        before, row = self.agents, row_of(self.pool.recv(), 0)
        self.agents = [agent for agent, alive in row.info["alive"].items() if alive]
        there = [a for a in self.possible_agents if a in before or a in self.agents]
        infos = {agent: dict(row.info["agent_infos"].get(agent, {})) for agent in there}
        for agent, mask in row.info.get("action_mask", {}).items():
            # Where the env itself gives no mask, all is legal, and sampling needs no mask.
            if agent in there and not mask.all():
                infos[agent]["action_mask"] = mask.astype("int8")
        facts = ({a: own[a].item() for a in there} for own in row[1:4])
        return {a: row.obs[a] for a in there}, *facts, infos

    def reset(self, seed=None, options=None):
        self.agents = []
        self.pool.send_reset([0], seed=None if seed is None else [seed], options=options)
        obs, _, _, _, infos = self.recv()
        return obs, infos

    def step(self, actions):
        self.pool.send([actions], [0])
        return self.recv()

    def state(self):
        return self.pool.state([0])[0]


@pytest.mark.parametrize("name", PARALLELS)
def test_an_env_of_the_pool_is_a_pettingzoo_env(name):
    with contextlib.ExitStack() as stack:

        def view():
            pool = ParallelVectorEnv([lambda: make_parallel(name)] * 2, "dummy")
            return View(stack.enter_context(pool))

        parallel_api_test(view(), num_cycles=30)
        parallel_seed_test(view, num_cycles=10)
        api_test(parallel_to_aec(view()), num_cycles=15)


def collected(pool, env):
    """Return the buffer of a few steps of two players who choose at random."""
    np.random.seed(1)  # noqa: NPY002 - what Tianshou's random player draws from
    players = [MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=env.action_space)] * 2
    algorithm = MultiAgentOffPolicyAlgorithm(algorithms=players, env=env)
    buffer = VectorReplayBuffer(300, len(pool))
    Collector(algorithm, pool, buffer).collect(n_step=90, reset_before_collect=True)
    pool.close()
    return buffer


@pytest.mark.skipif(not HAS_TIANSHOU, reason="tianshou 2.0.1 asks for Python 3.11")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_the_buffer_of_tianshous_collector(kind):
    ours, theirs = (
        lambda cls=cls: cls(make_aec("classic/tictactoe-v3"))
        for cls in (PettingZooEnv, TheirPettingZooEnv)
    )
    found = collected(kind([ours] * 3), ours())
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
