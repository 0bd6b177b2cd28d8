"""Start and end: a pool gives back all that it takes, whichever way it ends or cannot be made."""

import errno
import gc
import multiprocessing.shared_memory
import os
import re
import resource
import signal
import sys
import threading
import traceback
import warnings
from functools import partial
from pathlib import Path

import pytest
from gymnasium.error import ClosedEnvironmentError

from envpool_py import (
    DummyVectorEnv,
    EnvError,
    EnvTimeoutError,
    ShmemVectorEnv,
    ThreadVectorEnv,
    WorkerDiedError,
)
from envpool_py.pool import call_guard
from envpool_py.worker import fork_server, process_host, supervisor
from envpool_py.worker.poller import Poller
from tests.faults import helpers
from tests.faults.helpers import BROKEN, EACH, FNS, GOOD, NEW, count_fns, kill, reset_pool, running
from tests.support import broken, envs
from tests.support.helpers import (
    descriptors,
    no_process_left,
    wait_until,
    wait_until_blocked,
)
from tests.support.places import PLACES, paired, slow


@pytest.mark.parametrize(
    ("num_envs", "options", "here", "shares"),
    [
        (5, {}, 0, [1, 1, 1, 1, 1]),
        (5, {"num_processes": 3}, 0, [1, 2, 2]),
        (8, {"num_processes": 1, "caller_steps": True}, 4, [4]),
        (8, {"num_processes": 1, "caller_steps": True, "wait_num": 2}, 2, [6]),
        (9, {"num_processes": 2, "caller_steps": True}, 3, [3, 3]),
        (1, {"num_processes": 1, "caller_steps": True}, 0, [1]),
    ],
)
def test_where_envs_are(num_envs, options, here, shares):
    with ShmemVectorEnv(count_fns(num_envs), context="fork", **options) as pool:
        pids = pool.call("pid")
    assert [pid == os.getpid() for pid in pids] == [i >= num_envs - here for i in range(num_envs)]
    assert sorted(pids.count(pid) for pid in {*pids} - {os.getpid()}) == shares


@pytest.mark.slow
def test_two_thousand_envs():
    with reset_pool("shmem-fork-packed", count_fns(2048)) as pool:
        for step in (1, 2):
            obs, *_, infos = pool.step([i % 100 for i in range(2048)])
            assert obs.tolist() == [[i, 0, step] for i in range(2048)]
            assert [info["action"] for info in infos] == [i % 100 for i in range(2048)]


def test_the_start_method_is_that_of_multiprocessing():
    """Of others see `test_descriptors.py`."""
    with ShmemVectorEnv([envs.CountEnv]) as pool:
        assert multiprocessing.get_start_method() in repr(pool)


# What an env_fn does, and the error.
FAILS = {
    "raise": (partial(envs.raise_in_constructor, "no"), "env {}: env_fn raised ValueError: no"),
    "exit": (partial(sys.exit, 37), "env {}: env_fn raised SystemExit: 37"),
    "die": (partial(os._exit, 37), "env [012]: .*exited with code 37 while starting"),
}


@pytest.mark.parametrize(
    ("place", "how", "bad"),
    [
        *((place, "raise", bad) for place in ("dummy", "shmem-fork-packed") for bad in range(3)),
        *(("shmem-fork", how, 1) for how in FAILS),
        *(("shmem-fork-caller", how, bad) for how, bad in (("raise", 2), ("die", 1))),
        ("dummy", "exit", 1),
        *slow(*paired(NEW, ["raise", "die"], [1])),
    ],
)
def test_a_constructor_that_fails_half_way_leaves_nothing(place, how, bad, tmp_path):
    path = tmp_path / "closed"
    path.touch()
    fns = [partial(envs.CloseEnv, tag, str(path)) for tag in range(3)]
    fns[bad], text = FAILS[how]
    before = len(descriptors())
    with no_process_left(), pytest.raises(EnvError, match=text.format(bad)) as caught:
        PLACES[place](fns)
    error = caught.value
    assert error.env_ids == (bad,) or (how == "die" and bad in error.env_ids)
    assert isinstance(error, WorkerDiedError) == (how == "die")
    assert [isinstance(e, ValueError) for e in (error, error.__cause__)] == [how == "raise"] * 2
    assert ('`if __name__ == "__main__":`' in str(error)) == (how == "die" and place in NEW)
    del caught, error
    gc.collect()
    assert len(descriptors()) <= before
    if place in helpers.IN_CALLER and how == "raise":  # the envs that had been built are closed
        assert sorted(path.read_text().split()) == [str(i) for i in range(bad)]


