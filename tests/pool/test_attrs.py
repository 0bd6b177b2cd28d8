"""Attributes, methods and rendering: through wrappers, acknowledged, alike on every backend."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from envpool_py import BaseVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK, slow

NUM = 3


class Tagger(gym.Wrapper):
    """A wrapper that adds an attribute and a method."""

    def __init__(self, env: gym.Env, label: str) -> None:
        super().__init__(env)
        self.label = label

    def labelled(self, text: str) -> str:
        return f"{self.label}{text}"


class Doubled(gym.ActionWrapper):
    """Declares another action space than the env it wraps."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.MultiDiscrete([3, 4])

    def action(self, action: np.ndarray) -> int:
        return int(action[0] * 4 + action[1])


def wrapped(tag: int = 0) -> gym.Env:
    """Wrap a StoreEnv in a TimeLimit, in a Tagger."""
    return Tagger(gym.wrappers.TimeLimit(envs.StoreEnv(tag, length=50), 3), f"env{tag}-")


@pytest.fixture(params=BACKENDS)
def pool(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    fns = [functools.partial(wrapped, tag) for tag in range(NUM)]
    with PLACES[request.param](fns) as pool:
        yield pool


def test_attributes_are_found_where_get_wrapper_attr_finds_them(pool: BaseVectorEnv) -> None:
    raws = [wrapped(tag) for tag in range(NUM)]
    own = ["tag", "setting", "label", "read_only", "episode"]
    for name in [*own, "_max_episode_steps", "_elapsed_steps"]:
        assert pool.get_env_attr(name) == [raw.get_wrapper_attr(name) for raw in raws]
        assert pool.get_env_attr(name, [2, 0]) == [raws[i].get_wrapper_attr(name) for i in (2, 0)]
        assert type(pool.get_env_attr(name)) is list
    pool.reset()
    pool.step([1, 1, 1])
    assert pool.get_env_attr("t") == pool.get_env_attr("_elapsed_steps") == [1, 1, 1]


def test_what_is_set_is_read_again(pool: BaseVectorEnv) -> None:
    raw = wrapped(1)
    pool.set_env_attr("never seen", None)
    values = {"tag": 44, "label": "new-", "_max_episode_steps": 9, "never seen": [1, 2]}
    for name, value in values.items():
        raw.set_wrapper_attr(name, value)
        pool.set_env_attr(name, value, id=1)
        assert pool.get_env_attr(name, 1) == [raw.get_wrapper_attr(name)] == [value]
        assert value not in pool.get_env_attr(name, [0, 2])
        pool.set_env_attr(name, value)
        assert pool.get_env_attr(name) == [value] * NUM


def test_what_is_set_is_used_by_the_layer_that_has_it(pool: BaseVectorEnv) -> None:
    pool.set_env_attr("_max_episode_steps", 1, id=0)  # the TimeLimit's
    pool.set_env_attr("tag", 77, id=1)  # the base env's
    pool.set_env_attr("label", "x", id=2)  # the Tagger's
    pool.reset()
    obs, _, _, truncated, _ = pool.step([1, 1, 1])
    assert obs[:, 0].tolist() == [0, 77, 2]
    assert truncated.tolist() == [True, False, False]
    assert pool.call("labelled", "y") == ["env0-y", "env1-y", "xy"]


def test_a_missing_attribute_is_an_attribute_error(pool: BaseVectorEnv) -> None:
    name = "no_such_thing"
    with pytest.raises(AttributeError, match=rf"env 0: .*{name}"):
        pool.get_env_attr(name)
    with pytest.raises(EnvError, match=rf"env 2: .*{name}") as caught:
        pool.get_env_attr(name, [2])
    assert caught.value.env_ids == (2,)
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(AttributeError, match=rf"env 1: .*{name}"):
        pool.call(name, 5, id=1)


def test_errors_of_attributes_need_no_reset(pool: BaseVectorEnv) -> None:
    pool.reset()
    with pytest.raises(LookupError, match="env 0: call raised LookupError: oh") as caught:
        pool.call("fail", "oh")
    assert caught.value.request == "call"
    for ask in (
        lambda: pool.get_env_attr("nothing", 1),
        lambda: pool.set_env_attr("read_only", 5, 1),
        lambda: pool.call("fail", "oh", id=1),
        lambda: pool.call("add", id=1),
        lambda: pool.call("tag", id=1),
    ):
        with pytest.raises(EnvError, match="env 1: "):
            ask()
        assert len(pool.step([1, 1, 1])[1]) == NUM
        pool.reset()


@pytest.mark.parametrize("place", PROCESSES)
def test_what_cannot_leave_its_process_or_reach_it(place: str) -> None:
    fns = [functools.partial(envs.StoreEnv, tag) for tag in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 1: .*pickle") as caught:
            pool.get_env_attr("lock", 1)
        assert caught.value.env_ids == (1,)
        with pytest.raises(EnvError, match=r"env 0: .*pickle"):
            pool.call("give_lock", id=0)
        with pytest.raises(EnvError, match="env 0: apply raised TypeError: the result cannot"):
            pool.apply(lambda env: env.lock, id=0)
        with pytest.raises(Exception, match="pickle"):
            pool.set_env_attr("tag", threading.Lock())
        assert pool.get_env_attr("tag") == [0, 1]
        assert len(pool.step([1, 1])[1]) == 2


@pytest.mark.parametrize("place", BACKENDS)
def test_spaces_are_those_of_the_outermost_wrapper(place: str) -> None:
    with PLACES[place]([lambda: Doubled(envs.CountEnv())] * 2) as pool:
        assert pool.action_space == [gym.spaces.MultiDiscrete([3, 4])] * 2
        assert pool.get_env_attr("action_space") == pool.action_space
        pool.reset()
        info = pool.step(np.array([[2, 1], [0, 3]]))[4]
        assert [row["action"] for row in info] == [9, 3]


@pytest.mark.parametrize("place", [*QUICK, *slow("shmem-spawn-packed")])
def test_apply_calls_the_function_where_the_env_is(place: str) -> None:
    with PLACES[place]([functools.partial(envs.CountEnv, tag) for tag in range(3)]) as pool:
        found = pool.apply(lambda env, plus, times: (env.tag + plus) * times, 1, times=2)
        assert found == [2, 4, 6]
        assert pool.apply(lambda env: env.tag, id=[2, 0]) == [2, 0]
        assert pool.apply(lambda env: os.getpid()) == pool.call("pid")  # noqa: ARG005
        with pytest.raises(EnvError, match="env 1: apply raised ZeroDivisionError") as caught:
            pool.apply(lambda env: 1 / (env.tag - 1))
        assert isinstance(caught.value, ZeroDivisionError)
        pool.reset()
        pool.send([pool.action_space[0].sample()], [1])
        with pytest.raises(AlreadyPendingCallError, match="env 1"):
            pool.apply(lambda env: env.tag)
