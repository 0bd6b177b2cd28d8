"""What is built on pools gives over actors what it gives in process."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
import ray

from envpool_py import DummyVectorEnv, ParallelVectorEnv, VectorEnvNormObs, envpool
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.gymnasium import VectorEnv
from envpool_py.pettingzoo import PettingZooEnv
from envpool_py.sb3 import PoolVecEnv
from tests.pettingzoo.envs import MeadowEnv, TableEnv
from tests.ray.plugin import PLACE
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT, run_python
from tests.support.reference import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CARTPOLE = [partial(gym.make, "CartPole-v1", disable_env_checker=True)] * 4
ACTIONS = np.random.default_rng(0).integers(2, size=(40, 4))
SAME_STEP = {"autoreset_mode": "same_step"}


def test_collect_on_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "a.npz")
    limits = ["--num-envs", "4", "--wait-num", "2", "--steps", "200", "--seed", "3"]
    backend = ["--backend", "ray", "--num-processes", "2"]
    assert main(["collect", "CartPole-v1", *limits, *backend, "--out", out]) == 0
    check_by_hand(load(out), CARTPOLE, seed=3)
    assert main(["collect", "CartPole-v1", *limits, "--address", "auto"]) == 2


def wrapped(make: Callable[..., Any]) -> Iterator[Any]:
    with VectorEnvNormObs(make(CARTPOLE)) as pool:
        yield pool.reset(seed=0)[0]
        for action in ACTIONS[:5]:
            yield pool.step(action)[:4]


def sb3(make: Callable[..., Any]) -> Iterator[Any]:
    venv = PoolVecEnv(make(CARTPOLE, **SAME_STEP))
    venv.seed(1)
    yield venv.reset()
    for action in ACTIONS:
        yield venv.step(action)
    venv.close()


def gymnasium(make: Callable[..., Any]) -> Iterator[Any]:
    envs = VectorEnv(make(CARTPOLE, **SAME_STEP, columns=True))
    yield envs.reset(seed=1)
    for action in ACTIONS:
        yield envs.step(action)
    envs.close()


def as_envpool(make: Callable[..., Any]) -> Iterator[Any]:
    options = {"backend": "dummy" if make is DummyVectorEnv else "ray"}
    options |= {} if make is DummyVectorEnv else {"num_cpus": 0.01, "num_processes": 2}
    envs = envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=1, pool_options=options)
    yield envs.reset()
    for action in ACTIONS:
        yield envs.step(action)
    envs.close()


def parallel(make: Callable[..., Any]) -> Iterator[Any]:
    backend = "dummy" if make is DummyVectorEnv else "ray"
    options = {} if make is DummyVectorEnv else {"num_cpus": 0.01, "num_processes": 2}
    with ParallelVectorEnv([MeadowEnv] * 3, backend, **options) as pool:
        yield pool.reset(seed=4)
        for agent in pool.possible_agents:
            pool.action_space(agent).seed(1)
        for _ in range(6):
            yield pool.step(
                {
                    agent: np.stack([pool.action_space(agent).sample() for _ in range(3)])
                    for agent in pool.possible_agents
                }
            )


def turn_based(make: Callable[..., Any]) -> Iterator[Any]:
    fns = [lambda: PettingZooEnv(TableEnv())] * 3
    with make(fns, autoreset_mode="next_step") as pool:
        yield pool.reset(seed=2)
        for space in pool.action_space:
            space.seed(1)
        over = np.zeros(3, bool)
        for _ in range(24):
            spaces = zip(pool.action_space, over, strict=True)
            row = pool.step([None if dead else space.sample() for space, dead in spaces])
            over = row[2] | row[3]
            yield row


@pytest.mark.parametrize("drive", [wrapped, sb3, gymnasium, as_envpool, parallel, turn_based])
def test_rows_are_those_of_envs_in_process(drive: Callable[..., Iterator[Any]]) -> None:
    ours, theirs = list(drive(PLACE)), list(drive(DummyVectorEnv))
    assert len(ours) > 5
    for left, right in zip(ours, theirs, strict=True):
        assert same(left, right)


def test_the_example_shows_the_nodes_and_the_speed() -> None:
    address = ray.get_runtime_context().gcs_address
    options = ["--num-envs", "4", "--envs-per-actor", "2", "--num-cpus", "0.01", "--seconds", "0.2"]
    example = ROOT / "examples" / "ray_cluster.py"
    printed = run_python(example, "--address", address, *options, env=os.environ)
    lines = printed.splitlines()
    assert [line.partition(": ")[2] for line in lines[:1]] == ["4 envs"]
    assert lines[-2] == "0 episodes lost"
    assert "steps a second" in lines[-1]
