"""Start and end: a pool gives back all that it takes, whichever way it ends."""

import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from envpool_py.worker import processes
from envpool_py.worker.channel import Channel
from tests.faults import helpers
from tests.faults.helpers import BROKEN, EACH, FNS, GOOD, NEW, count_fns, reset_pool, running
from tests.support import envs
from tests.support.helpers import descriptors, no_process_left, wait_until, wait_until_blocked
from tests.support.places import PLACES, slow
from tests.support.reference import HandStepped, Pending, check, check_reset

# ---------------------------------------------------------------------------------- close


@pytest.mark.parametrize(
    ("place", "fails", "raises"),
    [
        *((place, fails, False) for place in EACH for fails in (False, True)),
        ("shmem-fork-packed", False, True),
        *slow(*((place, True, False) for place in NEW)),
    ],
)
def test_close_closes_every_env_once_and_ends_every_process(place, fails, raises, tmp_path):
    path = tmp_path / "closed"
    fns = [functools.partial(envs.CloseEnv, i, str(path), fails and i == 1) for i in range(3)]
    with warnings.catch_warnings(record=True) as caught, no_process_left():
        warnings.simplefilter("always")
        pool = PLACES[place](fns)
        pool.reset()
        pids = set(pool.call("pid")) - {os.getpid()}
        assert bool(pids) == (place != "dummy")
        if raises:
            with pytest.raises(KeyError, match="mine"), pool:
                raise KeyError("mine")
        else:
            pool.close()
        assert pool.is_closed
        assert not any(map(running, pids))
        pool.close()
    # The error is not lost: close() warns when all the rest is done.
    found = [str(one.message) for one in caught if one.category is RuntimeWarning]
    assert ["env 1" in text and "want to close" in text for text in found] == [True] * fails
    assert sorted(path.read_text().split()) == ["0", "1", "2"]


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("place", ["shmem-fork", *slow("shmem-spawn")])
def test_close_ends_what_does_not_end(place, tmp_path):
    """One env ignores SIGTERM and has a child process, one is stopped, one is quick."""
    path = tmp_path / "pid"
    pool = PLACES[place](BROKEN)
    pids = pool.call("pid")
    pool.reset()
    pool.send([f"stubborn:{path}", "stop", ""])
    assert wait_until(lambda: path.exists() and path.read_text())
    assert wait_until(lambda: helpers.state_of(pids[1]) == "T")
    with no_process_left():
        pool.close()
    assert not any(map(running, pids))
    assert wait_until(lambda: not running(int(path.read_text())))


@pytest.mark.parametrize(
    ("place", "options", "hangs"),
    [
        ("dummy", {}, False),
        ("shmem-fork", {}, False),
        ("shmem-fork-packed", {"step_timeout": 60.0}, False),
        ("shmem-fork-packed", {}, True),
    ],
)
def test_another_thread_may_close_the_pool(place, options, hangs, gates, beside, monkeypatch):
    """Finding 28: of all calls, close() is the one that may come while another is under way."""

    def close():
        with gates[1].held():
            wait_until_blocked(threading.main_thread())
            closing = beside(pool.close)
            assert wait_until(lambda: pool.is_closed)
            if hangs:
                closing.finish()
            elif place != "dummy":
                assert refused.wait(60), "the call waits for the env"
        closing.finish()

    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1 if hangs else 120.0)
    refused = threading.Event()
    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]
    with no_process_left(), reset_pool(place, fns, **options) as pool:
        closer = beside(close)
        with pytest.raises(ClosedEnvironmentError):
            pool.step([envs.BLOCK], [1])
        refused.set()
        closer.finish()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    ("place", "sender", "raises"),
    [
        *((place, 0, False) for place in EACH),
        *((place, 2, True) for place in ("dummy", "shmem-fork-packed", "shmem-fork-caller")),
    ],
)
def test_a_signal_handler_may_close_the_pool(place, sender, raises):
    def handle(*_):
        pool.close()
        if raises:
            raise InterruptedError("as a program that is to end")

    with no_process_left(), helpers.handling(signal.SIGUSR1, handle):
        pool = PLACES[place](BROKEN)
        pool.reset()
        with pytest.raises(InterruptedError if raises else ClosedEnvironmentError):
            pool.step([f"signal:{os.getpid()}" if i == sender else "" for i in range(3)])
        assert pool.is_closed
        if place != "dummy":
            with pytest.raises(ClosedEnvironmentError):
                pool.workers[2].get_env_attr("metadata")


