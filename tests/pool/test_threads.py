"""Envs in threads: each in its own thread, all at once; what happens if a thread hangs."""

import functools
import gc
import os
import threading
import time
import traceback

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from envpool_py import EnvTimeoutError, ShmemVectorEnv, ThreadVectorEnv, WorkerDiedError, make
from envpool_py.engine import flight, requested_restarts
from envpool_py.testing import EnvWorkerContract
from envpool_py.threads import thread_host
from envpool_py.threads.thread_host import ThreadEnvWorker
from envpool_py.worker import supervisor, watchdog
from tests.faults.helpers import await_hang, expire
from tests.support import envs
from tests.support.helpers import wait_until
from tests.support.places import PLACES

THREADS = ("thread", "thread-packed")


class TestThreadEnvWorker(EnvWorkerContract):
    make_worker = staticmethod(ThreadEnvWorker)


class OwnThreadEnv(gym.Env):
    """Refuses calls in another thread than that of its construction, and two at once."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, tag=0):
        self.tag, self.thread, self.busy = tag, threading.get_ident(), threading.Lock()

    def check(self):
        assert self.thread == threading.get_ident()
        assert self.busy.acquire(blocking=False)
        time.sleep(1e-4)  # another thread has its turn
        self.busy.release()
        return os.getpid(), self.thread

    def reset(self, **_):
        self.check()
        self.count = 0
        return np.zeros(1), {}

    def step(self, _):
        self.check()
        self.count += 1
        return np.array([float(self.count)]), 1.0, self.count == 3, False, {}

    def close(self):
        self.check()


@pytest.mark.parametrize("wait_num", [None, 1])
@pytest.mark.parametrize("place", THREADS)
def test_an_env_stays_in_its_thread(place, wait_num):
    fns = [functools.partial(OwnThreadEnv, tag) for tag in range(3)]
    with PLACES[place](fns, wait_num=wait_num, autoreset_mode="same_step") as pool:
        pool.reset()
        for _ in range(20):
            pool.send([0] * 3)
            pool.cancel([0])
            pool.drain()
            pool.reset([0])
        threads = pool.call("check")
        assert len(set(threads)) == (2 if place == "thread-packed" else 3)
        pool.restart([1])
        pool.reset()
        pool.step([0] * 3)


class GatedEnv(OwnThreadEnv):
    """Action 1 waits for its gate, whatever exception an abandoned thread gets."""

    gates = (threading.Event(), threading.Event())
    returned = threading.Event()

    def step(self, action):
        if action == 1:
            while True:
                try:
                    assert self.gates[self.tag].wait(120)
                    break
                except KeyboardInterrupt:
                    pass
            self.returned.set()
            return np.array([666.0]), 666.0, True, True, {"late": True}
        return super().step(action)


@pytest.fixture
def gated():
    for event in (*GatedEnv.gates, GatedEnv.returned):
        event.clear()
    yield [functools.partial(GatedEnv, tag) for tag in range(2)]
    for event in GatedEnv.gates:
        event.set()


def threads_named(name="envpool_py"):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_the_row_of_an_abandoned_thread_is_dropped(gated, on_error):
    with ThreadVectorEnv(gated, step_timeout=60.0, on_error=on_error) as pool:
        pool.reset()
        text = "env 1: did not end its request within step_timeout=60.0 seconds"
        pool.send([0, 1])
        await_hang(pool, 1, [0])
        expire(pool)
        if on_error == "raise":
            with pytest.raises(EnvTimeoutError, match=text) as caught:
                pool.recv()
            assert caught.value.env_ids == (1,)
            assert "thread was abandoned" in caught.value.message
            assert "in wait" in str(caught.value)
            assert pool.recv()[0].tolist() == [[1]]
            with pytest.raises(WorkerDiedError, match="env 1: the thread was abandoned: env 1"):
                pool.step([0], [1])
            assert pool.step([0], [0])[0].tolist() == [[2]]
        else:
            _, _, _, truncated, infos = pool.recv()
            assert truncated.tolist() == [False, True]
            assert text in infos[1]["env_error"]
        pool.reset()
        assert pool.restarts.tolist() == [0, 1]
        assert len(threads_named("envpool_py 1-1")) == 2
        pool.send([0, 0])
        assert wait_until(lambda: len(pool.engine.hosts.supervisor.poller._arrived) == 2)
        GatedEnv.gates[1].set()  # the abandoned thread goes on
        assert GatedEnv.returned.wait(120)
        assert wait_until(lambda: len(threads_named("envpool_py 1-1")) == 1)
        obs, rewards, terminated, _, infos = pool.recv()
        assert obs.tolist() == [[1], [1]]
        assert rewards.tolist() == [1, 1]
        assert not terminated.any()
        assert "late" not in infos[1]


def test_close_abandons_a_thread_that_hangs(gated, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.3)
    pool = ThreadVectorEnv(gated, num_threads=1)
    pool.reset()
    pool.send([0, 1])
    assert wait_until(lambda: abs(pool.engine.block.heartbeats["env"][0]) == 2)
    text = r"env 1: could not be closed: the thread was abandoned: .*; nor could env 0, of the same"
    with pytest.warns(RuntimeWarning, match=text):
        pool.close()
    assert len(threads_named()) == 1
    GatedEnv.gates[1].set()
    assert wait_until(lambda: not threads_named())


class HangsInClose(envs.CountEnv):
    gate = threading.Event()

    def close(self):
        self.gate.wait()


def test_close_waits_once_for_all_threads_that_hang_in_it(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.3)
    monkeypatch.setattr(thread_host, "_ROW_ENDS_WITHIN", 100.0)  # of a thread that writes a row
    HangsInClose.gate.clear()
    pool = ThreadVectorEnv([HangsInClose] * 4)
    pool.reset()
    with pytest.warns(RuntimeWarning, match=r"env \d: could not be closed: the thread was"):
        pool.close()
    HangsInClose.gate.set()
    assert wait_until(lambda: not threads_named())


def test_restart_by_hand_of_a_thread_that_hangs(gated, monkeypatch):
    monkeypatch.setattr(requested_restarts, "GRACE", 0.3)
    with ThreadVectorEnv(gated) as pool:
        pool.reset()
        pool.send([0, 1])
        pool.cancel()
        pool.restart([1])
        assert pool.reset()[0].tolist() == [[0], [0]]
        assert pool.step([0, 0])[0].tolist() == [[1], [1]]


def test_a_pool_that_is_closed_just_before_a_wait_does_not_wait(monkeypatch):
    """As by a signal handler, whose close takes the message that it has sent to the wait."""

    def fetch(*args):
        monkeypatch.setattr(poller, "fetch", wait)
        pool.close()
        return wait(*args)

    pool = ThreadVectorEnv([OwnThreadEnv] * 2)
    pool.reset()
    poller = pool.engine.hosts.supervisor.poller
    wait = poller.fetch
    monkeypatch.setattr(poller, "fetch", fetch)
    monkeypatch.setattr(flight, "HANGS_AFTER", 1e5)
    with pytest.raises(ClosedEnvironmentError):
        pool.step([0, 0])


def test_threads_that_cannot_be_started(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    text = "can't start new thread: cannot start thread 0 of 2; pass a smaller num_threads"
    with pytest.raises(OSError, match=text):
        ThreadVectorEnv([OwnThreadEnv] * 2)


def test_a_fork_cannot_use_the_threads_and_a_pool_may_be_made_there():
    def make():
        with ThreadVectorEnv([OwnThreadEnv] * 2) as own:
            own.reset()
            assert own.step([0, 0])[0].tolist() == [[1], [1]]
        with pytest.raises(RuntimeError, match="a fork of it cannot use its workers"):
            pool.step([0, 0])
        return OwnThreadEnv()

    with ThreadVectorEnv([OwnThreadEnv] * 2) as pool:
        pool.reset()
        ShmemVectorEnv([make], context="fork").close()
        pool.step([0, 0])


def test_num_threads_is_refused():
    with pytest.raises(ValueError, match="num_threads must be 1 or more, got 0"):
        ThreadVectorEnv([OwnThreadEnv], num_threads=0)
    with pytest.raises(TypeError, match="num_threads"):
        make(OwnThreadEnv, 3, num_threads=2)


def test_no_garbage_is_collected_while_the_stack_of_a_running_thread_is_read():
    """In Python 3.11 that ended the process now and then: the thread went on meanwhile."""
    go_on, started, calls = threading.Event(), threading.Event(), []

    def wait(depth):
        if depth:
            wait(depth - 1)
        else:
            started.set()
            go_on.wait()

    thread = threading.Thread(target=wait, args=(50,))
    thread.start()
    started.wait()
    threshold = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(
        lambda *_: calls.append([frame.name for frame in traceback.extract_stack()])
    )
    gc.set_threshold(1)
    try:
        watchdog.stack_of_thread(thread.ident)
    finally:
        gc.set_threshold(*threshold)
        del gc.callbacks[-1]
        go_on.set()
        thread.join()
    assert calls, "garbage was collected"
    assert not [names for names in calls if "walk_stack" in names]
    assert gc.isenabled()


def test_an_env_may_be_where_an_earlier_one_of_another_thread_was():
    """Its address is that of env 0 before a restart; here both have the same ``unwrapped``."""
    a, b, c = (envs.CountEnv() for _ in range(3))
    bases = [iter([a, c]), iter([b, a])]

    class Placed(envs.FaultEnv):
        unwrapped = None

        def __init__(self, tag):
            super().__init__(tag)
            self.unwrapped = next(bases[tag])

    fns = [functools.partial(Placed, tag) for tag in range(2)]
    with ThreadVectorEnv(fns, step_timeout=60.0) as pool:
        pool.reset()
        pool.restart([0])
        pool.reset([0])
        pool.send(["", "loop"])
        pool.step(None, [0])
        assert wait_until(lambda: pool.engine.block.heartbeats["env"][1] == 2)
        expire(pool)
        with pytest.raises(EnvTimeoutError):
            pool.recv()
        assert pool.reset()[0][:, 0].tolist() == [0, 1]
