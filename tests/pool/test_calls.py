"""Calls: attributes and methods of the envs, copies of arguments, and what is refused.

`tests/support/session.py` reads, writes, calls and renders; `tests/unit` has forms of arguments.
"""

import copy
import functools
import gc
import os
import pickle
import sys
import threading
import types
from operator import methodcaller

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import BaseVectorEnv, DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.worker import SubprocEnvWorker
from tests.support import envs
from tests.support.helpers import no_process_left
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES, QUICK, slow

FNS = [functools.partial(envs.CountEnv, tag, 50) for tag in range(3)]


# ------------------------------------------------------------------- attributes and methods


def wrapped(tag=0):
    """Wrap a StoreEnv in a TimeLimit, in a wrapper whose actions are pairs."""
    limited = gym.wrappers.TimeLimit(envs.StoreEnv(tag, length=50), 3)
    pairs = spaces.MultiDiscrete([3, 4])
    return gym.wrappers.TransformAction(limited, lambda pair: int(pair[0] * 4 + pair[1]), pairs)


@pytest.fixture(params=BACKENDS)
def pool(request):
    fns = [functools.partial(wrapped, tag) for tag in range(3)]
    with PLACES[request.param](fns) as pool:
        yield pool


def test_attributes_are_those_of_the_outermost_wrapper_that_has_them(pool):
    raws = [wrapped(tag) for tag in range(3)]
    for name in ("tag", "setting", "read_only", "action_space", "_max_episode_steps"):
        assert pool.get_env_attr(name) == [raw.get_wrapper_attr(name) for raw in raws]
        assert pool.get_env_attr(name, [2, 0]) == [raws[i].get_wrapper_attr(name) for i in (2, 0)]
    assert pool.action_space == pool.get_env_attr("action_space")
    pool.set_env_attr("never seen", None)
    for name, value in {"tag": 44, "_max_episode_steps": 9, "never seen": [1, 2]}.items():
        pool.set_env_attr(name, value, id=1)
        assert [own == value for own in pool.get_env_attr(name)] == [False, True, False]
        pool.set_env_attr(name, value)
        assert pool.get_env_attr(name) == [value] * 3
    pool.set_env_attr("_max_episode_steps", 1, id=0)  # the TimeLimit's
    pool.set_env_attr("tag", 77, id=1)  # the base env's
    pool.set_env_attr("render_mode", "rgb_array")  # which wrappers forward and can't set
    assert pool.get_env_attr("render_mode") == ["rgb_array"] * 3
    pool.reset()
    assert pool.call("action", [2, 1]) == [9] * 3  # the outermost wrapper's
    obs, _, _, truncated, infos = pool.step(np.array([[2, 1], [0, 3], [1, 1]]))
    assert [info["action"] for info in infos] == [9, 3, 5]
    assert obs[:, 0].tolist() == [44, 77, 44]
    assert truncated.tolist() == [True, False, False]
    assert pool.get_env_attr("t") == pool.get_env_attr("_elapsed_steps") == [1, 1, 1]


def test_errors_of_attributes_need_no_reset(pool):
    pool.reset()
    with pytest.raises(LookupError, match="envs 0 to 2: call raised LookupError: oh") as caught:
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
        with pytest.raises(EnvError, match=f"envs? 1.*: .*{text}") as caught:
            ask()
        assert isinstance(caught.value, error)
        assert isinstance(caught.value.__cause__, error)
        assert caught.value.env_id == 1
    assert pool.step([[0, 0]] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PROCESSES[-1:])