def test_close_waits_for_a_thread_that_reads_what_has_come(monkeypatch, beside):
    """Two threads must not work on the same messages."""
    inside, go_on = threading.Event(), threading.Event()
    at_work = []
    together = []
    collect = Channel.collect

    def slow_collect(channel, chunks):
        at_work.append(threading.current_thread())
        together.append(len(set(at_work)))
        if not inside.is_set():
            inside.set()
            go_on.wait(40)
        found = collect(channel, chunks)
        at_work.remove(threading.current_thread())
        return found

    def step():
        with pytest.raises(ClosedEnvironmentError):  # noqa: PT012 - one of many steps
            while True:
                pool.step(GOOD)

    def is_waiting():
        stack = traceback.walk_stack(sys._current_frames().get(closer.ident))
        return "await_end" in [frame.f_code.co_name for frame, _ in stack]

    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 60.0)
    with no_process_left():
        pool = PLACES["shmem-fork-packed"](FNS)
        pool.reset()
        monkeypatch.setattr(Channel, "collect", slow_collect)
        thread = beside(step)
        assert inside.wait(10)
        closer = beside(pool.close)
        assert wait_until(is_waiting)
        go_on.set()
        thread.finish()
        closer.finish()
    assert max(together) == 1


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", *slow(NEW[1])])
def test_only_an_unclosed_pool_is_collected_with_a_warning(place):
    for closes in (True, False):
        pool = PLACES[place](count_fns(2))
        name = type(pool).__name__
        pids = set(pool.call("pid")) - {os.getpid()}
        pool.loop = pool  # a cycle: only the collector can find it
        if closes:
            pool.close()
        del pool
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.collect()
        assert [one.category for one in caught] == [ResourceWarning] * (not closes)
        assert wait_until(lambda own=pids: not any(map(running, own)))
    assert f"unclosed {name}" in str(caught[0].message)


# ------------------------------------------------------------------------- forks and threads


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", *slow(*NEW)])
def test_a_pool_made_in_a_thread_outlives_it(place):
    made = []
    thread = threading.Thread(target=lambda: made.append(PLACES[place](count_fns(2))))
    thread.start()
    thread.join()
    with made[0] as pool:
        assert pool.reset()[0][:, 0].tolist() == [0, 1]
        assert pool.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("place", "closes"),
    [("shmem-fork-packed", False), ("shmem-fork-packed", True), *slow(*((p, True) for p in NEW))],
)
def test_a_forked_copy_of_a_pool_does_not_harm_it(place, closes):
    def use_the_copy():
        nonlocal pool
        if closes:
            pool.close()
        pool.loop = pool
        del pool
        gc.collect()

    with PLACES[place](count_fns(2)) as pool:
        keep = pool
        pool.reset()
        child = multiprocessing.get_context("fork").Process(target=use_the_copy)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert keep.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("end", ["closed", "unclosed", "hanging"])
def test_a_pool_made_in_a_forked_child(end):
    def use():
        processes.GRACE = 0.1
        pool = PLACES["shmem-fork-packed"](FNS)
        pool.reset()
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]
        writer.send(pool.call("pid"))
        kept.append(pool)
        if end == "hanging":
            pool.send(["hang", "", ""])
        if end == "closed":
            pool.close()

    kept = []
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        process = multiprocessing.get_context("fork").Process(target=use)
        process.start()
        pids = reader.recv()
        process.join()
        assert process.exitcode == 0
        assert wait_until(lambda: not any(map(running, pids)))
        process.close()


# --------------------------------------------------------------------------- many at once


@pytest.mark.slow
def test_a_thousand_envs_in_two_processes():
    fns, ids = count_fns(1000), range(1000)
    before = len(descriptors())
    hand, pending = HandStepped(fns), Pending(helpers.SPACE)
    with PLACES["shmem-fork-packed"](fns) as pool:
        assert len(descriptors()) - before < 50
        check_reset(pool.reset(seed=1), hand.reset(seeds=[1 + i for i in ids]), helpers.SPACE)
        actions = [np.int64(i % 100) for i in ids]
        check(pool.step(actions), hand.step(actions), helpers.SPACE)
        pool.wait_num = 100
        pool.send(actions)
        pending.add(hand.step(actions))
        while pending:
            left = len(pending)
            assert len(pending.take(pool.recv())) >= min(100, left)
