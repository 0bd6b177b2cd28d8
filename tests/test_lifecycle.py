"""Start and end: what a pool takes it gives back, whichever way it ends."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    WorkerDiedError,
)
from envpool_py.worker import processes
from envpool_py.worker.channel import Channel
from tests.support import broken, envs
from tests.support.helpers import (
    ROOT,
    descriptors,
    no_process_left,
    shared_memory,
    wait_until,
    wait_until_blocked,
)
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK
from tests.support.reference import HandStepped, check, check_reset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPACE = envs.CountEnv().observation_space


def count_fns(num: int) -> list[Callable[[], Any]]:
    return [functools.partial(envs.CountEnv, tag, 50) for tag in range(num)]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def running(pid: int) -> bool:
    """Tell whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------------------------- close


@pytest.mark.parametrize("place", QUICK)
def test_close_ends_every_process_and_may_be_called_twice(place: str) -> None:
    with no_process_left():
        pool = PLACES[place](count_fns(3))
        pids = set(pool.call("pid")) - {os.getpid()}
        assert bool(pids) == (place != "dummy")
        assert not pool.is_closed
        pool.close()
        assert pool.is_closed
        assert not any(map(alive, pids))
        pool.close()


@pytest.mark.parametrize("place", QUICK)
def test_the_end_of_a_with_block_closes(place: str) -> None:
    with no_process_left(), PLACES[place](count_fns(2)) as pool:
        assert isinstance(pool, BaseVectorEnv)
        pool.reset()
    assert pool.is_closed


@pytest.mark.parametrize("place", QUICK)
def test_an_exception_in_a_with_block_closes_and_passes(place: str) -> None:
    pools: list[BaseVectorEnv] = []

    def fail() -> None:
        with PLACES[place](count_fns(2)) as pool:
            pools.append(pool)
            pool.reset()
            raise KeyError("mine")

    with no_process_left(), pytest.raises(KeyError, match="mine"):
        fail()
    assert pools[0].is_closed


@pytest.mark.parametrize("place", QUICK)
def test_close_closes_every_env_once(place: str, tmp_path: Path) -> None:
    path = tmp_path / "closed"
    pool = PLACES[place]([functools.partial(envs.CloseEnv, tag, str(path)) for tag in range(3)])
    pool.reset()
    pool.close()
    pool.close()
    assert sorted(path.read_text().split()) == ["0", "1", "2"]


@pytest.mark.parametrize("place", QUICK)
def test_an_env_whose_close_raises_keeps_no_other_from_closing(place: str, tmp_path: Path) -> None:
    path = tmp_path / "closed"
    fns = [functools.partial(envs.CloseEnv, tag, str(path), tag == 1) for tag in range(3)]
    pool = PLACES[place](fns)
    pool.reset()
    # The error is not lost: it is warned of, once all the rest is done.
    with no_process_left(), pytest.warns(RuntimeWarning, match="env 1.*want to close"):
        pool.close()
    assert sorted(path.read_text().split()) == ["0", "1", "2"]
    assert pool.is_closed
    pool.close()


@pytest.mark.parametrize("place", PROCESSES)
def test_close_with_envs_in_flight(place: str) -> None:
    with no_process_left():
        pool = PLACES[place](count_fns(3), wait_num=1)
        pool.reset()
        pool.send([0, 0, 0])
        pool.close()


