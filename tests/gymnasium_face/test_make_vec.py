"""make_vec, beside gymnasium.make_vec."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeAwareObservation

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.gymnasium import VectorEnv, make_vec
from tests.gymnasium_face.envs import equal

FORK = {"context": "fork"}


def assert_equal(ours: VectorEnv, theirs: gym.vector.VectorEnv, steps: int = 30) -> None:
    assert equal(ours.reset(seed=2), theirs.reset(seed=2))
    theirs.action_space.seed(0)
    for _ in range(steps):
        actions = theirs.action_space.sample()
        assert equal(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", [None, "sync", "async", gym.VectorizeMode.ASYNC])
def test_equal_to_gymnasiums(mode: str | None) -> None:
    ours = make_vec(
        "CartPole-v1",
        3,
        mode,
        max_episode_steps=9,
        vector_kwargs=FORK if mode and mode != "sync" else None,
    )
    theirs = gym.make_vec("CartPole-v1", 3, "sync", max_episode_steps=9)
    assert repr(ours) == "VectorEnv(CartPole-v1, num_envs=3)"
    assert ours.spec.id == theirs.spec.id
    assert ours.num_envs == 3
    if mode is not None:
        assert type(ours.pool) is (DummyVectorEnv if mode == "sync" else ShmemVectorEnv)
    assert_equal(ours, theirs)


def test_wrappers_and_vector_kwargs() -> None:
    options = {"autoreset_mode": "SameStep", "copy": False, "num_processes": 2, **FORK}
    wrappers = (TimeAwareObservation,)
    ours = make_vec("Pendulum-v1", 3, "async", options, wrappers, g=1.0, max_episode_steps=5)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert ours.copy is False
    assert ours.get_attr("g") == (1.0,) * 3
    theirs = gym.make_vec(
        "Pendulum-v1",
        3,
        "sync",
        {"autoreset_mode": "SameStep"},
        wrappers,
        g=1.0,
        max_episode_steps=5,
    )
    assert_equal(ours, theirs)


def test_a_spec_makes_the_same_again() -> None:
    first = make_vec("Pendulum-v1", 2, "sync", {"autoreset_mode": "Disabled"}, g=2.0)
    again = make_vec(first.spec)
    assert again.num_envs == 2
    assert type(again.pool) is DummyVectorEnv
    assert again.get_attr("g") == (2.0, 2.0)
    assert again.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert equal(again.reset(seed=1), first.reset(seed=1))
    first.close()
    again.close()
    own = gym.make_vec("Pendulum-v1", 2, "sync", g=2.0)
    from_theirs = make_vec(own.spec)
    assert equal(from_theirs.reset(seed=1), own.reset(seed=1))
    from_theirs.close()
    own.close()


def test_an_id_with_its_module() -> None:
    envs = make_vec("gymnasium.envs.classic_control:CartPole-v1", 2, "sync")
    assert np.shape(envs.reset()[0]) == (2, 4)
    envs.close()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid vectorization mode: 'vector_entry_point'"):
        make_vec("CartPole-v1", 2, "vector_entry_point")
    with pytest.raises(gym.error.Error):
        make_vec("NoSuchEnv-v0", 2)
    with pytest.raises(gym.error.Error, match="Invalid id type"):
        make_vec(3, 2)
