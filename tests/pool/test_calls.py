"""Calls and constructors that are refused: clearly, before an env is touched; the pool goes on."""

import copy
import functools
import gc
import multiprocessing
import pickle
import re
import sys
import threading
import types
from operator import methodcaller

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from tests.faults.helpers import run_script
from tests.support import envs
from tests.support.helpers import no_process_left
from tests.support.places import LOCAL, PLACES, slow

FNS = [functools.partial(envs.CountEnv, tag, 50) for tag in range(3)]

# ------------------------------------------------- calls; `tests/unit` has every form of arguments

IDS = [
    (3, IndexError, "env id 3 is out of range: this pool has envs 0 to 2"),
    ([1, 1], ValueError, "env id 1 is given twice"),
    ([0.0, 1.0], TypeError, "float|0.0"),
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
    names = ("reset", "recv", "send_reset", "drain", "seed", "render", "cancel", "restart")
    uses = [
        *map(methodcaller, (*names, "__enter__", "stats")),
        *(methodcaller(name, [2, 2, 2]) for name in ("step", "send")),
        *(methodcaller(name, "tag") for name in ("get_env_attr", "call", "apply")),
        methodcaller("step", None),
        methodcaller("set_env_attr", "tag", 3),
    ]
    for use in uses:
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


def test_a_forked_copy_says_that_it_is_one():
    def use_the_copy():
        with pytest.raises(RuntimeError, match="was made in process"):
            pool.step([0, 0, 0])

    with PLACES["shmem-fork-packed"](FNS) as pool:
        pool.reset()
        child = multiprocessing.get_context("fork").Process(target=use_the_copy)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert pool.reset()[0].shape == (3, 3)


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
    ({"context": 5}, TypeError, "context.*5|5"),
    ({"num_processes": 0}, ValueError, "num_processes.*0"),
    ({"wait_num": 4}, ValueError, "wait_num.*4"),
    ({"autoreset_mode": "sometimes"}, ValueError, "sometimes"),
    ({"reset_fn": 5}, TypeError, "reset_fn"),
]


def test_wrong_arguments_of_the_constructor():
    built = []
    for options, error, text in OPTIONS:
        with no_process_left(), pytest.raises(error, match=text):
            ShmemVectorEnv([functools.partial(built.append, 1)] * 3, **options)
    assert built == []


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


@pytest.mark.parametrize("place", LOCAL)
def test_an_env_fn_that_returns_no_env_or_another_kind_of_env(place):
    for make, text in NO_ENVS:
        fns = [envs.CountEnv, make, make]
        # Under fork, envs 1 and 2 are the same instance only where they share a process.
        options = {} if place == "dummy" else {**PLACES[place].options, "num_processes": 1}
        with no_process_left(), pytest.raises((ValueError, TypeError), match=text) as caught:
            PLACES[place].pool(fns, **options)
        if text.startswith("env 1: "):
            assert isinstance(caught.value, EnvError)
            assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("context", ["fork", *slow("spawn", "forkserver")])
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


@pytest.mark.slow
def test_no_main_guard(tmp_path):
    text = """
        from gymnasium.envs.classic_control import CartPoleEnv
        import envpool_py
        envpool_py.ShmemVectorEnv([CartPoleEnv] * 2, context="spawn")
    """
    done = run_script(tmp_path, text)
    assert done.returncode == 1
    text = r"WorkerDiedError: env [01]: the worker process exited with code 1"  # both do
    assert re.search(text, done.stderr)
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stdout == ""
