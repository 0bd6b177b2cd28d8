"""The tests of every backend, on Ray: a selection of them here, any other by `tests.ray.plugin`."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from envpool_py import RayEnvWorker, RayVectorEnv
from envpool_py.testing import EnvWorkerContract
from tests.backends.test_matrix import (
    SUBJECTS,
    Cell,
    drive_asynchronously,
    drive_synchronously,
    make_fns,
    read_and_set,
)
from tests.support import envs
from tests.support.places import Place
from tests.support.reference import HandStepped, check, check_reset, spread

# Two actors, one of them with two envs.
PLACE = Place(RayVectorEnv, {"envs_per_actor": 2, "num_cpus": 0.01}, 3)


QUICK = ("box-float32", "text", "every-dtype", "undeclared-ragged", "vector-rewards")
"""What the quick run drives; each takes an actor's start."""


@pytest.mark.parametrize(
    "subject",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.soak) for name in SUBJECTS if name not in QUICK),
    ],
)
def test_every_method_gives_what_raw_envs_give(subject: str) -> None:
    cell = Cell(PLACE, make_fns(subject, 3))
    with cell.pool:
        drive_synchronously(cell)
        drive_asynchronously(cell)
        read_and_set(cell)


@pytest.mark.parametrize(
    ("mode", "columns"),
    [(None, True), ("next_step", False), ("same_step", False), ("same_step", True)],
)
def test_automatic_resets_and_infos_in_every_mode(mode: str | None, columns: bool) -> None:
    fns = [partial(envs.SpaceEnv, tag, "mixed" if columns else "box-float32") for tag in range(4)]
    hand = HandStepped(fns, mode)
    space, rng = hand.envs[0].observation_space, np.random.default_rng(0)
    with PLACE(fns, autoreset_mode=mode, columns=columns, copy=not columns) as pool:
        rows = hand.reset(seeds=spread(5, range(4)))
        check_reset(pool.reset(seed=5), rows, space, columns=columns)
        for ids in [[0, 1, 2, 3]] * 8 + [[3, 0], [1], [2, 3, 1]] * 3:
            actions = [envs.draw(hand.envs[0].action_space, rng) for _ in ids]
            check(pool.step(actions, ids), hand.step(actions, ids), space, columns=columns)


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
                pool.engine.hosts.processes.hosts[1].end("was killed by the test")
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


@pytest.mark.soak
class TestContract(EnvWorkerContract):
    """What every worker promises, outside a pool."""

    def make_worker(self, env_fn: Any) -> RayEnvWorker:
        """Make the worker that is tested."""
        return RayEnvWorker(env_fn, num_cpus=0.01)


def test_stats_count_on_over_a_restart() -> None:
    with PLACE([envs.CountEnv] * 2, measure=True) as pool:
        pool.reset()
        pool.step([0, 0])
        hosts = pool.engine.hosts.processes.hosts
        hosts[0].end("was killed by the test")
        pool.restart([0])
        pool.reset()
        pool.step([0, 0])
        stats = pool.stats()
    assert stats.steps.tolist() == [2, 2]
    assert stats.resets.tolist() == [2, 2]
    assert stats.restarts.tolist() == [1, 1]


def test_large_observations_go_through_the_object_store() -> None:
    class Large(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (200, 300, 3), np.uint8)
        action_space = gym.spaces.Discrete(9)

        def reset(self, *, seed: Any = None, options: Any = None) -> tuple:
            super().reset(seed=seed, options=options)
            return np.zeros((200, 300, 3), np.uint8), {}

        def step(self, action: Any) -> tuple:
            return np.full((200, 300, 3), action, np.uint8), 1.0, False, False, {}

    with PLACE([Large] * 4) as pool:
        pool.reset()
        for n in range(3):
            obs = pool.step([n, n + 1, n + 2, n + 3])[0]
            assert (obs == np.arange(n, n + 4).reshape(4, 1, 1, 1)).all()


def test_record_and_replay(tmp_path: Any) -> None:
    fns = [partial(envs.RandomEnv, tag) for tag in range(3)]
    with PLACE(fns, record=tmp_path / "run") as pool:
        pool.reset(seed=1)
        pool.wait_num = 1
        ready = [0, 1, 2]
        for _ in range(6):
            info = pool.step([0] * len(ready), ready)[4]
            ready = [i["env_id"] for i in info]
    result = envpool_py.replay(tmp_path / "run", fns)
    assert result


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"envs_per_actor": 0}, ValueError, "envs_per_actor must be an int, 1 or more"),
        ({"envs_per_actor": "many"}, TypeError, "envs_per_actor must be an int, 1 or more"),
        ({"num_threads": 2}, TypeError, "RayVectorEnv does not take num_threads"),
        ({"context": "fork"}, TypeError, "RayVectorEnv does not take context"),
        ({"speed": 2}, TypeError, "does not take speed"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RayVectorEnv([envs.CountEnv], **options)


def test_auto_starts_as_many_actors_as_there_is_room_for() -> None:
    with RayVectorEnv([envs.CountEnv] * 6, num_cpus=2) as pool:
        assert "num_actors=2" in repr(pool)
        assert [len(host.ids) for host in pool.engine.hosts.processes.hosts] == [3, 3]
        assert pool.reset()[0].shape == (6, 3)