@pytest.mark.parametrize(
    ("code", "place"), [(None, "shmem-fork"), *slow((errno.EPERM, "shmem-forkserver"))]
)
def test_a_process_without_a_pidfd(code, place, monkeypatch, tmp_path):
    """As on macOS, on an old Linux, in some containers, or if it was reaped before."""

    def refuse(pid):
        raise OSError(code, os.strerror(code), pid)

    if code is None:
        monkeypatch.delattr("os.pidfd_open")
    else:
        monkeypatch.setattr("os.pidfd_open", refuse)
    with no_process_left():
        with pytest.raises(WorkerDiedError, match=r"env 0: .*exited with code 37 while starting"):
            PLACES[place]([partial(os._exit, 37)])
        with reset_pool("shmem-fork", count_fns(2)) as pool:
            kill(pool, 1)
            text = "env 1: .*was killed by SIGKILL; perhaps the system was out of memory$"
            with pytest.raises(WorkerDiedError, match=text):
                pool.step([0, 0])
        with reset_pool("shmem-fork", BROKEN[:2]) as pool:
            with pytest.raises(WorkerDiedError, match="env 1: .*exited with code 37"):
                pool.step(["", f"orphan:{tmp_path / 'pid'}"])
            assert pool.recv()[0][:, 0].tolist() == [0]


def test_an_env_fn_that_hangs_is_named_and_can_be_interrupted(tmp_path, beside, monkeypatch):
    def interrupt():
        assert wait_until(lambda: warned and path.exists() and path.read_text())
        helpers.signalling(signal.SIGINT)()

    monkeypatch.setattr(supervisor, "GRACE", 0.1)
    monkeypatch.setattr("envpool_py.worker.supervisor.SLOW_START", 0.1)
    path = tmp_path / "pid"
    with warnings.catch_warnings(record=True) as warned, no_process_left():
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of the fork beside a thread
        beside(interrupt)
        with pytest.raises(KeyboardInterrupt):
            PLACES["shmem-fork"]([envs.CountEnv, partial(broken.hang_at_birth, path)])
    # On a busy machine env 0 may be late as well.
    text = r"env(s 0 to)? 1: env_fn has not returned after 0\.1 seconds; still waiting"
    assert [bool(re.fullmatch(text, str(one.message))) for one in warned] == [True]


def test_an_env_fn_that_hangs_has_a_limit_with_step_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAKES_WITHIN", 1.0)
    fns = [partial(broken.hang_at_birth, tmp_path / "pid")]
    text = r"env 0: did not return from env_fn within .* seconds \(.*py:\d+\); its .* was"
    with no_process_left(), pytest.raises(EnvTimeoutError, match=text) as caught:
        PLACES["shmem-fork"](fns, step_timeout=0.2)
    assert caught.value.env_ids == (0,)


@pytest.mark.slow
def test_a_fork_server_that_does_not_answer_is_replaced(monkeypatch):
    monkeypatch.setattr(fork_server, "ANSWERS_WITHIN", 0.5)
    monkeypatch.setattr(process_host, "ENDS_WITHIN", 0.5)
    stopped, stop = [], fork_server.Context.stop
    monkeypatch.setattr(
        fork_server.Context, "stop", lambda self: stopped.append(0) or stop(self), raising=False
    )
    with no_process_left():
        pool = ShmemVectorEnv(FNS * 2, context="forkserver", **helpers.RESTART)
        pool.reset()
        (context,) = pool.engine.hosts.supervisor._servers
        for crashes in (True, False):
            os.kill(context._server._forkserver_pid, signal.SIGSTOP)
            if crashes:
                kill_all(pool.call("pid")[:1])
            infos = pool.step([""] * 6)[4]
            assert ["env_error" in info for info in infos] == [crashes] + [False] * 5
            pool.reset()
        os.kill(context._server._forkserver_pid, signal.SIGSTOP)
        kill_all(pool.call("pid"))
        del stopped[:]
        pool.close()
        assert len(stopped) == 1, "one process is waited for, not each of six"


