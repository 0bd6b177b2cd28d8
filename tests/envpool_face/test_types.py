"""What make takes, and the types of what comes back."""

import functools
import os
import sys

import dm_env
import dm_env.specs
import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from envpool_py import envpool
from tests.envpool_face.by_hand import DUMMY, ByHand, SeededEnv
from tests.support import envs
from tests.support.reference import same


@pytest.fixture
def make():
    """Make pools that are closed at the end of the test."""
    made = []

    def make(*args, **options):
        made.append(envpool.make(*args, **{"pool_options": DUMMY, "seed": 1, **options}))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def test_actions_config_and_spec(make):
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
    assert same(pool.all_env_ids, np.arange(3, dtype=np.int32))
    assert not pool.is_async
    assert pool.render_mode is None
    assert set(pool.reset()[1]) == {"env_id", "players", "elapsed_step"}
    with pytest.raises(ValueError, match="0.5.*can't hold without loss"):
        pool.step(np.array([0, 0.5, 1]))


def test_gymnasium_takes_it_for_an_env_and_for_a_vector_env(make):
    pool = make("CartPole-v1", num_envs=3)
    assert gym.Wrapper(pool).env is pool
    assert pool.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    counted = gym.wrappers.vector.RecordEpisodeStatistics(pool)
    counted.reset()
    lengths = np.zeros(3)
    for _ in range(60):
        _, _, terminated, truncated, info = counted.step(np.ones(3))
        for k in np.flatnonzero(terminated | truncated):
            assert info["episode"]["l"][k] == lengths[k] + 1
        lengths = info["elapsed_step"].copy()


class Labelled(gym.Wrapper):
    label = "x"


def test_options_reach_the_envs_and_the_pool(make):
    options = {**DUMMY, "wrappers": [Labelled]}
    pool = make("Pendulum-v1", num_envs=2, max_episode_steps=2, g=5.0, pool_options=options)
    assert pool.pool.get_env_attr("label") == ["x", "x"]
    assert pool.pool.get_env_attr("g") == [5.0, 5.0]
    assert pool.config["max_episode_steps"] == 2
    pool = make("CartPole-v1", num_envs=4, num_threads=2, thread_affinity_offset=0, pool_options={})
    assert isinstance(pool.pool, envpool_py.ShmemVectorEnv)
    assert "num_processes=2" in repr(pool.pool)
    assert pool.pool.apply(lambda _: len(os.sched_getaffinity(0))) == [1] * 4
    assert not pool.is_async
    assert make("CartPole-v1", num_envs=2, batch_size=1).is_async
    assert make("CartPole-v1", num_envs=2, batch_size=0).config["batch_size"] == 2


