"""What make takes, and the types of what comes back."""

from __future__ import annotations

import functools
import sys
from typing import Any

import dm_env
import dm_env.specs
import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from envpool_py import envpool
from tests.envpool_face.by_hand import ByHand, SeededEnv
from tests.support import envs

DUMMY = {"backend": "dummy"}


@pytest.fixture
def cartpole() -> Any:
    pool = envpool.make("CartPole-v1", "gym", num_envs=3, seed=1, pool_options=DUMMY)
    yield pool
    pool.close()


def test_actions(cartpole: Any) -> None:
    assert set(cartpole.reset()[1]) == {"env_id", "players", "elapsed_step"}
    with pytest.raises(ValueError, match="0.5.*can't hold without loss"):
        cartpole.step(np.array([0, 0.5, 1]))
    ids = np.array([2, 0], np.int32)
    cartpole.send({"env_id": ids, "players": {"env_id": ids}, "action": np.array([1, 0])})
    info = cartpole.recv()[4]
    assert info["env_id"].tolist() == info["players"]["env_id"].tolist() == [2, 0]


def test_config_and_spec(cartpole: Any) -> None:
    given = {"num_envs": 3, "batch_size": 3, "num_threads": 0, "seed": 1, "env_seed": []}
    given |= {"thread_affinity_offset": -1, "max_num_players": 1, "gym_reset_return_info": True}
    assert cartpole.config == given | {"max_episode_steps": 500, "reward_threshold": 475.0}
    assert cartpole.spec.config.num_envs == len(cartpole) == cartpole.num_envs == 3
    assert cartpole.spec.id == "CartPole-v1"
    assert cartpole.spec.reward_threshold == 475.0
    raw = gym.make("CartPole-v1")
    assert cartpole.observation_space == cartpole.single_observation_space == raw.observation_space
    assert cartpole.action_space == cartpole.spec.action_space == raw.action_space
    assert cartpole.all_env_ids.tolist() == [0, 1, 2]
    assert not cartpole.is_async
    assert cartpole.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP


def test_gymnasium_takes_it_for_an_env_and_for_a_vector_env(cartpole: Any) -> None:
    assert gym.Wrapper(cartpole).env is cartpole
    counted = gym.wrappers.vector.RecordEpisodeStatistics(cartpole)
    counted.reset()
    lengths = np.zeros(3)
    for _ in range(60):
        _, _, terminated, truncated, info = counted.step(np.ones(3))
        for k in np.flatnonzero(terminated | truncated):
            assert info["episode"]["l"][k] == lengths[k] + 1
        lengths = info["elapsed_step"].copy()


class Labelled(gym.Wrapper):
    label = "x"


def test_env_kwargs_and_wrappers_reach_the_env() -> None:
    options = {**DUMMY, "wrappers": [Labelled]}
    pool = envpool.make_gym(
        "Pendulum-v1", num_envs=2, max_episode_steps=2, g=5.0, pool_options=options
    )
    pool.reset()
    assert pool.pool.get_env_attr("label") == ["x", "x"]
    assert pool.pool.get_env_attr("g") == [5.0, 5.0]
    assert pool.config["max_episode_steps"] == 2
    pool.step(np.zeros((2, 1)))
    assert pool.step(np.zeros((2, 1)))[3].tolist() == [True, True]
    pool.close()


def test_threads_are_processes() -> None:
    pool = envpool.make("CartPole-v1", num_envs=4, batch_size=2, num_threads=2)
    assert isinstance(pool.pool, envpool_py.ShmemVectorEnv)
    assert "num_processes=2" in repr(pool.pool)
    assert pool.is_async
    pool.close()
    pool = envpool.make("CartPole-v1", num_envs=2, num_threads=2, thread_affinity_offset=0)
    cores = pool.pool.apply(lambda _: len(__import__("os").sched_getaffinity(0)))
    assert cores == [1, 1]
    pool.close()


class ToldEnv(SeededEnv):
    """Infos that some rows lack."""

    def step(self, action: Any) -> tuple:
        *row, _ = super().step(action)
        info = {"array": np.full((2, 2), self.tag, np.int16), "deep": {"a": self.tag}}
        if self.tag == 1:
            info |= {"number": 7, "word": "x"}
        return *row, info