@pytest.mark.parametrize("place", PROCESSES)
def test_close_with_an_env_that_never_answers(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    with no_process_left():
        pool = PLACES[place]([functools.partial(envs.FaultEnv, tag) for tag in range(3)])
        pool.reset()
        pool.send(["", "hang", "hang"])
        pool.close()
        pool.close()


@pytest.mark.parametrize("step_timeout", [None, 60.0])
@pytest.mark.parametrize("place", PROCESSES)
def test_close_from_another_thread_while_a_step_is_under_way(
    place: str, step_timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    fns = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
    raised: list[BaseException] = []

    def step() -> None:
        try:
            pool.step(["", "hang", ""])
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    with no_process_left():
        pool = PLACES[place](fns, step_timeout=step_timeout)
        pool.reset()
        thread = threading.Thread(target=step)
        thread.start()
        wait_until_blocked(thread)
        pool.close()
        pool.close()
    thread.join(20)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [ClosedEnvironmentError]


@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("place", QUICK)
def test_a_signal_handler_may_close_the_pool(
    place: str, sender: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    fns = [functools.partial(broken.BrokenEnv, tag) for tag in range(2)]

    def handle(*_: Any) -> None:
        pool.close()
        raise InterruptedError("as a program that is told to end")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with no_process_left():
            pool = PLACES[place](fns)
            pool.reset()
            with pytest.raises(InterruptedError, match="told to end"):
                pool.step([f"signal:{os.getpid()}" if i == sender else "" for i in range(2)])
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("place", QUICK)
def test_a_call_whose_pool_a_signal_handler_has_closed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    fns = [functools.partial(broken.BrokenEnv, tag) for tag in range(3)]
    before = signal.signal(signal.SIGUSR1, lambda *_: pool.close())
    try:
        with no_process_left():
            pool = PLACES[place](fns)
            pool.reset()
            with pytest.raises(ClosedEnvironmentError):
                pool.step([f"signal:{os.getpid()}", "", ""])
            assert pool.is_closed
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_last_env_that_the_caller_steps_closes_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    fns = [functools.partial(broken.BrokenEnv, tag) for tag in range(3)]
    before = signal.signal(signal.SIGUSR1, lambda *_: pool.close())
    try:
        with no_process_left():
            pool = PLACES["shmem-fork-caller"](fns)
            pool.reset()
            with pytest.raises(ClosedEnvironmentError):
                pool.step(["", "", f"signal:{os.getpid()}"])
            with pytest.raises(ClosedEnvironmentError):
                pool.workers[2].get_env_attr("metadata")
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("place", QUICK)
def test_an_unclosed_pool_is_collected_with_a_warning(place: str) -> None:
    pool = PLACES[place](count_fns(2))
    name = type(pool).__name__
    pids = set(pool.call("pid")) - {os.getpid()}
    pool.reset()
    pool.loop = pool  # a cycle: only the collector can find it
    del pool
    with pytest.warns(ResourceWarning, match=f"unclosed.*{name}"):
        gc.collect()
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_closed_pool_is_collected_in_silence() -> None:
    pool = ShmemVectorEnv(count_fns(2), context="fork")
    pool.close()
    del pool
    gc.collect()


# ---------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    ("num_envs", "num_processes", "wait_num", "here"),
    [(8, 1, None, 4), (8, 1, 2, 2), (9, 2, None, 3), (9, 2, 1, 1), (2, 1, 1, 1), (1, 1, None, 0)],
)
def test_how_many_envs_the_caller_takes(
    num_envs: int, num_processes: int, wait_num: int | None, here: int
) -> None:
    options: dict[str, Any] = {"num_processes": num_processes, "caller_steps": True}
    with ShmemVectorEnv(count_fns(num_envs), wait_num, **options) as pool:
        pids = pool.call("pid")
    assert [pid == os.getpid() for pid in pids] == [i >= num_envs - here for i in range(num_envs)]
    assert len(set(pids) - {os.getpid()}) == num_processes


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


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("place", QUICK)
def test_a_constructor_that_fails_half_way_leaves_nothing(
    place: str, bad: int, tmp_path: Path
) -> None:
    path = tmp_path / "closed"
    path.touch()
    fns: list[Callable[[], Any]] = [
        functools.partial(envs.CloseEnv, tag, str(path)) for tag in range(3)
    ]
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
    if place == "dummy":  # what had been built is closed
        assert path.read_text().split() == [str(i) for i in range(bad)]


def test_envs_that_the_caller_has_made_are_closed_when_the_next_can_not_be(tmp_path: Path) -> None:
    path = tmp_path / "closed"
    fns: list[Callable[[], Any]] = [
        functools.partial(envs.CloseEnv, tag, str(path)) for tag in range(3)
    ]
    fns.append(functools.partial(envs.raise_in_constructor, "not today"))
    with no_process_left(), pytest.raises(EnvError, match="env 3: env_fn raised"):
        PLACES["shmem-fork-caller"](fns)  # envs 2 and 3 are the caller's
    assert sorted(path.read_text().split()) == ["0", "1", "2"]


@pytest.mark.parametrize("place", QUICK)
def test_a_constructor_that_exits(place: str) -> None:
    text = "env 1: env_fn raised SystemExit: 37"
    with no_process_left(), pytest.raises(EnvError, match=text):
        PLACES[place]([envs.CountEnv, envs.exit_in_constructor])


@pytest.mark.parametrize("place", PROCESSES)
def test_no_env_is_built_in_the_parent(place: str) -> None:
    with PLACES[place](count_fns(3)) as pool:
        assert os.getpid() not in pool.call("pid")


@pytest.mark.parametrize("num_processes", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [SubprocVectorEnv, ShmemVectorEnv])
def test_envs_are_spread_over_the_processes_asked_for(kind: Any, num_processes: int) -> None:
    with kind(count_fns(5), context="fork", num_processes=num_processes) as pool:
        pids = pool.call("pid")
        assert len(set(pids)) == num_processes
        shares = [pids.count(pid) for pid in set(pids)]
        assert max(shares) - min(shares) <= 1
    with kind(count_fns(3), context="fork") as pool:
        assert len(set(pool.call("pid"))) == 3


@pytest.mark.parametrize("kind", [SubprocVectorEnv, ShmemVectorEnv])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_start_method_is_what_was_asked_for(kind: Any, method: str) -> None:
    context = multiprocessing.get_context(method)
    with kind([envs.CountEnv], context=context) as pool:
        assert method in repr(pool)
        assert pool.reset()[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", [SubprocVectorEnv, ShmemVectorEnv])
def test_without_a_context_multiprocessings_own_holds(kind: Any) -> None:
    with kind([envs.CountEnv]) as pool:
        assert multiprocessing.get_start_method() in repr(pool)


def test_repr_says_what_the_pool_is() -> None:
    with DummyVectorEnv(count_fns(3), wait_num=2) as pool:
        assert repr(pool).startswith("DummyVectorEnv(")
        assert "3" in repr(pool)


@pytest.mark.parametrize("place", PROCESSES)
def test_many_pools_leave_nothing(place: str) -> None:
    # Once, for what is made once and kept.
    PLACES[place](count_fns(2)).close()
    gc.collect()
    before = len(descriptors()), threading.active_count()
    for _ in range(5):
        with PLACES[place](count_fns(2)) as pool:
            pool.reset()
            pool.step([0, 0])
    gc.collect()
    assert (len(descriptors()), threading.active_count()) == before


# --------------------------------------------------------------------------- many at once


@pytest.mark.parametrize("kind", [SubprocVectorEnv, ShmemVectorEnv])
def test_a_thousand_envs_in_two_processes(kind: Any) -> None:
    num = 1000
    before = len(descriptors())
    fns = count_fns(num)
    hand = HandStepped(fns)
    with kind(fns, context="fork", num_processes=2) as pool:
        assert len(descriptors()) - before < 50
        assert len(set(pool.call("pid"))) == 2
        check_reset(pool.reset(seed=1), hand.reset(seeds=[1 + i for i in range(num)]), SPACE)
        actions = [np.int64(i % 100) for i in range(num)]
        check(pool.step(actions), hand.step(actions), SPACE)
        some = list(range(999, 0, -7))
        check(pool.step(actions[: len(some)], some), hand.step(actions[: len(some)], some), SPACE)
        pool.wait_num = 100
        pool.send(actions)
        rows = {row.env_id: row for row in hand.step(actions)}
        while rows:
            batch = pool.recv()
            ids = [info["env_id"] for info in batch[4]]
            assert len(ids) >= min(100, len(rows))
            check(batch, [rows.pop(i) for i in ids], SPACE)


def test_a_thousand_envs_in_this_process() -> None:
    with DummyVectorEnv(count_fns(1000), wait_num=10) as pool:
        pool.reset()
        assert len(pool.step([0] * 1000)[1]) == 10


def test_pools_side_by_side_do_not_meet() -> None:
    places = [PLACES[name] for name in QUICK]
    hands = [HandStepped(count_fns(3)) for _ in places]
    pools = [place(count_fns(3)) for place in places]
    try:
        for pool, hand in zip(pools, hands, strict=True):
            check_reset(pool.reset(), hand.reset(), SPACE)
        for step in range(4):
            actions = [np.int64(step)] * 3
            for pool in pools:
                pool.send(actions)
            for pool, hand in reversed(list(zip(pools, hands, strict=True))):
                check(pool.recv(), hand.step(actions), SPACE)
        pools[1].close()
        for pool, hand in zip(pools[2:], hands[2:], strict=True):
            check_reset(pool.reset(), hand.reset(), SPACE)
    finally:
        for pool in pools:
            pool.close()


@pytest.mark.parametrize("place", QUICK)
def test_a_pool_made_in_a_thread_outlives_it(place: str) -> None:
    made: list[BaseVectorEnv] = []
    thread = threading.Thread(target=lambda: made.append(PLACES[place](count_fns(2))))
    thread.start()
    thread.join()
    with made[0] as pool:
        assert pool.reset()[0][:, 0].tolist() == [0, 1]
        assert len(pool.step([0, 0])[1]) == 2


@pytest.mark.parametrize("place", PROCESSES)
def test_a_pool_inside_a_worker(place: str) -> None:
    inner = functools.partial(PLACES["shmem-fork"], count_fns(2))
    with PLACES[place]([functools.partial(envs.PoolEnv, 0, inner)]) as pool:
        pool.reset()
        assert pool.call("inner", 4) == [[[0, 0, 0], [1, 0, 0]]]


@pytest.mark.parametrize("place", PROCESSES)
def test_a_forked_copy_of_a_pool_harms_it_not(place: str) -> None:
    def use_the_copy() -> None:
        nonlocal pool
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
@pytest.mark.parametrize("place", PROCESSES)
def test_a_pool_made_in_a_forked_child(place: str, end: str) -> None:
    def use() -> None:
        processes.GRACE = 0.1
        pool = PLACES[place]([functools.partial(envs.FaultEnv, tag) for tag in range(2)])
        pool.reset()
        assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1]
        tell.send(pool.call("pid"))
        kept.append(pool)
        if end == "hanging":
            pool.send(["hang", ""])
        if end == "closed":
            pool.close()

    kept: list[BaseVectorEnv] = []
    heard, tell = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    pids = heard.recv()
    process.join()
    assert process.exitcode == 0
    assert wait_until(lambda: not any(map(running, pids)))
    process.close()
    heard.close()
    tell.close()


# ------------------------------------------------------------------------ what may be short


@contextlib.contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("step_timeout", [None, 60.0])
@pytest.mark.parametrize("place", PROCESSES)
def test_a_limit_on_open_files(place: str, step_timeout: float | None) -> None:
    """Wherever the descriptors end, it says so, or works; and nothing is left."""
    PLACES[place](count_fns(3)).close()  # for what is made once and kept
    opened = set(descriptors())
    refused = 0
    for more in range(1, 32):
        free = [fd for fd in range(200) if fd not in opened]
        with no_process_left(), limited(resource.RLIMIT_NOFILE, free[more]):
            try:
                pool = PLACES[place](count_fns(3), step_timeout=step_timeout)
            except OSError as error:
                refused += 1
                assert error.errno == errno.EMFILE  # noqa: PT017 - it may raise or not
                assert "Too many open files" in str(error)  # noqa: PT017
                continue
            with pool:
                assert pool.reset()[0].shape == (3, 3)
    assert 5 < refused < 31


def test_a_refused_process_says_what_would_help() -> None:
    with (
        limited(resource.RLIMIT_NOFILE, len(descriptors()) + 12),
        pytest.raises(OSError, match="cannot start worker process .* of 3; fewer .* num_processes"),
    ):
        PLACES["subproc-fork"](count_fns(3))


def test_shared_memory_has_no_name() -> None:
    """More than the 64 MB that /dev/shm has in a container, and none of it is there."""
    before = shared_memory()
    with ShmemVectorEnv([broken.WideEnv] * 17, context="fork", num_processes=1):
        maps = Path("/proc/self/maps").read_text()
        assert "memfd:envpool_py" in maps
        sizes = [
            line.split()[0].split("-") for line in maps.splitlines() if "memfd:envpool" in line
        ]
        assert max(int(end, 16) - int(start, 16) for start, end in sizes) > 64 << 20
        assert not any(name in maps for name in shared_memory() - before)


@pytest.mark.parametrize("place", QUICK)
def test_no_port_is_open(place: str) -> None:
    """Neither the program nor a process of the pool has a socket that a network reaches."""

    def of_networks() -> set[str]:
        tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6")]
        rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
        return {f"socket:[{row[9]}]" for row in rows}

    with PLACES[place](count_fns(3)) as pool:
        pool.reset()
        pids = {os.getpid(), *pool.call("pid")}
        links = {
            str(link.readlink())
            for pid in pids
            for link in Path(f"/proc/{pid}/fd").iterdir()
            if link.is_symlink()
        }
        assert links
        assert not links & of_networks()


def test_a_temporary_folder_is_not_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    with ShmemVectorEnv(count_fns(2), context="fork") as pool:
        assert pool.reset()[0].shape == (2, 3)


def test_a_full_temporary_folder_where_there_is_no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    with (
        limited(resource.RLIMIT_FSIZE, 4 << 20),
        no_process_left(),
        pytest.raises(MemoryError, match=r"cannot get \d+ bytes of shared memory for observations"),
    ):
        ShmemVectorEnv([broken.WideEnv] * 2, context="fork")


@pytest.mark.parametrize("place", PROCESSES)
def test_an_env_that_runs_out_of_memory(place: str) -> None:
    with PLACES[place]([functools.partial(broken.TooMuchEnv, tag) for tag in range(3)]) as pool:
        pool.reset()
        pids = pool.call("pid")
        with pytest.raises(MemoryError, match="env 1: step raised .*MemoryError") as caught:
            pool.step(["", "more", ""])
        assert isinstance(caught.value, EnvError)
        pool.drain()
        pool.reset()
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
        assert pool.call("pid") == pids


# -------------------------------------------------------------------- an env_fn that hangs


@pytest.mark.parametrize("place", PROCESSES)
def test_an_env_fn_that_hangs_can_be_interrupted(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: Callable
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    path = tmp_path / "pid"

    def interrupt() -> None:
        assert wait_until(lambda: path.exists() and path.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    helper = beside(interrupt)
    with no_process_left(), pytest.raises(KeyboardInterrupt):
        PLACES[place]([envs.CountEnv, functools.partial(broken.HungAtBirth, str(path))])
    helper.finish()
    assert not running(int(path.read_text()))


@pytest.mark.parametrize("place", BACKENDS[1:])
def test_an_env_fn_that_takes_long_is_named(
    place: str, gates: list[envs.Gate], monkeypatch: pytest.MonkeyPatch, beside: Callable
) -> None:
    monkeypatch.setattr("envpool_py.worker.process.SLOW_START", 0.1)

    def late() -> Any:
        gates[1].wait()
        return envs.CountEnv(1)

    text = "env 1: env_fn has not returned after 0.1 seconds; still waiting"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        beside(lambda: wait_until(lambda: len(warned) > 0) and gates[1].release())
        with PLACES[place]([envs.CountEnv, late]) as pool:
            assert pool.reset()[0][:, 0].tolist() == [0, 1]
    assert [str(warning.message) for warning in warned] == [text]


def test_a_process_that_its_server_has_buried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends at once may be gone before there is a descriptor for it."""

    def gone(pid: int) -> int:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}")

    monkeypatch.setattr("os.pidfd_open", gone)
    with no_process_left():
        with pytest.raises(WorkerDiedError, match=r"env 0: .*exited with code 37 while starting"):
            PLACES["shmem-forkserver"]([functools.partial(os._exit, 37)])
        with PLACES["shmem-fork"](count_fns(2)) as pool:
            pool.reset()
            os.kill(pool.call("pid")[1], signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="env 1: .*SIGKILL"):
                pool.step([0, 0])


# ---------------------------------------------------------------------------- subclasses


class FiniteVectorEnv(SubprocVectorEnv):
    """A pool as users of Tianshou subclass them: it steps only what still has data."""

    def __init__(self, env_fns: list[Callable[[], Any]], **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.alive_ids = set(range(self.env_num))

    def step(self, action: Any, id: Any = None) -> tuple:  # noqa: A002
        ids = self._wrap_id(id)
        self._assert_id(ids)
        asked = [i for i in ids if i in self.alive_ids]
        return super().step([action[k] for k, i in enumerate(ids) if i in self.alive_ids], asked)


@pytest.mark.parametrize("share_memory", [False, True])
def test_a_cooperative_subclass(share_memory: bool) -> None:
    fns = count_fns(3)
    options = {"share_memory": share_memory, "context": "fork", "num_processes": 2}
    with FiniteVectorEnv(fns, **options) as pool:
        pool.reset()
        pool.alive_ids.discard(1)
        assert pool.step([5, 6, 7])[0][:, 0].tolist() == [0, 2]
        assert pool.call("counts") == [(1, 1), (0, 1), (1, 1)]


class CountedVectorEnv(DummyVectorEnv):
    """Adds a mixin's argument to a pool's own."""

    def __init__(self, *args: Any, label: str, **kwargs: Any) -> None:
        self.label = label
        super().__init__(*args, **kwargs)


def test_a_subclass_with_arguments_of_its_own() -> None:
    with CountedVectorEnv(count_fns(2), wait_num=1, label="x") as pool:
        assert (pool.label, pool.wait_num) == ("x", 1)
        assert repr(pool).startswith("CountedVectorEnv")


# ------------------------------------------------------------------------------ other users


def test_ids_registered_in_the_main_module_work_under_fork() -> None:
    gym.register("EnvpoolTest-v0", entry_point="tests.support.envs:CountEnv", kwargs={"tag": 8})
    try:
        make = functools.partial(gym.make, "EnvpoolTest-v0", disable_env_checker=True)
        with ShmemVectorEnv([make] * 2, context="fork") as pool:
            assert pool.reset()[0][:, 0].tolist() == [8, 8]
    finally:
        del gym.registry["EnvpoolTest-v0"]


REGISTERED = """
    import functools
    import gymnasium as gym
    import numpy as np
    from envpool_py import {pool}

    class MyEnv(gym.Env):
        observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return np.full(1, 3, np.float32), {{}}
        def step(self, action):
            return np.full(1, 4, np.float32), 1.0, True, False, {{}}

    gym.register("Mine-v0", entry_point=MyEnv)

    if __name__ == "__main__":
        make = functools.partial(gym.make, "Mine-v0")
        with {pool}([make] * 2, context="{context}") as pool:
            print(pool.reset()[0].tolist(), pool.step([0, 1])[0].tolist())
"""


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("pool", ["SubprocVectorEnv", "ShmemVectorEnv"])
def test_envs_of_the_main_module(tmp_path: Path, pool: str, context: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(REGISTERED).format(pool=pool, context=context))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[[3.0], [3.0]] [[4.0], [4.0]]\n"), done.stderr


@pytest.mark.parametrize("place", BACKENDS)
def test_errors_can_be_pickled(place: str) -> None:
    with PLACES[place]([envs.FaultEnv, envs.FaultEnv]) as pool:
        pool.reset()
        with pytest.raises(EnvError) as caught:
            pool.step(["", "value"])
        copied = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(copied, EnvError)
        assert copied.env_ids == (1,)
        assert str(copied) == str(caught.value)


@pytest.mark.parametrize("place", PROCESSES)
def test_close_waits_for_a_thread_that_takes_in_what_came(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads must not work on the same messages."""
    fns = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
    inside, go_on = threading.Event(), threading.Event()
    at_work: list[threading.Thread] = []
    together: list[int] = []
    raised: list[BaseException] = []

    with no_process_left():
        pool = PLACES[place](fns)
        pool.reset()
        collect = Channel.collect

        def slow(channel: Channel, chunks: list[bytes]) -> bool:
            at_work.append(threading.current_thread())
            together.append(len(set(at_work)))
            if threading.current_thread() is thread and not go_on.is_set():
                inside.set()
                go_on.wait(10)
            found = collect(channel, chunks)
            at_work.remove(threading.current_thread())
            return found

        def step() -> None:
            try:
                while True:
                    pool.step([""] * 3)
            except BaseException as error:  # noqa: BLE001
                raised.append(error)

        monkeypatch.setattr(Channel, "collect", slow)
        thread = threading.Thread(target=step)
        closer = threading.Thread(target=pool.close)
        thread.start()
        assert inside.wait(10)
        closer.start()
        wait_until(lambda: pool.is_closed)
        wait_until(lambda: max(together) > 1, 0.1)
        go_on.set()
        thread.join(20)
        closer.join(20)
    assert [type(error) for error in raised] == [ClosedEnvironmentError]
    assert max(together) == 1
