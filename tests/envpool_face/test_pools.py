"""What users of other libraries type on every pool: their keywords, ids, names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from tests.support import envs
from tests.support.places import BACKENDS, PLACES


def wider() -> gym.Env:
    """Make an env whose spaces have the same shapes and dtypes, and other bounds."""
    env = envs.CountEnv()
    env.action_space = gym.spaces.Discrete(200)
    env.observation_space = gym.spaces.Box(-5, 10**6, (3,), np.int64)
    return env


FOREIGN = {
    "batch_size": "here it is wait_num",
    "n_envs": "here it is num_envs in envpool_py.make",
    "num_workers": "here it is num_processes",
    "vectorization_mode": "here it is backend in envpool_py.make, or a pool class",
    "asynchronous": "here it is ShmemVectorEnv, or backend='shmem' in envpool_py.make",
}
CLASSES = (envpool_py.DummyVectorEnv, envpool_py.SubprocVectorEnv, envpool_py.ShmemVectorEnv)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_keyword_of_another_library_is_an_error_that_names_ours(name: str) -> None:
    text = f"^{name} is an argument of other libraries; {FOREIGN[name]}"
    with pytest.raises(TypeError, match=text):
        envpool_py.make("CartPole-v1", **{name: 2})
    for pool in CLASSES:
        with pytest.raises(TypeError, match=text):
            pool([envs.CountEnv], **{name: 2})


@pytest.mark.parametrize("pool", CLASSES)
def test_an_id_in_place_of_env_fns_points_to_make(pool: Any) -> None:
    text = r"; envpool_py.make\('CartPole-v1', num_envs\) makes a pool of an id"
    with pytest.raises(TypeError, match="^env_fns must be a sequence of callables, got str" + text):
        pool("CartPole-v1")
    with pytest.raises(TypeError, match="^env 1: env_fn must be callable, got str" + text):
        pool([envs.CountEnv, "CartPole-v1"])


@pytest.mark.parametrize("place", BACKENDS)
def test_single_spaces_and_ids_of_the_last_batch(place: str) -> None:
    with PLACES[place]([lambda i=i: envs.CountEnv(i) for i in range(4)], wait_num=2) as pool:
        assert pool.single_observation_space == envs.CountEnv().observation_space
        assert pool.single_action_space == gym.spaces.Discrete(100)
        assert pool.batch_ids.tolist() == []
        pool.reset([3, 1])
        assert pool.batch_ids.tolist() == [3, 1]
        pool.reset([0, 2])
        obs = pool.step([0] * 4)[0]
        ids = pool.batch_ids
        assert isinstance(ids, np.ndarray)
        assert ids.tolist() == obs[:, 0].tolist()
        ids[:] = 9
        assert pool.batch_ids.tolist() == obs[:, 0].tolist()


@pytest.mark.parametrize("place", BACKENDS)
def test_single_spaces_of_envs_that_differ_name_two(place: str) -> None:
    fns = [envs.CountEnv, envs.CountEnv, envs.StoreEnv, wider]
    with PLACES[place](fns) as pool:
        with pytest.raises(ValueError, match=r"env 3: action_space is .*200.* env 0 is .*100"):
            _ = pool.single_action_space
        with pytest.raises(ValueError, match=r"env 3: observation_space is .* env 0 is Box"):
            _ = pool.single_observation_space
