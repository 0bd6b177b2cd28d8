"""make_vec, beside gymnasium.make_vec."""

import gymnasium as gym
import pytest
from gymnasium.wrappers import TimeAwareObservation

from envpool_py import DummyVectorEnv
from envpool_py.gymnasium import make_vec
from tests.support.reference import same

MORE = {"wrappers": (TimeAwareObservation,), "g": 1.0, "max_episode_steps": 5}


def assert_equal(ours, theirs):
    assert ours.metadata == theirs.metadata
    assert same(ours.reset(seed=2), theirs.reset(seed=2))
    theirs.action_space.seed(0)
    for _ in range(15):
        actions = theirs.action_space.sample()
        assert same(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


FORK = {"context": "fork", "max_concurrency": 1, "daemon": True, "worker": None}
MODES = [(None, {}, ""), ("sync", {}, "DummyVectorEnv")]
MODES += [(gym.VectorizeMode.ASYNC, FORK, "num_processes=1")]


@pytest.mark.parametrize(("mode", "options", "pool"), MODES)
def test_equal_to_gymnasiums(mode, options, pool):
    options = {"autoreset_mode": "SameStep", "copy": False, **options}
    # With the module that registers the id, which Gymnasium imports.
    ours = make_vec("gymnasium.envs.classic_control:Pendulum-v1", 3, mode, options, **MORE)
    assert repr(ours) == "VectorEnv(Pendulum-v1, num_envs=3)"
    assert pool in repr(ours.pool)
    assert ours.copy is False
    theirs = gym.make_vec("Pendulum-v1", 3, "sync", {"autoreset_mode": "SameStep"}, **MORE)
    assert_equal(ours, theirs)


def test_a_spec_makes_the_same_again():
    first = make_vec("Pendulum-v1", 2, "sync", {"autoreset_mode": "Disabled"}, g=2.0)
    again = make_vec(first.spec)
    assert again.get_attr("g") == (2.0, 2.0)
    assert type(again.pool) is DummyVectorEnv
    assert_equal(first, again)
    own = gym.make_vec("Pendulum-v1", 2, "sync", g=2.0)
    assert_equal(make_vec(own.spec), own)
    assert gym.spec("Pendulum-v1").kwargs == {}


BAD = [
    (("CartPole-v1", 2, "vector_entry_point"), ValueError, "Invalid vectorization mode: 'vec"),
    ((3, 2), gym.error.Error, "Invalid id type"),
    (("CartPole-v1", 0), ValueError, "num_envs must be 1 or more, got 0"),
]


def test_bad_arguments():
    for args, error, text in BAD:
        with pytest.raises(error, match=text):
            make_vec(*args)
