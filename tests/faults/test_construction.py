"""Construction: a pool that cannot be made says why, and leaves nothing."""

import errno
import functools
import gc
import multiprocessing
import os
import re
import resource
import signal
import sys
import warnings
from pathlib import Path

import pytest

from envpool_py import EnvError, ShmemVectorEnv, WorkerDiedError
from tests.faults.helpers import FNS, IN_CALLER, NEW, count_fns, kill, limited, reset_pool, running
from tests.support import broken, envs
from tests.support.helpers import descriptors, no_process_left, shared_memory, wait_until
from tests.support.places import PLACES, slow


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


@pytest.mark.parametrize("method", ["fork", *slow("spawn", "forkserver")])
def test_the_start_method_is_the_one_asked_for(method):
    with ShmemVectorEnv([envs.CountEnv], context=multiprocessing.get_context(method)) as pool:
        assert method in repr(pool)
        assert pool.reset()[0].tolist() == [[0, 0, 0]]
    with ShmemVectorEnv([envs.CountEnv]) as pool:
        assert multiprocessing.get_start_method() in repr(pool)


# ------------------------------------------------------------------------------- env_fns that fail


# What an env_fn does, and the error.
FAILS = {
    "raise": (
        functools.partial(envs.raise_in_constructor, "not today"),
        EnvError,
        "env {}: env_fn raised ValueError: not today",
    ),
    "exit": (functools.partial(sys.exit, 37), EnvError, "env {}: env_fn raised SystemExit: 37"),
    "die": (
        functools.partial(os._exit, 37),
        WorkerDiedError,
        "env [012]: .*exited with code 37 while starting",
    ),
}


@pytest.mark.parametrize(
    ("place", "how", "bad"),
    [
        *((place, "raise", bad) for place in ("dummy", "shmem-fork-packed") for bad in range(3)),
        *(("shmem-fork", how, 1) for how in FAILS),
        *(("shmem-fork-caller", how, bad) for how, bad in (("raise", 2), ("die", 1))),
        ("dummy", "exit", 1),
        *slow(*((place, how, 1) for place in NEW for how in ("raise", "die"))),
    ],
)
def test_a_constructor_that_fails_half_way_leaves_nothing(place, how, bad, tmp_path):
    path = tmp_path / "closed"
    path.touch()
    fns = [functools.partial(envs.CloseEnv, tag, str(path)) for tag in range(3)]
    fns[bad], kind, text = FAILS[how]
    before = len(descriptors())
    with no_process_left(), pytest.raises(kind, match=text.format(bad)) as caught:
        PLACES[place](fns)
    error = caught.value
    assert bad in error.env_ids
    assert how == "die" or len(error.env_ids) == 1
    assert isinstance(error, ValueError) == isinstance(error.__cause__, ValueError)
    assert isinstance(error, ValueError) == (how == "raise")
    assert ('`if __name__ == "__main__":`' in str(error)) == (how == "die" and place in NEW)
    del caught, error
    gc.collect()
    assert len(descriptors()) <= before
    if place in IN_CALLER and how == "raise":  # the envs that had been built are closed
        assert sorted(path.read_text().split()) == [str(i) for i in range(bad)]


def test_a_process_that_its_server_has_reaped(monkeypatch):
    """One that ends at once may be gone before there is a descriptor for it."""

    def gone(pid):
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}")

    monkeypatch.setattr("os.pidfd_open", gone)
    with no_process_left():
        with pytest.raises(WorkerDiedError, match=r"env 0: .*exited with code 37 while starting"):
            PLACES["shmem-forkserver"]([functools.partial(os._exit, 37)])
        with reset_pool("shmem-fork", count_fns(2)) as pool:
            kill(pool, 1)
            with pytest.raises(WorkerDiedError, match="env 1: .*SIGKILL"):
                pool.step([0, 0])


