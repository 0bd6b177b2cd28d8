"""Construction: a pool that cannot be made says why, and leaves nothing."""

from __future__ import annotations

import errno
import functools
import gc
import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envpool_py import BaseVectorEnv, EnvError, ShmemVectorEnv, WorkerDiedError
from tests.faults.helpers import (
    FNS,
    IN_CALLER,
    NEW,
    PROCESSES,
    count_fns,
    kill,
    limited,
    reset_pool,
    running,
)
from tests.support import broken, envs
from tests.support.helpers import (
    descriptors,
    no_process_left,
    shared_memory,
    wait_until,
)
from tests.support.places import PLACES, slow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("num_envs", "num_processes", "wait_num", "here"),
    [(8, 1, None, 4), (8, 1, 2, 2), (9, 2, None, 3), (1, 1, None, 0)],
)
def test_how_many_envs_the_caller_takes(
    num_envs: int, num_processes: int, wait_num: int | None, here: int
) -> None:
    options: dict[str, Any] = {"num_processes": num_processes, "caller_steps": True}
    with ShmemVectorEnv(count_fns(num_envs), wait_num, **options) as pool:
        pids = pool.call("pid")
    assert [pid == os.getpid() for pid in pids] == [i >= num_envs - here for i in range(num_envs)]
    assert len(set(pids) - {os.getpid()}) == num_processes


@pytest.mark.parametrize("num_processes", [None, 3])
def test_envs_are_spread_over_the_processes_asked_for(num_processes: int | None) -> None:
    with ShmemVectorEnv(count_fns(5), context="fork", num_processes=num_processes) as pool:
        pids = pool.call("pid")
    assert os.getpid() not in pids
    assert len(set(pids)) == (num_processes or 5)
    shares = [pids.count(pid) for pid in set(pids)]
    assert max(shares) - min(shares) <= 1


def test_a_pool_that_could_not_be_made_can_be_shown() -> None:
    class Shown(ShmemVectorEnv):
        def __init__(self, **options: Any) -> None:
            try:
                super().__init__(count_fns(3), num_processes=1, **options)
            except ValueError:
                assert repr(self) == "Shown(num_envs=3, closed)"
                raise

    with pytest.raises(ValueError, match="num_threads"):
        Shown(caller_steps=True, num_threads=0)


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        *((place, bad) for place in ("dummy", "shmem-fork-packed") for bad in (0, 1, 2)),
        ("shmem-fork", 1),
        ("shmem-fork-caller", 2),
        *slow(*((place, 1) for place in NEW)),
    ],
)
def test_a_constructor_that_fails_half_way_leaves_nothing(
    place: str, bad: int, tmp_path: Path
) -> None:
    path = tmp_path / "closed"
    path.touch()
    fns: list[Any] = [functools.partial(envs.CloseEnv, tag, str(path)) for tag in range(3)]
    fns[bad] = functools.partial(envs.raise_in_constructor, "not today")
    before = len(descriptors())
    text = f"env {bad}: env_fn raised ValueError: not today"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        PLACES[place](fns)
    assert caught.value.env_ids == (bad,)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, ValueError)
    del caught
    gc.collect()
    assert len(descriptors()) <= before
    if place in IN_CALLER:  # the envs that had been built are closed
        assert sorted(path.read_text().split()) == [str(i) for i in range(bad)]


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_env_fn_that_exits(place: str) -> None:
    text = "env 1: env_fn raised SystemExit: 37"
    with no_process_left(), pytest.raises(EnvError, match=text):
        PLACES[place]([envs.CountEnv, functools.partial(sys.exit, 37)])


@pytest.mark.parametrize("place", [*PROCESSES, *slow(*NEW)])
def test_a_process_that_dies_while_it_starts(place: str) -> None:
    fns: list[Any] = [envs.CountEnv, functools.partial(os._exit, 37)]
    text = r"env [01]: .*exited with code 37 while starting"
    with no_process_left(), pytest.raises(WorkerDiedError, match=text) as caught:
        PLACES[place](fns)
    assert 1 in caught.value.env_ids
    assert ('`if __name__ == "__main__":`' in str(caught.value)) == (place in NEW)


