"""Requests without a row: attributes, methods, functions; each env has its own copy of arguments.

`tests/support/session.py` reads, writes, calls and renders among other requests.
"""

import functools
import os
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import EnvError
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES, QUICK, slow

NUM = 3


def wrapped(tag=0):
    """Wrap a StoreEnv in a TimeLimit, in a wrapper whose actions are pairs."""
    limited = gym.wrappers.TimeLimit(envs.StoreEnv(tag, length=50), 3)
    pairs = spaces.MultiDiscrete([3, 4])
    return gym.wrappers.TransformAction(limited, lambda pair: int(pair[0] * 4 + pair[1]), pairs)


@pytest.fixture(params=BACKENDS)
def pool(request):
    fns = [functools.partial(wrapped, tag) for tag in range(NUM)]
    with PLACES[request.param](fns) as pool:
        yield pool


def test_attributes_are_those_of_the_outermost_wrapper_that_has_them(pool):
    raws = [wrapped(tag) for tag in range(NUM)]
    for name in ("tag", "setting", "read_only", "action_space", "_max_episode_steps"):
        assert pool.get_env_attr(name) == [raw.get_wrapper_attr(name) for raw in raws]
        assert pool.get_env_attr(name, [2, 0]) == [raws[i].get_wrapper_attr(name) for i in (2, 0)]
    assert pool.action_space == pool.get_env_attr("action_space")
    pool.set_env_attr("never seen", None)
    for name, value in {"tag": 44, "_max_episode_steps": 9, "never seen": [1, 2]}.items():
        pool.set_env_attr(name, value, id=1)
        assert [own == value for own in pool.get_env_attr(name)] == [False, True, False]
        pool.set_env_attr(name, value)
        assert pool.get_env_attr(name) == [value] * NUM
    pool.set_env_attr("_max_episode_steps", 1, id=0)  # the TimeLimit's
    pool.set_env_attr("tag", 77, id=1)  # the base env's
    pool.reset()
    assert pool.call("action", [2, 1]) == [9] * NUM  # the outermost wrapper's
    obs, _, _, truncated, infos = pool.step(np.array([[2, 1], [0, 3], [1, 1]]))
    assert [info["action"] for info in infos] == [9, 3, 5]
    assert obs[:, 0].tolist() == [44, 77, 44]
    assert truncated.tolist() == [True, False, False]
    assert pool.get_env_attr("t") == pool.get_env_attr("_elapsed_steps") == [1, 1, 1]


def test_errors_of_attributes_need_no_reset(pool):
    pool.reset()
    with pytest.raises(LookupError, match="env 0: call raised LookupError: oh") as caught:
        pool.call("fail", "oh")
    assert caught.value.request == "call"
    missing = "AttributeError: .*nothing"
    for ask, error, text in (
        (lambda: pool.get_env_attr("nothing", [1, 2]), AttributeError, missing),
        (lambda: pool.call("nothing", 5, id=1), AttributeError, missing),
        (lambda: pool.set_env_attr("read_only", 5, 1), AttributeError, "read_only"),
        (lambda: pool.call("fail", "oh", id=1), LookupError, "oh"),
        (lambda: pool.call("add", id=1), TypeError, "add"),
        (lambda: pool.call("tag", id=1), TypeError, "int"),
        (lambda: pool.apply(lambda env: 1 / (env.unwrapped.tag - 1)), ZeroDivisionError, "zero"),
    ):
        with pytest.raises(EnvError, match=f"env 1: .*{text}") as caught:
            ask()
        assert isinstance(caught.value, error)
        assert isinstance(caught.value.__cause__, error)
        assert caught.value.env_id == 1
    assert pool.step([[0, 0]] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PROCESSES[-1:])
def test_what_cannot_leave_its_process_or_reach_it(place):
    def without_action_space(tag):
        env = envs.StoreEnv(tag)
        del env.action_space
        return env

    with PLACES[place]([functools.partial(without_action_space, tag) for tag in range(2)]) as pool:
        pool.reset()
        for ask in (
            lambda: pool.get_env_attr("lock", 1),
            lambda: pool.call("give_lock", id=1),
            lambda: pool.apply(lambda env: env.lock, id=1),
        ):
            with pytest.raises(EnvError, match="env 1: .* the result cannot be pickled") as caught:
                ask()
            assert caught.value.env_ids == (1,)
        with pytest.raises(TypeError, match="pickle"):
            pool.set_env_attr("tag", threading.Lock())
        with pytest.raises(TypeError, match="env 1: the arguments of step cannot be pickled"):
            pool.step([0, threading.Lock()])
        assert pool.get_env_attr("tag") == [0, 1]
        assert pool.step([1, 1])[0].tolist() == [[0, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("place", [*QUICK, *slow("shmem-spawn-packed")])
def test_apply_calls_the_function_where_the_env_is(place):
    with PLACES[place]([functools.partial(envs.CountEnv, tag) for tag in range(3)]) as pool:
        found = pool.apply(lambda env, plus, times: (env.tag + plus) * times, 1, times=2)
        assert found == [2, 4, 6]
        assert pool.apply(lambda env: env.tag, id=[2, 0]) == [2, 0]
        assert pool.apply(lambda _: os.getpid()) == pool.call("pid")


# --------------------------------------------------------------------------- copies of arguments


class GreedyEnv(envs.CountEnv):
    """Changes the options and arguments that it is given in place."""

    bag = None

    def reset(self, *, options=None, extra=None):
        obs, info = super().reset()
        given = options or extra
        return obs, {**info, "found": given and self.take(given)}

    def take(self, bag=None):
        bag = bag or self.bag
        bag["items"].append(self.tag)
        return list(bag["items"])


@pytest.mark.parametrize("place", LOCAL)
def test_every_env_has_its_own_copy_of_an_argument(place):
    def found(infos):
        return [info["found"] for info in infos]

    bag = {"items": []}
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        for ask in (
            lambda: found(pool.reset(options=bag)[1]),
            lambda: found(pool.reset(options=[dict(bag)] * 3)[1]),
            lambda: found(pool.reset(extra=bag)[1]),
            lambda: pool.call("take", bag),
            lambda: pool.apply(GreedyEnv.take, bag=bag),
        ):
            assert ask() == ask() == [[0], [1], [2]]
            assert bag == {"items": []}
        # What the caller changes later does not reach them either.
        pool.set_env_attr("bag", bag)
        pool.send_reset(options=bag)
        bag["items"].append("late")
        assert found(pool.recv()[4]) == pool.call("take") == [[0], [1], [2]]
        assert bag == {"items": ["late"]}