def test_what_cannot_leave_its_process_or_reach_it(place):
    with PLACES[place]([functools.partial(envs.StoreEnv, tag) for tag in range(2)]) as pool:
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
        with pytest.raises(TypeError, match="env 1: the arguments of reset cannot be pickled"):
            pool.reset(options=[{}, {"lock": threading.Lock()}])
        assert pool.get_env_attr("tag") == [0, 1]
        assert pool.step([1, 1])[0].tolist() == [[0, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("place", QUICK)
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


# ------------------------------------------------------------------------- what is refused

IDS = [
    (3, IndexError, "env id 3 is out of range: this pool has envs 0 to 2"),
    ([1, 1], ValueError, "env id 1 is given twice"),
    ([0.0, 1.0], TypeError, r"float|0\.0"),
]


def takes_ids(ids):
    actions = [2] * np.size(ids)
    calls = [methodcaller(name, actions, ids) for name in ("step", "send")]
    calls += [methodcaller(name, ids) for name in ("reset", "send_reset", "cancel", "restart")]
    calls += [methodcaller("reset", id=ids), methodcaller("call", "counts", id=ids)]
    calls += [methodcaller("get_env_attr", "tag", ids), methodcaller("apply", str, id=ids)]
    return [*calls, methodcaller("set_env_attr", "tag", 9, ids)]


REFUSED = [
    *(
        (methodcaller(name, actions), (TypeError, ValueError), "action")
        for name in ("step", "send")
        for actions in ([1, 2], 5, [1, 2.5, 1])
    ),
    *(
        (methodcaller(name, seed=[1, 2]), ValueError, "got 2 seeds for 3 envs")
        for name in ("reset", "send_reset", "seed")
    ),
    (methodcaller("step", [1], [0, 2]), ValueError, "got 1 actions for 2 envs"),
    (methodcaller("send", None), TypeError, r"got None; to fetch rows, call recv\(\)"),
    (methodcaller("step", None), ValueError, "but no env is in flight"),
    (methodcaller("reset", options=[{}, 3, {}]), TypeError, "options"),
    (methodcaller("reset", [1], id=[1]), TypeError, "ids are given twice"),
    (methodcaller("call", "step", 2), ValueError, r"use pool\.step\(\)"),
    (methodcaller("__setattr__", "wait_num", 4), ValueError, "wait_num.*4"),
    (methodcaller("__setattr__", "timeout", "2"), TypeError, "timeout.*2"),
]


@pytest.mark.parametrize("place", LOCAL)
def test_a_call_that_is_refused_reaches_no_env(place):
    with PLACES[place](FNS) as pool:
        pool.reset([1])
        for ask in (pool.step, pool.send):
            with pytest.raises(ResetNeeded, match="env 2: reset before step"):
                ask([2, 2], [1, 2])
        assert pool.call("counts") == [(0, 0), (0, 1), (0, 0)]
        pool.seed(4)  # counts as a reset
        for ids, error, text in IDS:
            for call in takes_ids(ids):
                with pytest.raises(error, match=text) as caught:
                    call(pool)
                assert not isinstance(caught.value, EnvError)
        for ask, error, text in REFUSED:
            with pytest.raises(error, match=text):
                ask(pool)
        assert (pool.waiting_id, pool.wait_num, pool.timeout) == ([], 3, None)
        pool.send([2] * 3)
        for ids, error, text in IDS:
            with pytest.raises(error, match=text):
                pool.step(None, id=ids)
        assert pool.step(None, id=[2, 1, 0])[0].tolist() == [[2, 0, 1], [1, 1, 1], [0, 0, 1]]
        assert pool.reset(id=[2, 0])[0].tolist() == [[2, 1, 0], [0, 1, 0]]
        assert pool.reset(env_id=2)[0].tolist() == [[2, 2, 0]]


def test_use_after_close():
    pool = DummyVectorEnv(FNS)
    pool.close()
    names = ("reset", "recv", "send_reset", "drain", "seed", "render", "cancel", "restart", "stats")
    uses = [*map(methodcaller, (*names, "__enter__")), methodcaller("step", None)]
    uses += [methodcaller(name, [2, 2, 2]) for name in ("step", "send")]
    uses += [methodcaller(name, "tag") for name in ("get_env_attr", "call", "apply")]
    for use in (*uses, methodcaller("set_env_attr", "tag", 3)):
        with pytest.raises(ClosedEnvironmentError, match="DummyVectorEnv is closed"):
            use(pool)
    assert pool.is_closed
    assert len(pool) == pool.env_num == 3
    assert pool.observation_space[0] == envs.CountEnv().observation_space
    assert "closed" in repr(pool)


@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_a_pool_cannot_be_copied(kind):
    with kind(FNS) as pool:
        pool.reset()
        for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=rf"{kind.__name__}\b.*; \w+"):
                make_copy(pool)
        assert pool.step([0] * 3)[0][:, 2].tolist() == [1, 1, 1]


def test_an_unclosed_pool_is_closed_where_warnings_are_errors(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: unraisable.append(str(it.exc_value)))
    pool = ShmemVectorEnv(FNS)
    del pool
    gc.collect()
    assert unraisable == ["unclosed ShmemVectorEnv"]  # and no process is left: see conftest


# ------------------------------------------------------------------------- construction

OPTIONS = [
    ({"context": "thread"}, ValueError, "thread"),
    ({"context": 5}, TypeError, "context.* 5"),
    ({"wait_num": 4}, ValueError, "wait_num.*4"),
    ({"reset_fn": print, "record": "run"}, ValueError, "with reset_fn, .*use episode_seeds"),
]


def test_wrong_arguments_of_the_constructor():
    built = []
    for options, error, text in OPTIONS:
        with no_process_left(), pytest.raises(error, match=text):
            ShmemVectorEnv([functools.partial(built.append, 1)] * 3, **options)
    assert built == []

    class Own(SubprocEnvWorker):
        def recv(self):
            return super().recv()

    for kind, text in ((SubprocEnvWorker, "pass num_processes"), (Own, "drop num_processes, call")):
        with no_process_left(), pytest.raises((TypeError, ValueError), match=text):
            BaseVectorEnv(FNS, kind, caller_steps=True)


ONE = envs.CountEnv()
# As PettingZoo's parallel envs: the space of each agent is what a method returns.
AGENTS_ENV = type("AgentsEnv", (), dict.fromkeys(["reset", "step", "observation_space"], print))
NO_ENVS = [
    (int, "env 1: .*env_fn returned int, which has no reset and no step"),
    (functools.partial(types.SimpleNamespace, step=print), "env 1: .*which has no reset"),
    (functools.partial(types.SimpleNamespace, reset=print), "env 1: .*which has no step"),
    (AGENTS_ENV, "env 1: .*whose observation_space is a method"),
    (functools.partial(envs.ChangedEnv, space=envs.box("int32", (3,))), "env 1.*observation_space"),
    (envs.FaultEnv, "env 1.*action_space"),
    (lambda: ONE, "env 2.*env 1|envs 1.*2"),
]


ONE_HOST = {"dummy": {}, "shmem-fork-packed": {"num_processes": 1}, "thread": {"num_threads": 1}}


@pytest.mark.parametrize("place", LOCAL)
def test_an_env_fn_that_returns_no_env_or_another_kind_of_env(place):
    for make, text in NO_ENVS:
        fns = [envs.CountEnv, make, make]
        # Under fork, envs 1 and 2 are the same instance only where they share a process. Of two
        # threads, both may report an error.
        options = {**PLACES[place].options, **ONE_HOST[place]}
        with no_process_left(), pytest.raises((ValueError, TypeError), match=text) as caught:
            PLACES[place].pool(fns, **options)
        if text.startswith("env 1: "):
            assert isinstance(caught.value, EnvError)
            assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("context", ["fork", *slow("spawn")])
def test_env_fns_are_pickled_only_where_the_start_method_needs_it(context):
    lock, level = threading.Lock(), 3

    class LocalEnv(envs.CountEnv):
        """Known by no import."""

    def locked():
        with lock:
            return LocalEnv(level)

    picklable = [lambda: LocalEnv(level)] * 2
    for fns in (picklable, [locked]) if context == "fork" else (picklable,):
        with ShmemVectorEnv(fns, context=context) as pool:
            assert pool.reset()[0].tolist() == [[3, 0, 0]] * len(fns)
    if context != "fork":
        text = r"env 1: env_fn cannot be pickled: .*lock"
        with no_process_left(), pytest.raises(EnvError, match=text) as caught:
            ShmemVectorEnv([envs.CountEnv, locked], context=context)
        assert caught.value.env_ids == (1,)
