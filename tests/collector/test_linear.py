"""The work for a row does not grow with the batch, the envs or the agents: lines are counted."""

import itertools
import sys
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from envpool_py import AsyncCollector, DummyVectorEnv, ParallelVectorEnv, evaluate
from envpool_py.collector import Transitions
from envpool_py.errors import PACKAGE_FOLDER
from envpool_py.sb3 import DummyVecEnv
from tests.support.envs import CountEnv


def lines(function):
    """Return how many lines of the package a call runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(PACKAGE_FOLDER) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def pool_of(n, length=8, **options):
    return DummyVectorEnv([partial(CountEnv, i, length) for i in range(n)], **options)


def zeros(_obs, env_ids):
    return np.zeros(len(env_ids), int)


def of_steps(size, rows=1024):
    """Take batches of some transitions from 16 envs."""
    with pool_of(16) as pool:
        batches = AsyncCollector(pool, zeros).steps(size)
        next(batches)
        return lines(lambda: [*itertools.islice(batches, rows // size)]) / rows


def of_episodes(n):
    with pool_of(n, wait_num=1) as pool:
        collector = AsyncCollector(pool, zeros)
        return lines(lambda: [*collector.episodes(n)]) / (8 * n)


def of_rollout(n):
    with pool_of(n, wait_num=1) as pool:
        collector = AsyncCollector(pool, zeros)
        return lines(lambda: collector.rollout(8)) / (8 * n)


def of_evaluation(n):
    with pool_of(n, wait_num=1, autoreset_mode="same_step") as pool:
        return lines(lambda: evaluate(pool, zeros, episodes=n)) / (8 * n)


def of_partial_batches(n):
    with pool_of(n, 999, wait_num=1, validate="off") as pool:  # which checks the first rows
        pool.reset()
        pool.send([0] * n)

        def some_steps():
            for _ in range(100):
                pool.recv()
                pool.send([0], id=pool.batch_ids)

        return lines(some_steps)


def of_vec_envs(n):
    with DummyVecEnv([partial(CountEnv, i, 8) for i in range(n)]) as venv:
        venv.reset()
        return lines(lambda: [venv.step(np.zeros(n, int)) for _ in range(16)]) / (16 * n)


class CrowdEnv(ParallelEnv):
    """``n`` agents that never move."""

    metadata = {"name": "crowd"}  # noqa: RUF012

    def __init__(self, n):
        self.possible_agents = [f"agent_{i}" for i in range(n)]
        self.spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.spaces[agent]

    action_space = observation_space

    def of_all(self, value):
        return dict.fromkeys(self.agents, value)

    def reset(self, seed=None, options=None):  # noqa: ARG002
        self.agents = list(self.possible_agents)
        return self.of_all(0), {agent: {} for agent in self.agents}

    def step(self, actions):  # noqa: ARG002
        infos = {agent: {} for agent in self.agents}
        return self.of_all(1), self.of_all(0.5), self.of_all(False), self.of_all(False), infos


def of_agents(n):
    with ParallelVectorEnv([partial(CrowdEnv, n)], backend="dummy") as pool:
        pool.reset()
        actions = {agent: np.zeros(1, int) for agent in pool.possible_agents}
        return lines(lambda: [pool.step(actions) for _ in range(3)]) / (3 * n)


COUNTS = {
    "steps": (of_steps, 32, 512),
    "episodes": (of_episodes, 4, 64),
    "rollout": (of_rollout, 4, 64),
    "evaluate": (of_evaluation, 4, 64),
    "recv": (of_partial_batches, 4, 64),
    "DummyVecEnv": (of_vec_envs, 4, 64),
    "agents": (of_agents, 4, 64),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_work_for_a_row_does_not_grow(name):
    count, few, many = COUNTS[name]
    assert 0 < count(many) < 1.15 * count(few)


@pytest.mark.parametrize("size", [1, 7, 100, None])
def test_each_transition_is_copied_once(size, monkeypatch):
    """Also those of a batch of the pool that fills many of the batches yielded."""
    joined, join = [], Transitions.join

    def counted(first, *others):
        joined.append(len(first) + sum(map(len, others)))
        return join(first, *others)

    monkeypatch.setattr(Transitions, "join", counted)
    with pool_of(64) as pool:
        found = [*itertools.islice(AsyncCollector(pool, zeros).steps(size), 20)]
    assert joined == [len(batch) for batch in found]
    assert size is None or set(joined) == {size}
