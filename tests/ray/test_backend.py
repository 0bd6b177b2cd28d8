"""What only actors have; the tests of every backend run on Ray too, by `tests.ray.plugin`."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray

from envpool_py import RayEnvWorker, RayVectorEnv
from envpool_py.testing import EnvWorkerContract
from tests.ray.plugin import PLACE
from tests.support import envs


@pytest.mark.parametrize("on_error", ["restart", "replay"])
def test_episode_seeds_hold_over_the_death_of_an_actor(on_error: str) -> None:
    fns = [partial(envs.RandomEnv, tag) for tag in range(4)]
    options: dict[str, Any] = {"episode_seeds": True, "autoreset_mode": "next_step"}

    def episodes(pool: Any, *, killed: bool = False) -> list[list[Any]]:
        """Return the first observations of each env's episodes."""
        first: list[list[Any]] = [[] for _ in fns]
        for i, obs in enumerate(pool.reset(seed=3)[0]):
            first[i].append(obs.tolist())
        for n in range(40):
            if killed and n == 7:
                ray.kill(pool.workers[2].process)
            obs, *_, info = pool.step([0] * 4)
            for i in range(4):
                if "is_reset" in info[i]:
                    first[i].append(obs[i].tolist())
        return first

    with PLACE(fns, **options) as pool:
        undisturbed = episodes(pool)
    with PLACE(fns, on_error=on_error, **options) as pool:
        disturbed = episodes(pool, killed=True)
    for left, right in zip(disturbed, undisturbed, strict=True):
        count = min(len(left), len(right))
        assert count > 3
        assert left[:count] == right[:count]


class TestContract(EnvWorkerContract):
    """What every worker promises, outside a pool."""

    def make_worker(self, env_fn: Any) -> RayEnvWorker:
        """Make the worker that is tested."""
        return RayEnvWorker(env_fn, num_cpus=0.01)


class Large(gym.Env):
    """Its observations are too large to travel within a reply."""

    observation_space = gym.spaces.Box(0, 255, (200, 300, 3), np.uint8)
    action_space = gym.spaces.Discrete(9)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple:
        super().reset(seed=seed, options=options)
        return np.zeros((200, 300, 3), np.uint8), {}

    def step(self, action: Any) -> tuple:
        return np.full((200, 300, 3), action, np.uint8), 1.0, False, False, {}


def test_large_observations_go_through_the_object_store() -> None:
    with PLACE([Large] * 4) as pool:
        pool.reset()
        for n in range(3):
            obs = pool.step([n, n + 1, n + 2, n + 3])[0]
            assert (obs == np.arange(n, n + 4).reshape(4, 1, 1, 1)).all()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"envs_per_actor": 0}, ValueError, "envs_per_actor must be 1 or more, or 'auto'"),
        (
            {"envs_per_actor": "many"},
            ValueError,
            "envs_per_actor must be 1 or more, or 'auto'",
        ),
        ({"num_threads": 2}, TypeError, "RayVectorEnv does not take num_threads"),
        ({"context": "fork"}, TypeError, "RayVectorEnv does not take context"),
        ({"num_cpu": 2}, TypeError, r"RayVectorEnv does not take num_cpu; did you mean num_cpus\?"),
        ({"on_eror": 2}, TypeError, r"RayVectorEnv does not take on_eror; did you mean on_error\?"),
        ({"num_cpus": 5}, UserWarning, "room for 0 of 1 actors now, .*; pass a larger envs_per_"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RayVectorEnv([envs.CountEnv], **options)


def test_auto_starts_as_many_actors_as_there_is_room_for() -> None:
    with RayVectorEnv([envs.CountEnv] * 6, num_cpus=1.5) as pool:
        assert "num_actors=2" in repr(pool)
        assert [len(host.ids) for host in pool.engine.hosts.processes.hosts] == [3, 3]
        assert pool.reset()[0].shape == (6, 3)