def kill_all(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(running, pids)))


@pytest.mark.parametrize("place", ["shmem-fork", "dummy"])
def test_each_pool_that_is_forked_beside_threads_warns_once(place, monkeypatch):
    """Python 3.12 warns of each process; the pool warns once, and names the remedy."""

    def warning_fork():
        text = f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to ..."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return fork()

    fork = os.fork
    monkeypatch.setattr(os, "fork", warning_fork)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with PLACES[place](FNS) as pool:
                pool.reset()
                if place == "shmem-fork":
                    kill(pool, 0)
                pool.restart([0])
                assert pool.reset([0])[0].tolist() == [[0, 0, 0]]
        assert [one.category for one in caught] == [DeprecationWarning] * (place == "shmem-fork")
        assert all('context="forkserver"' in str(one.message) for one in caught)


@pytest.mark.slow
def test_a_limit_on_open_files():
    """Wherever the descriptors end, the constructor says so, or works; and nothing is left."""
    place, refused = PLACES["shmem-fork"], []
    place(FNS).close()  # for the resources that are allocated once and kept
    opened = descriptors()
    free = [fd for fd in range(200) if fd not in opened]
    for more in range(1, 32):
        with no_process_left(), helpers.limited(resource.RLIMIT_NOFILE, free[more]):
            try:
                with place(FNS, step_timeout=60.0) as pool:
                    assert pool.reset()[0].shape == (3, 3)
            except OSError as error:
                refused.append(str(error))
                assert error.errno == errno.EMFILE  # noqa: PT017 - it may raise or not
    assert 5 < len(refused) < 31
    text = (
        r"cannot start worker process \d of \d; raise `ulimit -n`, or pass a smaller num_processes"
    )
    assert any(re.search(text, shown) for shown in refused)
    with place(FNS) as pool:
        helpers.kill(pool, 1)
        free = sorted({*range(200)} - {*descriptors()})
        with helpers.limited(resource.RLIMIT_NOFILE, free[4]), pytest.raises(OSError, match="open"):
            pool.restart([1])
        with pytest.raises(
            WorkerDiedError, match="env 1: the worker process was killed by SIGKILL"
        ):
            pool.call("pid")


def test_shared_memory_is_refused():
    error = pytest.raises(MemoryError, match=r"cannot get \d+ bytes of shared memory for observ")
    with no_process_left(), helpers.limited(resource.RLIMIT_FSIZE, 4 << 20), error:
        PLACES["shmem-fork-packed"]([broken.WideEnv] * 2)


@pytest.mark.slow
def test_shared_memory_has_no_name(monkeypatch, tmp_path):
    """More than the 64 MB of /dev/shm in a container, and neither there nor in a folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    before = in_shared_memory()
    with ShmemVectorEnv([broken.WideEnv] * 17, context="fork", num_processes=1):
        assert "memfd:envpool" in Path("/proc/self/maps").read_text()
        assert in_shared_memory() == before


def in_shared_memory():
    """What this process maps from /dev/shm."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "/dev/shm/" in line]


