"""What is built on pools, over actors: collector, command line, wrappers, SB3, multi-agent envs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from envpool_py import DummyVectorEnv, ParallelVectorEnv, RayVectorEnv, VectorEnvNormObs
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.sb3 import PoolVecEnv
from tests.pettingzoo.envs import MeadowEnv
from tests.support.episodes import check_by_hand
from tests.support.reference import same

if TYPE_CHECKING:
    from pathlib import Path

CARTPOLE = [partial(gym.make, "CartPole-v1", disable_env_checker=True)] * 4
OPTIONS: dict[str, Any] = {"envs_per_actor": 2, "num_cpus": 0.01}


def test_collect_on_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "a.npz")
    limits = ["--num-envs", "4", "--wait-num", "2", "--steps", "200", "--seed", "3"]
    backend = ["--backend", "ray", "--num-processes", "2"]
    assert main(["collect", "CartPole-v1", *limits, *backend, "--out", out]) == 0
    check_by_hand(load(out), CARTPOLE, seed=3)
    assert main(["collect", "CartPole-v1", *limits, "--address", "auto"]) == 2


def test_normalised_observations_and_sb3_are_those_of_another_backend() -> None:
    rng = np.random.default_rng(0)
    actions = [rng.integers(2, size=4) for _ in range(40)]

    def drive(kind: Any, **options: Any) -> list[Any]:
        seen: list[Any] = []
        with VectorEnvNormObs(kind(CARTPOLE, **options)) as pool:
            seen.append(pool.reset(seed=0)[0])
            seen += [pool.step(action)[:4] for action in actions[:5]]
        venv = PoolVecEnv(kind(CARTPOLE, autoreset_mode="same_step", **options))
        venv.seed(1)
        seen.append(venv.reset())
        seen += [venv.step(action) for action in actions]
        venv.close()
        return seen

    ours, theirs = drive(RayVectorEnv, **OPTIONS), drive(DummyVectorEnv)
    for left, right in zip(ours, theirs, strict=True):
        assert all(map(np.array_equal, left[:3], right[:3]))


def test_multi_agent_envs_are_those_of_another_backend() -> None:
    def drive(backend: str, **options: Any) -> list[Any]:
        with ParallelVectorEnv([MeadowEnv] * 3, backend=backend, **options) as pool:
            seen = [pool.reset(seed=4)]
            for agent in pool.possible_agents:
                pool.action_space(agent).seed(1)
            for _ in range(6):
                actions = {
                    agent: np.stack([pool.action_space(agent).sample() for _ in range(3)])
                    for agent in pool.possible_agents
                }
                seen.append(pool.step(actions)[:4])
        return seen

    for left, right in zip(
        drive("ray", num_processes=2, num_cpus=0.01), drive("dummy"), strict=True
    ):
        assert same(left[0], right[0])