def test_a_process_that_its_server_has_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends at once may be gone before there is a descriptor for it."""

    def gone(pid: int) -> int:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}")

    monkeypatch.setattr("os.pidfd_open", gone)
    with no_process_left():
        with pytest.raises(WorkerDiedError, match=r"env 0: .*exited with code 37 while starting"):
            PLACES["shmem-forkserver"]([functools.partial(os._exit, 37)])
        with reset_pool("shmem-fork", count_fns(2)) as pool:
            kill(pool, 1)
            with pytest.raises(WorkerDiedError, match="env 1: .*SIGKILL"):
                pool.step([0, 0])


def test_an_env_fn_that_hangs_can_be_interrupted(
    tmp_path: Path, short_grace: None, beside: Callable
) -> None:
    del short_grace
    path = tmp_path / "pid"

    def interrupt() -> None:
        assert wait_until(lambda: path.exists() and path.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    helper = beside(interrupt)
    with no_process_left(), pytest.raises(KeyboardInterrupt):
        PLACES["shmem-fork"]([envs.CountEnv, functools.partial(broken.HungAtBirth, str(path))])
    helper.finish()
    assert not running(int(path.read_text()))


def test_an_env_fn_that_takes_long_is_named(
    gates: list[envs.Gate], monkeypatch: pytest.MonkeyPatch, beside: Callable
) -> None:
    monkeypatch.setattr("envpool_py.worker.process.SLOW_START", 0.1)

    def late() -> Any:
        gates[1].wait()
        return envs.CountEnv(1)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of the fork beside a thread
        beside(lambda: wait_until(lambda: len(warned) > 0, 20) and gates[1].release())
        with PLACES["shmem-fork"]([envs.CountEnv, late]) as pool:
            assert pool.reset()[0][:, 0].tolist() == [0, 1]
    # On a busy machine env 0 may be late as well.
    text = r"env(s 0 to)? 1: env_fn has not returned after 0\.1 seconds; still waiting"
    assert [bool(re.fullmatch(text, str(one.message))) for one in warned] == [True]


@pytest.mark.parametrize("method", ["fork", *slow("spawn", "forkserver")])
def test_the_start_method_is_the_one_asked_for(method: str) -> None:
    with ShmemVectorEnv([envs.CountEnv], context=multiprocessing.get_context(method)) as pool:
        assert method in repr(pool)
        assert pool.reset()[0].tolist() == [[0, 0, 0]]
    with ShmemVectorEnv([envs.CountEnv]) as pool:
        assert multiprocessing.get_start_method() in repr(pool)


# ------------------------------------------------------------------ warnings of forks


@pytest.fixture
def python_warns_of_forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a second thread run, and ``os.fork`` warn of it as it does from Python 3.12 on."""
    fork, over = os.fork, threading.Event()

    def warning_fork() -> int:
        text = f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to ..."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return fork()

    if sys.version_info < (3, 12):
        monkeypatch.setattr(os, "fork", warning_fork)
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def warnings_of(act: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return caught


@pytest.mark.usefixtures("python_warns_of_forks")
def test_one_warning_for_each_pool_that_is_forked_beside_threads() -> None:
    """Finding 31: Python warns of each process; the pool warns once, and names the remedy."""
    pools: list[BaseVectorEnv] = []
    for _ in range(2):
        caught = warnings_of(lambda: pools.append(PLACES["shmem-fork"](FNS)))
        assert [one.category for one in caught] == [DeprecationWarning]
        assert 'context="forkserver"' in str(caught[0].message)
    for pool in pools:
        with pool:
            pool.reset()
            kill(pool, 0)
            assert warnings_of(functools.partial(pool.restart, [0])) == []
            assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]


@pytest.mark.usefixtures("python_warns_of_forks")
@pytest.mark.parametrize("place", ["dummy", *slow(NEW[1])])
def test_no_warning_of_a_pool_that_is_not_forked(place: str) -> None:
    assert warnings_of(lambda: PLACES[place](FNS).close()) == []


# ------------------------------------------------------------------------ limited resources


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "step_timeout"), [("shmem-fork", None), ("shmem-fork-packed", 60.0)]
)
def test_a_limit_on_open_files(place: str, step_timeout: float | None) -> None:
    """Wherever the descriptors end, the constructor says so, or works; and nothing is left."""
    PLACES[place](count_fns(3)).close()  # for the resources that are allocated once and kept
    opened = set(descriptors())
    refused: list[str] = []
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
    assert all("Too many open files" in text for text in refused)
    text = r"cannot start worker process \d of \d; pass a smaller num_processes"
    assert any(re.search(text, shown) for shown in refused)


@pytest.mark.parametrize(
    ("place", "memfd"),
    [("shmem-fork-packed", True), ("shmem-fork-packed", False), *slow((NEW[1], True))],
)
def test_shared_memory_is_refused(place: str, memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:  # a file in the temporary folder takes its place
        monkeypatch.delattr("os.memfd_create")
    with (
        limited(resource.RLIMIT_FSIZE, 4 << 20),
        no_process_left(),
        pytest.raises(MemoryError, match=r"cannot get \d+ bytes of shared memory for observations"),
    ):
        PLACES[place]([broken.WideEnv] * 2)


def test_shared_memory_has_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """More than the 64 MB of /dev/shm in a container, and neither there nor in a folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    before = shared_memory()
    with ShmemVectorEnv([broken.WideEnv] * 17, context="fork", num_processes=1):
        maps = Path("/proc/self/maps").read_text()
        sizes = [
            line.split()[0].split("-") for line in maps.splitlines() if "memfd:envpool_py" in line
        ]
        assert max(int(end, 16) - int(start, 16) for start, end in sizes) > 64 << 20
        assert not any(name in maps for name in shared_memory() - before)


def test_no_port_is_open() -> None:
    """Neither the program nor a process of the pool has a socket that a network reaches."""

    def of_networks() -> set[str]:
        tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6")]
        rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
        return {f"socket:[{row[9]}]" for row in rows}

    with PLACES["shmem-fork-packed"](count_fns(3)) as pool:
        pids = {os.getpid(), *pool.call("pid")}
        links = {
            str(link.readlink())
            for pid in pids
            for link in Path(f"/proc/{pid}/fd").iterdir()
            if link.is_symlink()
        }
        assert links
        assert not links & of_networks()