def test_no_port_is_open():
    """Every socket of the program and of a process of the pool is a local one."""
    with PLACES["shmem-fork-packed"](count_fns(3)) as pool:
        opened = [descriptors(), *pool.apply(lambda _: descriptors())]
        links = {link for own in opened for link in own.values() if link.startswith("socket:[")}
        local = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
        assert links
        assert links <= {f"socket:[{inode}]" for inode in local}


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
    fns = [partial(envs.CloseEnv, i, str(path), fails and i == 1) for i in range(3)]
    with warnings.catch_warnings(record=True) as caught, no_process_left():
        warnings.simplefilter("always")
        pool = PLACES[place](fns)
        if raises:
            with pytest.raises(KeyError, match="mine"), pool:
                raise KeyError("mine")
        for _ in range(2):
            pool.close()
            assert pool.is_closed
    # The error is not lost: close() warns when all the rest is done.
    found = [str(one.message) for one in caught if one.category is RuntimeWarning]
    assert ["env 1" in text and "want to close" in text for text in found] == [True] * fails
    assert sorted(path.read_text().split()) == ["0", "1", "2"]


@pytest.mark.parametrize("place", ["shmem-fork", *slow("shmem-spawn")])
def test_close_ends_what_does_not_end(place, tmp_path, monkeypatch):
    """One env ignores SIGTERM and has a child process, one is stopped, one is quick."""
    monkeypatch.setattr(supervisor, "GRACE", 0.1)
    path = tmp_path / "pid"
    pool = PLACES[place](BROKEN)
    pids = pool.call("pid")
    pool.reset()
    pool.send([f"stubborn:{path}", "stop", ""])
    assert wait_until(lambda: path.exists() and path.read_text())
    assert wait_until(lambda: helpers.state_of(pids[1]) == "T")
    expected = pytest.warns(RuntimeWarning, match=r"env [01]: could not be closed: the worker")
    with no_process_left(), expected:
        pool.close()
    assert not any(map(running, pids))
    assert wait_until(lambda: not running(int(path.read_text())))


@pytest.mark.parametrize(
    ("place", "options"),
    [
        *((place, {}) for place in ("dummy", "shmem-fork", "thread")),
        ("shmem-fork-packed", {"step_timeout": 60.0}),
    ],
)
def test_another_thread_may_close_the_pool(place, options, gates, beside, monkeypatch):
    """Of all calls, close() is the one that may come while another is under way."""

    def close():
        with gates[1].held():
            wait_until_blocked(threading.main_thread())
            closing = beside(pool.close)
            assert wait_until(lambda: pool.is_closed)
            assert place == "dummy" or refused.wait(60), "the call waits for the env"
        closing.finish()

    monkeypatch.setattr(supervisor, "GRACE", 120.0)
    refused = threading.Event()
    fns = [partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]
    with no_process_left(), reset_pool(place, fns, **options) as pool:
        closer = beside(close)
        with pytest.raises(ClosedEnvironmentError):
            pool.step([envs.BLOCK], [1])
        refused.set()
        closer.finish()


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


@pytest.mark.parametrize("by", ["thread", "handler"])
@pytest.mark.parametrize(
    ("options", "request_"),
    [
        ({}, lambda pool: pool.restart(0)),
        ({"on_error": "restart"}, lambda pool: pool.step(["value"])),
        ({"recycle": 1}, lambda pool: pool.reset()),
    ],
)
def test_a_pool_is_closed_while_an_env_is_recreated(options, request_, by, beside):
    def make():
        made.append(len(made))
        if len(made) > 1 and by == "thread":
            closers.append(beside(pool.close))
            assert wait_until(lambda: pool.is_closed)
        elif len(made) > 1:
            pool.close()
        return envs.ClosingEnv(0, partial(closed.append, made[-1]))

    made, closers, closed = [], [], []
    pool = DummyVectorEnv([make], **options)
    pool.reset()
    pool.step([""])
    with pytest.raises(ClosedEnvironmentError):
        request_(pool)
    for each in closers:
        each.finish()
    assert sorted(closed) == made == [0, 1]


