"""The envs of the benchmark, and their actions."""

from __future__ import annotations

import itertools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.bench import envs, workloads
from envpool_py.bench.workloads import KINDS, WORKLOADS, Workload


def test_names_are_unique_and_say_what_is_done() -> None:
    assert len({each.name for each in WORKLOADS}) == len({each.title for each in WORKLOADS})
    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS)
    assert Workload("cartpole", 64, 16).name == "cartpole-x64-wait16"
    assert Workload("cartpole", 64, 16).title == "CartPole-v1 x 64, wait_num=16"
    assert Workload("Taxi-v3", 4).title == "Taxi-v3 x 4"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_env_returns_what_its_spaces_say(kind: str) -> None:
    env = workloads.make_env(kind, 0)
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space
    for _ in range(2):
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space
        assert np.isfinite(reward)
        assert not terminated
        assert not truncated
        assert (len(info) == 10) == (kind == "info")
    env.close()


@pytest.mark.parametrize("kind", ["spin-10", "image-84", "dict", "info"])
def test_synthetic_episodes_have_a_hundred_steps(kind: str) -> None:
    env = workloads.make_env(kind, 0)
    for _ in range(2):
        env.reset()
        flags = [env.step(0)[2:4] for _ in range(100)]
        assert flags == [(False, False)] * 99 + [(False, True)]


def test_a_spin_uses_the_cpu_time_it_says() -> None:
    env = workloads.make_env("spin-1000", 0)
    env.reset()
    before = time.thread_time()
    for _ in range(3):
        env.step(0)
    assert time.thread_time() - before >= 0.003


def test_every_sleeper_sleeps_as_long_in_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    orders = []
    for seed in (0, 1):
        env = workloads.make_env("sleep", seed)
        env.reset()
        slept.clear()
        for _ in range(100):
            env.step(0)
        orders.append(list(slept))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert np.mean(orders[0]) == pytest.approx(0.0027, rel=0.02)
    assert min(orders[0]) >= 0.001
    assert max(orders[0]) == pytest.approx(0.034, rel=0.02)


def test_images_are_new_ones() -> None:
    env = workloads.make_env("image-84", 0)
    env.reset()
    one, two = env.step(0)[0], env.step(0)[0]
    assert not np.shares_memory(one, two)
    assert (one != two).any()


def test_synthetic_envs_are_wrapped_as_gymnasium_does() -> None:
    made = workloads.make_env("dict", 0)
    registered = gym.make("CartPole-v1")

    def wrappers(env: Any) -> list[type]:
        return [] if env is env.unwrapped else [type(env), *wrappers(env.env)]

    assert wrappers(made) == wrappers(registered)
    assert isinstance(made.unwrapped, envs.Dict)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(5, start=2),
        gym.spaces.Box(-1, 1, (2, 3)),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(3),
    ],
)
def test_actions_are_the_same_for_everybody(space: gym.Space) -> None:
    batches = workloads.draw_actions(space, 6)
    again = workloads.draw_actions(space, 6)
    assert len(batches) >= 8
    for batch, same in zip(batches, again, strict=True):
        np.testing.assert_array_equal(batch, same)
    assert batches[0].shape == (6, *space.shape)
    assert all(action in space for action in itertools.chain(*batches[:3]))
    assert len(np.unique(np.concatenate(batches), axis=0)) > 1


def test_actions_that_are_no_arrays_are_listed() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(0, 1, (2,))})
    batches = workloads.draw_actions(space, 3)
    assert all(len(batch) == 3 for batch in batches)
    assert all(action in space for action in batches[0])


def test_env_fns_make_envs_that_differ() -> None:
    one, two = (env_fn() for env_fn in workloads.env_fns(Workload("sleep", 2)))
    assert one.unwrapped._times != two.unwrapped._times
