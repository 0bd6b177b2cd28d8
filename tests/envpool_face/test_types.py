"""What make takes, and the types of what comes back."""

import contextlib
import functools
import os
import sys

import dm_env
import gymnasium as gym
import numpy as np
import pytest
from dm_env import specs

from envpool_py import envpool
from tests.envpool_face.envs import DUMMY, SeededEnv
from tests.support import envs
from tests.support.reference import HandStepped, same


@pytest.fixture
def make():
    """Make pools that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make(*args, **options):
            pool = envpool.make(*args, **{"options": DUMMY, "seed": 1, **options})
            return stack.enter_context(contextlib.closing(pool))

        yield make


def test_attributes_config_and_spec(make):
    pool = make("CartPole-v1", "gym", num_envs=3)
    given = {"num_envs": 3, "batch_size": 3, "num_threads": 0, "seed": 1, "env_seed": []}
    given |= {"thread_affinity_offset": -1, "max_num_players": 1, "gym_reset_return_info": True}
    assert pool.config == given | {"max_episode_steps": 500, "reward_threshold": 475.0}
    assert pool.spec.config.num_envs == len(pool) == pool.num_envs == 3
    assert (pool.spec.id, pool.spec.reward_threshold) == ("CartPole-v1", 475.0)
    raw = gym.make("CartPole-v1")
    assert pool.observation_space == pool.single_observation_space == raw.observation_space
    assert pool.action_space == pool.single_action_space == pool.spec.action_space
    assert pool.action_space == raw.action_space
    assert not pool.is_async
    assert pool.render_mode is None
    pool.reset()
    with pytest.raises(ValueError, match="0.5.*can't hold without loss"):
        pool.step(np.array([0, 0.5, 1]))
    assert gym.Wrapper(pool).env is pool
    # It reads the autoreset mode. Gymnasium 1.2 closes the pool with it.
    gym.wrappers.vector.RecordEpisodeStatistics(pool).reset()


def test_options_reach_the_envs_and_the_pool(make):
    options = {**DUMMY, "wrappers": [gym.wrappers.TimeAwareObservation]}
    pool = make("Pendulum-v1", num_envs=2, max_episode_steps=2, g=5.0, options=options)
    assert pool.observation_space.shape == (4,)
    assert pool.pool.get_env_attr("g") == [5.0, 5.0]
    assert pool.config["max_episode_steps"] == 2
    pool = make("CartPole-v1", num_envs=4, num_threads=2, thread_affinity_offset=0, options={})
    assert "num_processes=2" in repr(pool.pool)
    assert pool.pool.apply(lambda _: len(os.sched_getaffinity(0))) == [1] * 4
    assert make("CartPole-v1", num_envs=2, batch_size=1).is_async
    assert make("CartPole-v1", num_envs=2, batch_size=0).config["batch_size"] == 2


BAD = [
    ({"env_type": "jax"}, ValueError, "'gymnasium', 'gym' or 'dm', got 'jax'"),
    ({"batch_size": 3}, ValueError, "batch_size should be in \\[1, 2\\], but got 3"),
    ({"num_threads": -1}, ValueError, "num_threads must be 1 or more"),
    ({"max_num_players": 2}, ValueError, "max_num_players must be 1"),
    ({"gym_reset_return_info": False}, ValueError, "gym_reset_return_info True"),
    ({"seed": [1, 2, 3]}, ValueError, "got 3 seeds for 2 envs"),
    ({"options": {"wait_num": 1}}, ValueError, "wait_num must be 2, because batch_size"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_arguments(options, error, text):
    with pytest.raises(error, match=text):
        envpool.make("CartPole-v1", **{"num_envs": 2, "options": DUMMY, **options})


def test_without_dm_env_an_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_env", None)
    monkeypatch.delitem(sys.modules, "envpool_py.envpool.dm", raising=False)
    with pytest.raises(ImportError, match="pip install dm-env"):
        envpool.make_dm("CartPole-v1")


class ToldEnv(SeededEnv):
    """Infos that some rows lack, and one that no field can have the name of."""

    def step(self, action):
        return *super().step(action)[:4], {"number": 7, "no-name": 1} if self.tag == 1 else {}


def test_time_steps(make):
    pool, by_hand = make(ToldEnv, "dm", num_envs=3, seed=0), HandStepped([ToldEnv] * 3, "next_step")
    assert isinstance(pool, dm_env.Environment)
    for number, step_type in enumerate((0, 1, 1, 1, 2, 0)):
        step = pool.step(np.zeros(3)) if number else pool.reset()
        rows = by_hand.step([0] * 3) if number else by_hand.reset(seeds=range(3))
        found = step.observation
        assert isinstance(step, dm_env.TimeStep)
        assert same(step.step_type, np.array([step_type] * 3, np.int32))
        assert same(step.reward, np.array([row.reward for row in rows], np.float32))
        assert same(step.discount, np.array([float(step_type != 2)] * 3, np.float32))
        assert same(found.obs, np.stack([row.obs for row in rows]))
        assert same(found.env_id, np.arange(3, dtype=np.int32))
        assert same(found.players.env_id, found.env_id)
        pool.reward_spec().validate(step.reward[0])
        pool.discount_spec().validate(step.discount[0])
        if step_type:
            assert set(found._fields) == {"env_id", "players", "obs", "number", "number_mask"}
            assert found.number.tolist() == [0, 7, 0]
            assert found.number_mask.tolist() == [False, True, False]


SPECS = {
    "discrete": specs.DiscreteArray(5, np.int64, "obs"),
    "multi-discrete": specs.BoundedArray((3,), np.int64, 0, [2, 8, 1], "obs"),
    "multi-binary": specs.BoundedArray((4,), np.int8, 0, 1, "obs"),
    "tuple": (
        specs.BoundedArray((2,), np.int16, -(2**15), 2**15 - 1, "obs"),
        specs.BoundedArray((), np.int64, 2, 8, "obs"),
        specs.BoundedArray((), np.float16, -1e4, 1e4, "obs"),
    ),
}


def test_specs(make):
    for name, expected in SPECS.items():
        pool = make(functools.partial(envs.SpaceEnv, 0, name), "dm")
        assert pool.observation_spec()._fields == ("env_id", "players", "obs")
        assert pool.observation_spec().obs == expected, name
    pool = make(functools.partial(envs.SpaceEnv, 0, "dict"), "dm")
    own, obs = pool.observation_spec(), pool.reset().observation
    assert own._fields == ("env_id", "players", "image", "speed")
    own.image.validate(obs.image[0])
    own.speed.validate(obs.speed[0])
    assert pool.action_spec() == {"image": own.image, "speed": own.speed}


@pytest.mark.parametrize("key", ["joint-pos", "_v", "class", "env_id", "players"])
def test_dm_refuses_keys_that_cannot_be_fields(key):
    space = gym.spaces.Dict({key: gym.spaces.Box(0, 9, (1,))})
    with pytest.raises(ValueError, match=f"{key!r} cannot be a field"):
        envpool.make_dm(functools.partial(envs.ChangedEnv, space=space), options=DUMMY)