@pytest.mark.usefixtures("short_grace")
def test_an_env_fn_that_hangs_can_be_interrupted(tmp_path, beside):
    def interrupt():
        assert wait_until(lambda: path.exists() and path.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "pid"
    beside(interrupt)
    with no_process_left(), pytest.raises(KeyboardInterrupt):
        PLACES["shmem-fork"]([envs.CountEnv, functools.partial(broken.HungAtBirth, str(path))])
    assert not running(int(path.read_text()))


def test_an_env_fn_that_takes_long_is_named(gates, monkeypatch, beside):
    def late():
        gates[1].wait()
        return envs.CountEnv(1)

    monkeypatch.setattr("envpool_py.worker.process.SLOW_START", 0.1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of the fork beside a thread
        beside(lambda: wait_until(lambda: len(warned) > 0, 20) and gates[1].release())
        with PLACES["shmem-fork"]([envs.CountEnv, late]) as pool:
            assert pool.reset()[0][:, 0].tolist() == [0, 1]
    # On a busy machine env 0 may be late as well.
    text = r"env(s 0 to)? 1: env_fn has not returned after 0\.1 seconds; still waiting"
    assert [bool(re.fullmatch(text, str(one.message))) for one in warned] == [True]


# ------------------------------------------------------------------ warnings of forks


@pytest.fixture
def python_warns_of_forks(monkeypatch):
    """Have ``os.fork`` warn as it does from Python 3.12 on where a second thread runs."""
    fork = os.fork

    def warning_fork():
        text = f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to ..."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return fork()

    monkeypatch.setattr(os, "fork", warning_fork)


def warnings_of(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [f"{one.category.__name__}: {one.message}" for one in caught]


@pytest.mark.usefixtures("python_warns_of_forks")
@pytest.mark.parametrize("place", ["shmem-fork", "dummy", *slow(NEW[1])])
def test_one_warning_for_each_pool_that_is_forked_beside_threads(place):
    """Finding 31: Python warns of each process; the pool warns once, and names the remedy."""
    pools = []
    for _ in range(2):
        found = warnings_of(lambda: pools.append(PLACES[place](FNS)))
        assert len(found) == (place == "shmem-fork")
        assert all(re.match('Deprecation.*context="forkserver"', text) for text in found)
    for pool in pools:
        with pool:
            pool.reset()
            if place == "shmem-fork":
                kill(pool, 0)
            assert warnings_of(functools.partial(pool.restart, [0])) == []
            assert pool.reset([0])[0].tolist() == [[0, 0, 0]]


# ------------------------------------------------------------------------ limited resources


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "step_timeout"), [("shmem-fork", None), ("shmem-fork-packed", 60.0)]
)
def test_a_limit_on_open_files(place, step_timeout):
    """Wherever the descriptors end, the constructor says so, or works; and nothing is left."""
    PLACES[place](count_fns(3)).close()  # for the resources that are allocated once and kept
    opened = set(descriptors())
    refused = []
    for more in range(1, 32):
        free = [fd for fd in range(200) if fd not in opened]
        with no_process_left(), limited(resource.RLIMIT_NOFILE, free[more]):
            try:
                pool = PLACES[place](count_fns(3), step_timeout=step_timeout)
            except OSError as error:
                refused.append(str(error))
                assert error.errno == errno.EMFILE  # noqa: PT017 - it may raise or not
                continue
            with pool:
                assert pool.reset()[0].shape == (3, 3)
    assert 5 < len(refused) < 31
    text = r"cannot start worker process \d of \d; pass a smaller num_processes"
    assert any(re.search(text, shown) for shown in refused)


@pytest.mark.parametrize(
    ("place", "memfd"),
    [("shmem-fork-packed", True), ("shmem-fork-packed", False), *slow((NEW[1], True))],
)
def test_shared_memory_is_refused(place, memfd, monkeypatch):
    if not memfd:  # a file in the temporary folder takes its place
        monkeypatch.delattr("os.memfd_create")
    error = pytest.raises(MemoryError, match=r"cannot get \d+ bytes of shared memory for observ")
    with no_process_left(), limited(resource.RLIMIT_FSIZE, 4 << 20), error:
        PLACES[place]([broken.WideEnv] * 2)


def test_shared_memory_has_no_name(monkeypatch, tmp_path):
    """More than the 64 MB of /dev/shm in a container, and neither there nor in a folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    before = shared_memory()
    with ShmemVectorEnv([broken.WideEnv] * 17, context="fork", num_processes=1):
        maps = Path("/proc/self/maps").read_text()
        ends = [line.split()[0].split("-") for line in maps.splitlines() if "memfd:envpool" in line]
        assert max(int(end, 16) - int(start, 16) for start, end in ends) > 64 << 20
        assert not any(name in maps for name in shared_memory() - before)


def test_no_port_is_open():
    """Neither the program nor a process of the pool has a socket that a network reaches."""
    with PLACES["shmem-fork-packed"](count_fns(3)) as pool:
        rows = [
            line.split()
            for name in ("tcp", "tcp6", "udp", "udp6")
            for line in Path("/proc/net", name).read_text().splitlines()[1:]
        ]
        links = {
            str(link.readlink())
            for pid in {os.getpid(), *pool.call("pid")}
            for link in Path(f"/proc/{pid}/fd").iterdir()
            if link.is_symlink()
        }
        assert links
        assert not links & {f"socket:[{row[9]}]" for row in rows}