def test_infos_are_arrays_that_say_which_rows_have_them() -> None:
    pool = envpool.make(ToldEnv, num_envs=3, seed=0, pool_options=DUMMY)
    pool.reset()
    info = pool.step(np.zeros(3))[4]
    assert (info["array"].shape, info["array"].dtype) == ((3, 2, 2), np.int16)
    assert info["deep"]["a"].tolist() == [0, 1, 2]
    assert info["number"].tolist() == [0, 7, 0]
    assert info["_number"].tolist() == info["_word"].tolist() == [False, True, False]
    assert info["word"].tolist() == [None, "x", None]
    assert info["_array"].tolist() == [True] * 3
    pool.close()
    pool = envpool.make_dm(ToldEnv, num_envs=3, seed=0, pool_options=DUMMY)
    pool.reset()
    found = pool.step(np.zeros(3)).observation
    assert found.number.tolist() == [0, 7, 0]
    assert found.number_mask.tolist() == found.word_mask.tolist() == [False, True, False]
    pool.close()


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "env_type": ({"env_type": "jax"}, ValueError, "'gymnasium', 'gym' or 'dm', got 'jax'"),
    "batch_size": ({"batch_size": 5}, ValueError, "batch_size should be in \\[1, 2\\], but got 5"),
    "threads": (
        {"num_threads": -1, "pool_options": None},
        ValueError,
        "num_processes must be 1 or more, got -1",
    ),
    "no envs": ({"num_envs": 0}, ValueError, "num_envs must be 1 or more, got 0"),
    "players": ({"max_num_players": 2}, ValueError, "max_num_players must be 1"),
    "no info": ({"gym_reset_return_info": False}, ValueError, "gym_reset_return_info True"),
    "seeds": ({"seed": [1, 2, 3]}, ValueError, "got 3 seeds for 2 envs"),
    "seed": ({"seed": "a"}, TypeError, "seed must be an int"),
    "decided": (
        {"pool_options": {"columns": False}},
        TypeError,
        "interface decide on \\['columns'\\]",
    ),
    "wait_num": (
        {"pool_options": {"wait_num": 1}},
        TypeError,
        "batch_size and EnvPool's interface decide on \\['wait_num'\\]",
    ),
    "envs": ({"num_envs": "3"}, TypeError, "num_envs must be an int, got '3'"),
    "size": ({"batch_size": "1"}, TypeError, "batch_size must be an int or None, got '1'"),
    "id": ({"task_id": "CartPol-v1"}, gym.error.Error, "CartPole"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    options, error, text = BAD[name]
    options = {"task_id": "CartPole-v1", "num_envs": 2, "pool_options": DUMMY, **options}
    with pytest.raises(error, match=text):
        envpool.make(**options)


# ---------------------------------------------------------------------------------------- dm_env


def test_without_dm_env_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_env", None)
    monkeypatch.delitem(sys.modules, "envpool_py.envpool.dm", raising=False)
    with pytest.raises(ImportError, match="pip install dm-env"):
        envpool.make_dm("CartPole-v1")


def test_time_steps() -> None:
    pool = envpool.make_dm("Pendulum-v1", num_envs=2, max_episode_steps=2, pool_options=DUMMY)
    assert isinstance(pool, dm_env.Environment)
    by_hand = ByHand(functools.partial(gym.make, "Pendulum-v1", max_episode_steps=2), 2, seed=42)
    actions = np.zeros((2, 1), np.float32)
    for number in range(4):
        step = pool.step(actions) if number else pool.reset()
        rows = [by_hand.step(i, actions[i]) if number else by_hand.reset(i) for i in range(2)]
        assert isinstance(step, dm_env.TimeStep)
        assert [part.dtype for part in step[:3]] == [np.int32, np.float32, np.float32]
        np.testing.assert_array_equal(step.observation.obs, np.stack([row[0] for row in rows]))
        np.testing.assert_array_equal(step.reward, np.float32([row[1] for row in rows]))
        assert step.step_type.tolist() == [(0, 1, 2, 0)[number]] * 2
        assert step.discount.tolist() == [float(number != 2)] * 2
        assert step.observation.env_id.tolist() == [0, 1]
        assert step.observation.players.env_id.tolist() == [0, 1]
    pool.close()


def test_specs() -> None:
    pool = envpool.make_dm("CartPole-v1", num_envs=2, pool_options=DUMMY)
    assert pool.action_spec() == dm_env.specs.DiscreteArray(2, np.int64, "action")
    assert pool.observation_spec()._fields == ("env_id", "players", "obs")
    pool.reset()
    step = pool.step(np.zeros(2, np.int64))
    pool.reward_spec().validate(step.reward[0])
    pool.discount_spec().validate(step.discount[0])
    pool.close()


@pytest.mark.parametrize(
    "name", ["dict", "tuple", "box-uint8", "discrete-start", "multi-discrete", "multi-binary"]
)
def test_observations_have_their_spec(name: str) -> None:
    make_env = functools.partial(envs.SpaceEnv, 0, name)
    pool = envpool.make_dm(make_env, num_envs=2, pool_options=DUMMY)
    obs, own = pool.reset().observation, pool.observation_spec()
    pairs = [(own.image, obs.image)] if name == "dict" else [(own.obs, obs.obs)]
    if name == "tuple":
        pairs = list(zip(own.obs, obs.obs, strict=True))
    for spec, value in pairs:
        spec.validate(value[0])
    pool.close()


@pytest.mark.parametrize("key", ["joint-pos", "_v", "class", "env_id", "players"])
def test_dm_refuses_keys_that_cannot_be_fields(key: str) -> None:
    def make() -> gym.Env[Any, Any]:
        env = gym.Env()
        env.observation_space = gym.spaces.Dict({key: gym.spaces.Box(0, 9, (1,))})
        env.action_space = gym.spaces.Discrete(2)
        return env

    with pytest.raises(ValueError, match=f"{key!r} cannot be a field"):
        envpool.make_dm(make, num_envs=2, pool_options=DUMMY)