def test_close_waits_for_a_thread_that_reads_what_has_come(beside, monkeypatch):
    """Two threads must not work on the same messages."""

    def collect_late(poller, chunks):
        if not inside.is_set():
            inside.set()
            waited.append(wait_until(close_waits))
        return collect(poller, chunks)

    def close_waits():
        stacks = map(traceback.walk_stack, sys._current_frames().values())
        return any(
            frame.f_code is call_guard.await_end.__code__ for each in stacks for frame, _ in each
        )

    def step():
        with pytest.raises(ClosedEnvironmentError):  # noqa: PT012 - one of many steps
            while True:
                pool.step(GOOD)

    collect, inside, waited = Poller.collect, threading.Event(), []
    with no_process_left(), reset_pool("shmem-fork-packed", FNS) as pool:
        monkeypatch.setattr(Poller, "collect", collect_late)
        stepping = beside(step)
        assert inside.wait(60)
        pool.close()
        stepping.finish()
    assert waited == [True]


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


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", *slow(NEW[1])])
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
    [*paired(["shmem-fork-packed"], [False, True]), *slow((NEW[1], True))],
)
def test_a_forked_copy_of_a_pool_does_not_harm_it(place, closes):
    def use_the_copy():
        nonlocal pool
        with pytest.raises(RuntimeError, match="was made in process"):
            pool.step([0, 0])
        if closes:
            pool.close()
        pool.loop = pool
        del pool
        gc.collect()

    with reset_pool(place, count_fns(2)) as pool:
        keep = pool
        child = multiprocessing.get_context("fork").Process(target=use_the_copy)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert keep.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_a_pool_made_in_a_forked_child():
    def use():
        supervisor.GRACE = 0.1
        pool = PLACES["shmem-fork-packed"](FNS)
        pool.reset()
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]
        kept.append(pool)
        writer.send(pool.call("pid"))
        pool.send(["hang", "", ""])

    kept = []
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        pids = reader.recv()
        child.join()
    assert child.exitcode == 0
    assert wait_until(lambda: not any(map(running, pids)))


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    wait_until(lambda: False)


@pytest.mark.parametrize(
    ("end", "text"),
    [(helpers.raising(KeyboardInterrupt("its own")), "^its own$"), (press_ctrl_c, "^$")],
)
def test_a_keyboard_interrupt_in_a_close(end, text):
    closed = []
    fns = [partial(envs.ClosingEnv, 0, end), partial(envs.ClosingEnv, 1, partial(closed.append, 1))]
    pool = PLACES["dummy"](fns)
    with pytest.raises(KeyboardInterrupt, match=text):
        pool.close()
    pool.close()
    assert closed == [1]


def test_a_worker_process_that_ends_between_requests_says_why():
    """A handler of the env raises while the process waits for requests."""

    def reset(_, row):
        signal.signal(signal.SIGALRM, helpers.raising(TimeoutError("the simulator's own alarm")))
        return row

    pool = PLACES["shmem-fork"]([partial(envs.ChangedEnv, reset=reset)])
    pool.reset()
    (host,) = pool.engine.hosts.supervisor.hosts
    assert wait_until(lambda: helpers.state_of(host.process.pid) == "S")
    os.kill(host.process.pid, signal.SIGALRM)
    assert wait_until(host.has_ended)
    text = r"ended by an exception between requests: TimeoutError: the simulator's own alarm"
    with pytest.raises(WorkerDiedError, match=rf"env 0: .*{text} \(helpers.py:\d+\)"):
        pool.step([0])
    pool.close()


@pytest.mark.parametrize("interrupted", [1, 2])
def test_an_interrupt_while_threads_start_leaves_none_of_them(interrupted, monkeypatch):
    started, closed, begin = [], [], threading.Thread.start

    def start(thread):
        begin(thread)
        if thread.name.startswith("envpool_py"):
            started.append(thread)
            if len(started) == interrupted:
                signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(threading.Thread, "start", start)
    with (
        helpers.handling(signal.SIGUSR1, helpers.raising(InterruptedError())),
        pytest.raises(InterruptedError),
    ):
        ThreadVectorEnv([partial(envs.ClosingEnv, i, partial(closed.append, i)) for i in range(2)])
    assert not any(thread.is_alive() for thread in started)
    assert sorted(closed) == [*range(len(started))]
