"""make_vec, beside gymnasium.make_vec."""

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeAwareObservation

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.gymnasium import make_vec
from tests.support.reference import same

FORK = {"context": "fork"}


def assert_equal(ours, theirs):
    assert same(ours.reset(seed=2), theirs.reset(seed=2))
    theirs.action_space.seed(0)
    for _ in range(15):
        actions = theirs.action_space.sample()
        assert same(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", [None, "sync", gym.VectorizeMode.ASYNC])
def test_equal_to_gymnasiums(mode):
    options = FORK if mode and mode != "sync" else None
    # With the module that registers the id, which Gymnasium imports.
    name = "gymnasium.envs.classic_control:CartPole-v1"
    ours = make_vec(name, 3, mode, max_episode_steps=9, vector_kwargs=options)
    assert repr(ours) == "VectorEnv(CartPole-v1, num_envs=3)"
    if mode is not None:
        assert type(ours.pool) is (DummyVectorEnv if mode == "sync" else ShmemVectorEnv)
    assert_equal(ours, gym.make_vec("CartPole-v1", 3, "sync", max_episode_steps=9))


def test_wrappers_and_vector_kwargs():
    options = {"autoreset_mode": "SameStep", "copy": False, "max_concurrency": 1, **FORK}
    options |= {"daemon": True, "worker": None}
    more = {"wrappers": (TimeAwareObservation,), "g": 1.0, "max_episode_steps": 5}
    ours = make_vec("Pendulum-v1", 3, "async", options, **more)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert ours.copy is False
    assert "num_processes=1" in repr(ours.pool)
    assert ours.get_attr("g") == (1.0,) * 3
    theirs = gym.make_vec("Pendulum-v1", 3, "sync", {"autoreset_mode": "SameStep"}, **more)
    assert_equal(ours, theirs)


def test_a_spec_makes_the_same_again():
    first = make_vec("Pendulum-v1", 2, "sync", {"autoreset_mode": "Disabled"}, g=2.0)
    again = make_vec(first.spec)
    assert again.get_attr("g") == (2.0, 2.0)
    assert again.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert type(again.pool) is DummyVectorEnv
    assert_equal(first, again)
    own = gym.make_vec("Pendulum-v1", 2, "sync", g=2.0)
    assert_equal(make_vec(own.spec), own)
    assert gym.spec("Pendulum-v1").kwargs == {}


BAD = [
    (("CartPole-v1", 2, "vector_entry_point"), ValueError, "Invalid vectorization mode: 'vec"),
    (("NoSuchEnv-v0", 2), gym.error.Error, "NoSuchEnv"),
    ((3, 2), gym.error.Error, "Invalid id type"),
    (("CartPole-v1", "3"), TypeError, "num_envs must be an int, got '3'"),
    (("CartPole-v1", 0), ValueError, "num_envs must be 1 or more, got 0"),
    (("CartPole-v1", 2, "async", {"wait_num": 1}), ValueError, "waits for all envs"),
    (("CartPole-v1", 2, None, {"batch_size": 1}), TypeError, "here it is wait_num"),
]


def test_bad_arguments():
    for args, error, text in BAD:
        with pytest.raises(error, match=text):
            make_vec(*args)
