"""The workers of a pool: their calls are the pool's own; rows are asked of the pool alone."""

import functools
import gc
import os
import re
import signal
import weakref

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from envpool_py import BaseVectorEnv, DummyVectorEnv, WorkerDiedError
from envpool_py.worker import DummyEnvWorker, SubprocEnvWorker
from tests.faults.helpers import running
from tests.support import envs
from tests.support.doors import pid_of
from tests.support.helpers import wait_until
from tests.support.places import PLACES, PROCESSES, QUICK

FNS = [functools.partial(envs.CountEnv, tag, 50, render_mode="rgb_array") for tag in range(3)]


def add_to_tag(env, number):
    return env.unwrapped.tag + number


#: A call of a worker, and what it returns for env 1.
REPLIES = {
    "get_env_attr": (lambda worker: worker.get_env_attr("tag"), 1),
    "set_env_attr": (lambda worker: worker.set_env_attr("mark", 5), None),
    "call": (lambda worker: worker.call("add", 4, times=2), 9),
    "render": (lambda worker: worker.render(), envs.CountEnv(1, 50).render()),
    "apply": (lambda worker: worker.request("apply", add_to_tag, 7), 8),
}

#: A call of a worker that has a row, and what the error says to call.
ROWS = {
    "step": (lambda worker: worker.step(0), "pool.step([action], [1])"),
    "reset": (lambda worker: worker.reset(seed=3), "pool.reset([1])"),
    "seed": (lambda worker: worker.seed(3), "pool.reset([1], seed=...)"),
}


def check_refused(worker, name):
    call, instead = ROWS[name]
    text = f"env 1: {name}: this worker is in a pool; call {instead}"
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        call(worker)


@pytest.mark.parametrize("place", QUICK)
def test_a_call_of_a_worker_is_one_of_its_pool(place):
    with PLACES[place](FNS) as pool:
        worker = pool.workers[1]
        pool.reset()
        for name in ROWS:
            check_refused(worker, name)
        for call, expected in REPLIES.values():
            assert np.array_equal(call(worker), expected)
        pool.send([0] * 3)
        for call, _ in REPLIES.values():
            with pytest.raises(AlreadyPendingCallError, match="env 1: "):
                call(worker)
        pool.recv()
        assert pool.get_env_attr("mark", 1) == [5]
        with pytest.raises(AttributeError, match="envs 0, 2: "):
            pool.get_env_attr("mark")
        # The env was neither stepped nor reset.
        assert pool.step([0] * 3)[0].tolist() == [[i, 0, 2] for i in range(3)]
    for call, _ in REPLIES.values():
        with pytest.raises(ClosedEnvironmentError):
            call(worker)


@pytest.mark.parametrize("place", PROCESSES)
def test_a_worker_whose_process_was_killed(place):
    with PLACES[place](FNS) as pool:
        pool.reset()
        (pid,) = pool.apply(pid_of, id=1)
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not running(pid))
        for _ in range(2):
            for name in ROWS:
                check_refused(pool.workers[1], name)
            for call, _ in REPLIES.values():
                with pytest.raises(WorkerDiedError) as caught:
                    call(pool.workers[1])
                assert 1 in caught.value.env_ids
        pool.reset()
        assert pool.workers[1].get_env_attr("tag") == 1


def test_a_worker_does_not_keep_its_pool():
    pool = PLACES["dummy"](FNS)
    worker, ref = pool.workers[1], weakref.ref(pool)
    pool.close()
    del pool
    gc.collect()
    assert ref() is None
    with pytest.raises(ClosedEnvironmentError, match="env 1: the pool of this worker is closed"):
        worker.get_env_attr("tag")


def test_a_subclass_may_ask_its_workers():
    class Own(DummyVectorEnv):
        def get_env_attr(self, key):
            return [self.workers[i].get_env_attr(key) for i in range(len(self))]

    with Own(FNS) as pool:
        assert pool.get_env_attr("tag") == [0, 1, 2]


@pytest.mark.parametrize("base", [DummyEnvWorker, SubprocEnvWorker])
def test_a_custom_worker_keeps_its_calls(base):
    class Own(base):
        sent = ()

        def send(self, request):
            self.sent = (*self.sent, request.kind)
            super().send(request)

    with BaseVectorEnv(FNS, Own) as pool:
        pool.reset()
        assert pool.step([0] * 3)[0].tolist() == [[i, 0, 1] for i in range(3)]
        assert pool.workers[1].get_env_attr("tag") == 1
        assert pool.workers[1].sent[-3:] == ("reset", "step", "get_attr")