BAD = [
    ({"env_type": "jax"}, ValueError, "'gymnasium', 'gym' or 'dm', got 'jax'"),
    ({"batch_size": 3}, ValueError, "batch_size should be in \\[1, 2\\], but got 3"),
    ({"batch_size": "1"}, TypeError, "batch_size must be an int or None, got '1'"),
    ({"num_threads": -1, "pool_options": None}, ValueError, "num_threads must be 1 or more"),
    ({"num_envs": 0}, ValueError, "num_envs must be 1 or more, got 0"),
    ({"num_envs": "3"}, TypeError, "num_envs must be an int, got '3'"),
    ({"max_num_players": 2}, ValueError, "max_num_players must be 1"),
    ({"gym_reset_return_info": False}, ValueError, "gym_reset_return_info True"),
    ({"seed": [1, 2, 3]}, ValueError, "got 3 seeds for 2 envs"),
    ({"seed": "a"}, TypeError, "seed must be an int"),
    ({"pool_options": {"columns": 0}}, TypeError, "EnvPool's interface decide on \\['columns'\\]"),
    ({"task_id": "CartPol-v1"}, gym.error.Error, "CartPole"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_arguments(options, error, text):
    given = {"task_id": "CartPole-v1", "num_envs": 2, "pool_options": DUMMY}
    with pytest.raises(error, match=text):
        envpool.make(**given | options)


def test_the_constructor_closes_the_pool_if_envs_differ():
    made = []

    def make_env():
        made.append(1)
        env = SeededEnv()
        env.action_space.n = len(made)
        return env

    with pytest.raises(ValueError, match="env 1: action_space is .*, but that of env 0 is"):
        envpool.make(make_env, num_envs=2, pool_options=DUMMY)


# ---------------------------------------------------------------------------------------- dm_env


def test_without_dm_env_an_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_env", None)
    monkeypatch.delitem(sys.modules, "envpool_py.envpool.dm", raising=False)
    with pytest.raises(ImportError, match="pip install dm-env"):
        envpool.make_dm("CartPole-v1")


def test_time_steps(make):
    make_env = functools.partial(gym.make, "Pendulum-v1", max_episode_steps=2)
    pool, by_hand = make(make_env, "dm", num_envs=2), ByHand(make_env, 2, seed=1)
    assert isinstance(pool, dm_env.Environment)
    actions = np.zeros((2, 1), np.float32)
    for number in range(4):
        step = pool.step(actions) if number else pool.reset()
        rows = by_hand.step(actions) if number else by_hand.reset()
        assert isinstance(step, dm_env.TimeStep)
        assert same(step.step_type, np.array([(0, 1, 2, 0)[number]] * 2, np.int32))
        assert same(step.reward, np.array([row.reward for row in rows], np.float32))
        assert same(step.discount, np.array([float(number != 2)] * 2, np.float32))
        assert same(step.observation.obs, np.stack([row.obs for row in rows]))
        assert same(step.observation.env_id, np.arange(2, dtype=np.int32))
        assert same(step.observation.players.env_id, step.observation.env_id)
        pool.reward_spec().validate(step.reward[0])
        pool.discount_spec().validate(step.discount[0])


class ToldEnv(SeededEnv):
    """Infos that some rows lack, and one that no field can have the name of."""

    def step(self, action):
        return *super().step(action)[:4], {"number": 7, "no-name": 1} if self.tag == 1 else {}


def test_infos_are_fields_with_masks(make):
    pool = make(ToldEnv, "dm", num_envs=3, seed=0)
    pool.reset()
    found = pool.step(np.zeros(3)).observation
    assert set(found._fields) == {"env_id", "players", "obs", "number", "number_mask"}
    assert found.number.tolist() == [0, 7, 0]
    assert found.number_mask.tolist() == [False, True, False]


BOUNDED = dm_env.specs.BoundedArray
SPECS = {
    "box-uint8": BOUNDED((2, 3), np.uint8, 0, 255, "obs"),
    "discrete": dm_env.specs.DiscreteArray(5, np.int64, "obs"),
    "discrete-start": BOUNDED((), np.int64, -3, 1, "obs"),
    "multi-discrete": BOUNDED((3,), np.int64, 0, [2, 8, 1], "obs"),
    "multi-binary": BOUNDED((4,), np.int8, 0, 1, "obs"),
    "tuple": (
        BOUNDED((2,), np.int16, -(2**15), 2**15 - 1, "obs"),
        BOUNDED((), np.int64, 2, 8, "obs"),
        BOUNDED((), np.float16, -1e4, 1e4, "obs"),
    ),
    "dict": None,
}


@pytest.mark.parametrize("name", SPECS)
def test_specs(make, name):
    pool = make(functools.partial(envs.SpaceEnv, 0, name), "dm", num_envs=2)
    own, obs = pool.observation_spec(), pool.reset().observation
    if name == "dict":
        assert own._fields == ("env_id", "players", "image", "speed")
        own.image.validate(obs.image[0])
        own.speed.validate(obs.speed[0])
        assert pool.action_spec() == {"image": own.image, "speed": own.speed}
    else:
        assert own._fields == ("env_id", "players", "obs")
        assert own.obs == SPECS[name]


@pytest.mark.parametrize("key", ["joint-pos", "_v", "class", "env_id", "players"])
def test_dm_refuses_keys_that_cannot_be_fields(key):
    def make():
        env = gym.Env()
        env.observation_space = gym.spaces.Dict({key: gym.spaces.Box(0, 9, (1,))})
        env.action_space = gym.spaces.Discrete(2)
        return env

    with pytest.raises(ValueError, match=f"{key!r} cannot be a field"):
        envpool.make_dm(make, num_envs=2, pool_options=DUMMY)
