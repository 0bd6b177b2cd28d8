"""The table of faults: each fault, on each backend, under each start method.

Columns are places: the pool without processes, and the two with processes under each of the three
start methods. A cell is a test here (registered by `cells`), a test elsewhere (`ELSEWHERE`, and
what its own parametrisation says it runs), or empty for a reason (`EMPTY`);
`test_the_table_is_full` holds that. Most cells of a column share one pool, the `stand`: it is made
anew and found whole before each of them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from envpool_py.worker import process
from tests.support import broken, envs
from tests.support.helpers import (
    ROOT,
    descriptors,
    no_process_left,
    wait_until,
    wait_until_blocked,
)
from tests.support.places import PLACES, STANDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envpool_py import BaseVectorEnv

FORK = ("subproc-fork", "shmem-fork")
SPAWN = ("subproc-spawn", "shmem-spawn")
FORKSERVER = ("subproc-forkserver", "shmem-forkserver")
NEW = (*SPAWN, *FORKSERVER)
PROCESSES = (*FORK, *NEW)
ALL = ("dummy", *PROCESSES)
HERE: dict[int, set[str]] = {}
"""The cells that are tests of this module."""

ELSEWHERE: dict[int, tuple[str, ...]] = {
    1: ("test_faults.test_what_an_env_raises_reaches_the_caller",),
    2: ("test_faults.test_a_reset_of_all_after_an_error_is_a_fresh_start",),
    3: ("test_faults.test_several_raise_at_once",),
    4: ("test_faults.test_what_an_env_raises_reaches_the_caller",),
    5: ("test_faults.test_what_an_env_raises_reaches_the_caller",),
    6: ("test_faults.test_what_an_env_raises_reaches_the_caller",),
    7: ("test_faults.test_what_an_env_raises_reaches_the_caller",),
    8: ("test_lifecycle.test_a_constructor_that_fails_half_way_leaves_nothing",),
    9: ("test_faults.test_a_worker_that_dies_is_named_and_the_others_go_on",),
    10: ("test_faults.test_a_worker_killed_while_idle",),
    13: ("test_async.test_a_slow_env_holds_up_no_other",),
    17: ("test_lifecycle.test_an_unclosed_pool_is_collected_with_a_warning",),
    23: ("test_lifecycle.test_a_forked_copy_of_a_pool_harms_it_not",),
    24: ("test_lifecycle.test_a_pool_made_in_a_thread_outlives_it",),
    26: (
        "test_lifecycle.test_a_pool_inside_a_worker",
        "test_faults.test_an_error_of_a_pool_inside_an_env_is_the_outer_envs",
    ),
    27: (
        "test_bad_input.test_an_env_fn_that_cannot_be_pickled",
        "test_bad_input.test_under_fork_env_fns_are_not_pickled",
    ),
    28: ("test_bad_input.test_no_main_guard",),
    30: ("test_soak.test_fifty_pools",),
    31: ("test_bad_input.test_a_spoilt_row_is_the_error_of_its_env",),
    32: ("test_bad_input.test_a_spoilt_row_is_the_error_of_its_env",),
    33: ("test_bad_input.test_a_spoilt_row_is_the_error_of_its_env",),
    34: ("test_bad_input.test_a_spoilt_row_is_the_error_of_its_env",),
    36: ("test_faults.test_large_actions_and_infos_at_once",),
    37: ("test_values.test_what_was_returned_never_changes",),
    38: ("test_bad_input.test_a_step_before_the_first_reset",),
    39: (
        "test_bad_input.test_use_after_close",
        "test_lifecycle.test_close_ends_every_process_and_may_be_called_twice",
    ),
    40: ("test_bad_input.test_ids_in_flight",),
    44: ("test_lifecycle.test_an_env_whose_close_raises_keeps_no_other_from_closing",),
}

NO_PROCESS = "the env has no process: what ends or stops it does so to the program"
NO_MESSAGE = "nothing is sent, and nothing is pickled"
EMPTY: dict[int, dict[tuple[str, ...], str]] = {
    9: {("dummy",): NO_PROCESS},
    10: {("dummy",): NO_PROCESS},
    11: {("dummy",): NO_PROCESS},
    12: {("dummy",): NO_PROCESS},
    13: {("dummy",): "an env runs only while the caller waits for it, and nobody beside it"},
    14: {("dummy",): NO_PROCESS},
    15: {("dummy",): NO_PROCESS},
    20: {("dummy",): NO_MESSAGE},
    21: {("dummy",): NO_PROCESS},
    22: {("dummy",): NO_PROCESS},
    23: {("dummy",): "a copy is a pool of its own, with envs of its own"},
    25: {("dummy",): NO_PROCESS, NEW: "a new interpreter inherits no lock from a thread"},
    27: {("dummy",): NO_MESSAGE},
    28: {("dummy",): NO_PROCESS, FORK: "the program is not run again"},
    29: {("dummy",): "its rows are in no shared memory"},
}


def cells(*rows: int, at: tuple[str, ...], by: str = "standing") -> Any:
    """Register a test as the cells of these rows in these columns, and parametrise it."""
    for row in rows:
        HERE.setdefault(row, set()).update(at)
    return pytest.mark.parametrize(by, at, indirect=by == "standing")


def columns_of(test: str) -> set[str]:
    """Return the columns in which a test of another module runs, by its own parametrisation."""
    module, name = test.split(".")
    values: list[Any] = []
    for mark in getattr(importlib.import_module(f"tests.{module}"), name).pytestmark:
        if mark.name == "parametrize":
            for value in mark.args[1]:
                own = value if isinstance(value, (tuple, list)) else (value,)
                values += [getattr(one, "__name__", one) for one in own]
    names = {str(value) for value in values}
    found = {ALL[ALL.index(name)] for name in names if name in ALL}
    found |= {name.removesuffix("-packed") for name in names if name.endswith("-packed")}
    kinds = {"subproc": {"subproc", "SubprocVectorEnv"}, "shmem": {"shmem", "ShmemVectorEnv"}}
    methods = names & {"fork", "spawn", "forkserver"} or {"fork"}
    for kind, spelt in kinds.items():
        if names & spelt:
            found |= {f"{kind}-{method}" for method in methods}
    return found


def test_the_table_is_full() -> None:
    for row in range(1, 45):
        tested = set(HERE.get(row, ()))
        for test in ELSEWHERE.get(row, ()):
            assert columns_of(test), f"{test} runs in no column"
            tested |= columns_of(test)
        empty = {column for some in EMPTY.get(row, {}) for column in some}
        assert tested | empty == set(ALL), f"row {row}: {set(ALL) - tested - empty} is missing"
        assert not tested & empty, f"row {row}: {tested & empty} is tested, and has a reason"
    assert set(HERE) | set(ELSEWHERE) | set(EMPTY) == set(range(1, 45))


# ------------------------------------------------------------------------------- the stand

FNS = [functools.partial(broken.BrokenEnv, tag) for tag in range(3)]


@pytest.fixture(scope="module")
def standing(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    """One pool for all cells of a column."""
    with PLACES[request.param](FNS, validate="off") as pool:
        if request.param != "dummy":
            STANDING.append(pool)
        pool.reset()
        yield pool
        STANDING.clear()


@pytest.fixture
def stand(standing: BaseVectorEnv) -> Iterator[BaseVectorEnv]:
    """Hand the pool out, and bring it to its beginning again: all processes, new envs, reset."""
    yield standing
    standing.cancel()
    standing.wait_num, standing.timeout = 3, None
    standing.restart()
    assert standing.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]


def goes_on(pool: BaseVectorEnv, ids: list[int]) -> None:
    """Assert that these envs reset and step, and that what comes is their own and fresh."""
    pool.cancel()
    episodes = pool.get_env_attr("episode", ids)
    obs, infos = pool.reset(ids)
    assert obs.tolist() == [[i, k + 1, 0] for i, k in zip(ids, episodes, strict=True)]
    assert [info["env_id"] for info in infos] == ids
    assert pool.step([""] * len(ids), ids)[0][:, 2].tolist() == [1] * len(ids)


def pids_of(pool: BaseVectorEnv) -> list[int]:
    return pool.call("pid")


def running(pid: int) -> bool:
    """Tell whether a process runs: a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


# --------------------------------------------------------------------------- 1 to 8: it raises


@cells(1, at=NEW)
def test_it_raises(stand: BaseVectorEnv) -> None:
    asks: dict[str, Callable[[], Any]] = {
        "step": lambda: stand.step(["", "value", ""]),
        "reset": lambda: stand.reset(options=[None, {"fault": "value"}, None]),
        "call": lambda: stand.call("fault", "value", id=[1]),
    }
    for request, ask in asks.items():
        with pytest.raises(ValueError, match=f"env 1: {request} raised ValueError: boom") as caught:
            ask()
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (1,)
        assert type(caught.value.__cause__) is ValueError
        assert "in _fault" in str(caught.value)
        goes_on(stand, [0, 1, 2])


@cells(2, at=NEW)
def test_no_stale_row_after_an_error(stand: BaseVectorEnv) -> None:
    with pytest.raises(EnvError):
        stand.step(["", "value", ""])
    assert stand.reset()[0].tolist() == [[i, 1, 0] for i in range(3)]
    assert stand.step([""] * 3)[0].tolist() == [[i, 1, 1] for i in range(3)]


@cells(3, at=NEW)
def test_several_raise(stand: BaseVectorEnv) -> None:
    with pytest.raises(EnvError) as caught:
        stand.step(["value", "", "os"])
    assert sorted(caught.value.env_ids) == [0, 2]
    assert "also: env " in str(caught.value)
    assert stand.recv()[0].tolist() == [[1, 0, 1]]
    goes_on(stand, [0, 1, 2])


@cells(4, 5, 6, 7, at=NEW)
def test_whatever_it_raises(stand: BaseVectorEnv) -> None:
    shown = {
        "unpicklable": (EnvError, "UnpicklableError: boom"),
        "two-argument": (EnvError, "TwoArgumentError: 1 and 2"),
        "exit": (EnvError, "SystemExit: 37"),
        "recursion": (RecursionError, "RecursionError: boom"),
        "memory": (MemoryError, "MemoryError: boom"),
    }
    pids = pids_of(stand)
    for name, (kind, text) in shown.items():
        with pytest.raises(EnvError, match=f"env 1: step raised {text}") as caught:
            stand.step(["", name, ""])
        assert isinstance(caught.value, kind)
        if name in ("unpicklable", "two-argument"):
            assert "in _fault" in str(caught.value.__cause__)
        goes_on(stand, [0, 1, 2])
    assert pids_of(stand) == pids


@cells(8, at=NEW, by="place")
def test_it_cannot_be_made(place: str) -> None:
    fns = [FNS[0], functools.partial(envs.raise_in_constructor, "not today")]
    pool = PLACES[place].pool
    options = {"context": place.partition("-")[2], "num_processes": 1}
    with no_process_left(), pytest.raises(ValueError, match="env 1: env_fn raised ValueError"):
        pool(fns, **options)
    with no_process_left(), pytest.raises(EnvError, match="env 1: env_fn .*returned NoneType"):
        pool([FNS[0], envs.return_none], **options)


# ---------------------------------------------------------------------- 9 to 13: its process ends


def died(pool: BaseVectorEnv, ask: Callable[[], Any], text: str) -> None:
    """Assert that env 1 is named as died, at once and again, and that the others go on."""
    with pytest.raises(WorkerDiedError, match=f"env 1: the worker process {text}") as caught:
        ask()
    assert caught.value.env_ids == (1,)
    with contextlib.suppress(ValueError):  # nothing may be left to fetch
        assert {info["env_id"] for info in pool.recv()[4]} <= {0, 2}
    for again in (lambda: pool.reset([1]), lambda: pool.get_env_attr("tag", 1)):
        with pytest.raises(WorkerDiedError, match=f"env 1: the worker process {text}"):
            again()
    goes_on(pool, [0, 2])


@cells(9, at=NEW)
def test_its_process_ends(stand: BaseVectorEnv) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        stand.step(["SIGSEGV", "SIGKILL", "os._exit"])
    assert set(caught.value.env_ids) <= {0, 1, 2}
    ends = ("was killed by SIGSEGV", "was killed by SIGKILL", "exited with code 37")
    for i, text in enumerate(ends):
        with pytest.raises(WorkerDiedError, match=f"env {i}: the worker process {text}"):
            stand.reset([i])
    stand.restart([0])
    goes_on(stand, [0])


@cells(10, at=NEW)
def test_its_process_ends_while_idle(stand: BaseVectorEnv) -> None:
    pid = pids_of(stand)[1]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not running(pid))
    died(stand, lambda: stand.get_env_attr("tag"), "was killed by SIGKILL")


@cells(11, at=PROCESSES)
def test_a_process_of_its_own_holds_the_pipe(stand: BaseVectorEnv, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    died(stand, lambda: stand.step(["", f"orphan:{path}", ""]), "exited with code 37")
    assert wait_until(lambda: not running(int(path.read_text())))


@cells(12, at=PROCESSES)
def test_it_closes_all_descriptors(stand: BaseVectorEnv) -> None:
    died(stand, lambda: stand.step(["", "closefds", ""]), "exited with code 1")


@cells(12, at=PROCESSES)
def test_it_closes_all_descriptors_and_hangs(stand: BaseVectorEnv) -> None:
    began = time.process_time()
    died(stand, lambda: stand.step(["", "mute", ""]), "was killed: it closed its connection")
    assert time.process_time() - began < process.DISCONNECTED_FOR / 2  # it has waited, and not spun


@cells(13, at=NEW)
def test_it_hangs_and_the_others_go_on(stand: BaseVectorEnv, gates: list[envs.Gate]) -> None:
    stand.wait_num = 1
    stand.send(["", f"gate:{gates[1].path}", ""])
    with gates[1].held():
        for _ in range(3):
            assert sorted(row["env_id"] for row in stand.step(None, id=[0, 2])[4]) == [0, 2]
            stand.send(["", ""], [0, 2])
        stand.timeout = 0.05
        assert len(stand.recv()[1]) > 0
    assert 1 in {info["env_id"] for info in stand.drain()[4]}


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("rubbish", "was killed: it sent what cannot be read"),
        ("unreadable", "was killed: it sent what cannot be read"),
        ("cut", "was killed by SIGKILL"),
    ],
)
@cells(9, at=PROCESSES)
def test_its_channel_is_corrupt(stand: BaseVectorEnv, what: str, text: str) -> None:
    died(stand, lambda: stand.step(["", what, ""]), text)


@cells(9, at=PROCESSES)
def test_what_reaches_it_is_corrupt(stand: BaseVectorEnv) -> None:
    os.write(stand.engine.hosts.of(1).stream.fd, b"what no pool would write, and more\n")
    died(stand, lambda: stand.step([""] * 3), "exited with code 1")


@cells(9, at=FORK)
def test_the_channel_that_all_share_is_corrupt(stand: BaseVectorEnv) -> None:
    """Nobody can tell who did it, or whose row has been lost: all are told, and none hangs."""
    text = "was killed: something wrote into the pipe of the results"
    with pytest.raises(WorkerDiedError, match=text):
        stand.step(["", "results", ""])
    for i in range(3):
        with pytest.raises(WorkerDiedError, match=f"env {i}: the worker process {text}"):
            stand.reset([i])
    stand.restart()
    stand.reset()
    assert stand.step([""] * 3)[0].tolist() == [[i, 0, 1] for i in range(3)]


# ----------------------------------------------------------------------- 14 to 17: how it ends


@cells(14, at=PROCESSES, by="place")
def test_close_ends_what_does_not_end(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    pool = PLACES[place](FNS[:2])
    pids = pids_of(pool)
    pool.reset()
    path = tmp_path / "pid"
    pool.send([f"stubborn:{path}", "stop"])
    assert wait_until(lambda: path.exists() and path.read_text() and stopped(pids[1]))
    begun = time.monotonic()
    with no_process_left():
        pool.close()
    assert time.monotonic() - begun < 15  # not the time that an env takes: for ever
    assert not any(map(running, pids))
    assert wait_until(lambda: not running(int(path.read_text())))


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@cells(17, at=NEW, by="place")
def test_an_unclosed_pool_is_collected(place: str) -> None:
    pool = PLACES[place](FNS[:1])
    pids = pids_of(pool)
    pool.loop = pool
    with no_process_left():
        del pool
        with pytest.warns(ResourceWarning, match="unclosed"):
            gc.collect()
    assert not any(map(running, pids))


# ----------------------------------------------------------------------- 19, 20: interruptions


class BrokenOffError(TimeoutError):
    """What the handler raises: an OSError, which nothing here may take for a broken pipe."""


@pytest.fixture
def handler() -> Iterator[None]:
    def handle(*_: Any) -> None:
        raise BrokenOffError("mine")

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@cells(19, at=ALL)
@pytest.mark.usefixtures("handler")
def test_a_signal_handler_raises(stand: BaseVectorEnv) -> None:
    pids = pids_of(stand)
    with pytest.raises(BrokenOffError, match="mine") as caught:
        stand.step(["", f"signal:{os.getpid()}", ""])
    assert type(caught.value) is BrokenOffError, "no env is blamed for it"
    with pytest.raises(ResetNeeded, match="envs 0 to 2: .* broken off"):
        stand.step([""] * 3)
    assert stand.reset()[0][:, 2].tolist() == [0, 0, 0]
    assert stand.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
    assert pids_of(stand) == pids


@cells(19, at=FORK)
@pytest.mark.usefixtures("handler")
def test_a_signal_handler_raises_while_a_row_is_unpickled(stand: BaseVectorEnv) -> None:
    with pytest.raises(BrokenOffError, match="mine") as caught:
        stand.step(["", "bell", ""])
    assert type(caught.value) is BrokenOffError
    with pytest.raises(ResetNeeded, match="envs 0 to 2: .* broken off"):
        stand.step([""] * 3)
    goes_on(stand, [0, 1, 2])


@cells(20, at=PROCESSES)
def test_it_raises_amid_a_message(stand: BaseVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a message can't be mended: its process is ended, and the others go on."""
    write, victim = os.write, stand.engine.hosts.of(1).stream.fd

    def half(fd: int, data: Any) -> int:
        if fd == victim:
            write(fd, bytes(data)[: len(data) // 2])
            raise BrokenOffError("mine")
        return write(fd, data)

    action = np.zeros(1 << 15, np.uint8)
    with monkeypatch.context() as patch:
        patch.setattr("envpool_py.worker.process.os.write", half)
        with pytest.raises(BrokenOffError, match="mine"):
            stand.step([action] * 3)
    died(stand, lambda: stand.reset([1]), "was killed by SIGKILL")


@cells(20, at=PROCESSES)
@pytest.mark.usefixtures("handler")
def test_it_raises_while_a_message_waits(stand: BaseVectorEnv, beside: Callable) -> None:
    """What a stopped process does not take waits in the outbox, and is not cut."""
    main = threading.main_thread()

    def interrupt() -> None:
        wait_until_blocked(main)
        signal.pthread_kill(main.ident, signal.SIGUSR1)

    pids = pids_of(stand)
    os.kill(pids[1], signal.SIGSTOP)
    stand.send([np.zeros(1 << 22, np.uint8)], [1])
    beside(interrupt)
    with pytest.raises(BrokenOffError, match="mine"):
        stand.recv()
    stand.cancel()
    os.kill(pids[1], signal.SIGCONT)
    assert stand.reset()[0][:, 2].tolist() == [0, 0, 0]
    assert stand.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
    assert pids_of(stand) == pids


# ----------------------------------------------------------------- 23 to 30: forks, threads, limits


@cells(23, at=NEW)
def test_a_fork_of_the_program_ends(stand: BaseVectorEnv) -> None:
    def use() -> None:
        stand.close()
        stand.__del__()
        gc.collect()

    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    process.join()
    assert process.exitcode == 0
    goes_on(stand, [0, 1, 2])


@cells(24, at=NEW, by="place")
def test_a_pool_made_in_a_thread_that_ends(place: str) -> None:
    made: list[BaseVectorEnv] = []
    thread = threading.Thread(target=lambda: made.append(PLACES[place](FNS[:1])))
    thread.start()
    thread.join()
    with made[0] as pool:
        assert pool.reset()[0].tolist() == [[0, 0, 0]]
        assert pool.step([""])[0].tolist() == [[0, 0, 1]]


@cells(25, at=FORK, by="place")
def test_pools_are_made_while_threads_run(place: str) -> None:
    over = threading.Event()
    lock = threading.Lock()

    def busy() -> None:
        log = logging.getLogger("tests.busy")
        while not over.is_set():
            with lock:
                log.debug("%s", [bytearray(1000) for _ in range(20)])
            importlib.import_module("json")

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with PLACES[place](FNS) as pool:
                pool.reset()
                assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@cells(26, at=NEW)
def test_a_pool_inside_an_env(stand: BaseVectorEnv) -> None:
    want = [[0, 0, 1], [0, 0, 1]]
    assert stand.apply(broken.inner_rows, "shmem", id=1) == [want]
    assert stand.apply(broken.inner_rows, "dummy", id=1) == [want]
    goes_on(stand, [0, 1, 2])


@contextlib.contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@cells(29, at=PROCESSES, by="place")
def test_shared_memory_is_refused(place: str) -> None:
    fns = [broken.WideEnv] * 2
    options = {"context": place.partition("-")[2], "num_processes": 1}
    with limited(resource.RLIMIT_FSIZE, 4 << 20), no_process_left():
        text = r"cannot get \d+ bytes of shared memory for observations"
        with pytest.raises(MemoryError, match=text):
            PLACES[place].pool(fns, **options)


@cells(30, at=NEW, by="place")
def test_nothing_grows(place: str) -> None:
    options = {"context": place.partition("-")[2], "num_processes": 1}
    before = len(descriptors()), threading.active_count()
    for _ in range(2 if "spawn" in place else 8):
        with no_process_left(), PLACES[place].pool(FNS[:2], **options) as pool:
            pool.reset()
            pool.step([""] * 2)
        gc.collect()
        assert (len(descriptors()), threading.active_count()) == before


# ------------------------------------------------------------------------ 31 to 37: what it returns


def spoilt(pool: BaseVectorEnv, names: dict[str, str]) -> None:
    pids = pids_of(pool)
    for name, text in names.items():
        with pytest.raises(EnvError, match=f"env 1: step raised .*{text}"):
            pool.step(["", f"row:{name}", ""])
        goes_on(pool, [0, 1, 2])
    assert pids_of(pool) == pids


@cells(31, at=NEW)
def test_an_info_that_cannot_travel(stand: BaseVectorEnv) -> None:
    spoilt(stand, {"info unpicklable": "cannot be pickled", "info explodes": "exploded on arrival"})


@cells(32, at=NEW)
def test_no_five_values(stand: BaseVectorEnv) -> None:
    spoilt(
        stand,
        {
            "four": r"step\(\) must return \(obs, reward, .*, info\), got 4 values",
            "info None": "info.*None",
            "reward None": "reward.*None",
            "terminated None": "terminated.*None",
        },
    )


@cells(33, at=NEW)
def test_another_shape(stand: BaseVectorEnv) -> None:
    spoilt(
        stand,
        {"obs short": r"\(2,\).*\(3,\)", "obs broadcastable": r"\(1,\).*\(3,\)"},
    )


@cells(34, at=NEW)
def test_another_dtype(stand: BaseVectorEnv) -> None:
    spoilt(
        stand, {"obs complex": "complex.*float32", "obs None": "None", "obs text": "'?far'?|<U3"}
    )
    # A float of another width is taken.
    batch = stand.step(["", "row:obs double", ""])
    assert batch[0][1].tolist() == np.float32([1.1, 3.1, 2.1]).tolist()


@cells(35, at=ALL)
def test_nan_and_infinity(stand: BaseVectorEnv) -> None:
    obs = stand.step(["", "row:obs nan", ""])[0]
    assert np.array_equal(obs[1], [np.nan, np.inf, -np.inf], equal_nan=True)


@cells(36, at=NEW)
def test_large_both_ways(stand: BaseVectorEnv) -> None:
    actions = [np.full(8 << 20, 7, np.uint8) for _ in range(3)]
    info = stand.step(actions)[4]
    for i in range(3):
        assert (info[i]["array"] == 7 + i).all()


@cells(37, at=NEW)
def test_a_batch_stays(stand: BaseVectorEnv) -> None:
    first = stand.step(["size:9"] * 3)
    kept = first[0].copy(), first[1].copy(), [row["array"].copy() for row in first[4]]
    stand.step(["size:9"] * 3)
    stand.reset()
    assert np.array_equal(first[0], kept[0])
    assert np.array_equal(first[1], kept[1])
    assert all(
        np.array_equal(row["array"], own) for row, own in zip(first[4], kept[2], strict=True)
    )


# --------------------------------------------------------------------- 38 to 44: what is asked for


@cells(38, at=NEW)
def test_a_step_before_the_reset(stand: BaseVectorEnv) -> None:
    stand.restart([1])
    with pytest.raises(ResetNeeded, match="env 1: reset before step"):
        stand.step([""] * 3)
    assert stand.get_env_attr("steps") == [0, 0, 0]
    stand.seed(3)
    assert stand.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]


@cells(39, at=NEW, by="place")
def test_closed_twice_and_used(place: str) -> None:
    with no_process_left():
        pool = PLACES[place](FNS[:1])
        pool.close()
    pool.close()
    for use in (pool.reset, pool.recv, lambda: pool.step([""]), lambda: pool.call("pid")):
        with pytest.raises(ClosedEnvironmentError, match="VectorEnv is closed"):
            use()


@cells(40, at=NEW)
def test_an_env_in_flight(stand: BaseVectorEnv) -> None:
    for send in (lambda: stand.send([""], [1]), lambda: stand.send_reset([1])):
        send()
        asks = (lambda: stand.step([""] * 3), stand.reset, lambda: stand.get_env_attr("tag", 1))
        for ask in asks:
            with pytest.raises(AlreadyPendingCallError, match="env 1: still"):
                ask()
        assert [info["env_id"] for info in stand.recv()[4]] == [1]
    assert stand.get_env_attr("steps") == [0, 1, 0]


@cells(41, at=ALL)
def test_wrong_ids_and_counts(stand: BaseVectorEnv) -> None:
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (["", ""], [1, 1], ValueError, "1"),
        ([""], [3], IndexError, "env id 3 is out of range"),
        ([""], [-1], IndexError, "-1"),
        ([""], None, ValueError, "got 1 actions? for 3 envs"),
        ([""] * 4, None, ValueError, "got 4 actions for 3 envs"),
    ]
    for actions, ids, error, text in wrong:
        for ask in (stand.step, stand.send):
            with pytest.raises(error, match=text) as caught:
                ask(actions, ids)
            assert not isinstance(caught.value, EnvError)
    with pytest.raises(ValueError, match="got 2 seeds for 3 envs"):
        stand.reset(seed=[1, 2])
    assert stand.call("counts") == [(0, 1)] * 3


@cells(42, at=ALL)
def test_nothing_to_fetch(stand: BaseVectorEnv) -> None:
    for fetch in (lambda: stand.step(None), stand.recv):
        with pytest.raises(ValueError, match="fetches results, but no env is in flight"):
            fetch()
    assert len(stand.drain()[1]) == 0


@cells(43, at=ALL)
def test_attributes_that_are_not_there(stand: BaseVectorEnv) -> None:
    with pytest.raises(
        AttributeError, match="env 1: get_attr raised AttributeError.*'colour'"
    ) as got:
        stand.get_env_attr("colour", 1)
    assert isinstance(got.value, EnvError)
    with pytest.raises(EnvError, match="env 1: set_attr raised AttributeError"):
        stand.set_env_attr("read_only", 5, 1)
    with pytest.raises(EnvError, match="env 1: call raised AttributeError"):
        stand.call("paint", id=1)
    assert stand.get_env_attr("read_only") == [0, 1, 2]
    assert stand.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]  # no reset is needed


@cells(44, at=NEW, by="place")
def test_its_close_raises(place: str, tmp_path: Path) -> None:
    path = tmp_path / "closed"
    fns = [functools.partial(envs.CloseEnv, tag, str(path), tag == 0) for tag in range(2)]
    pool = PLACES[place].pool(fns, context=place.partition("-")[2], num_processes=1)
    with no_process_left(), pytest.warns(RuntimeWarning, match="env 0.*want to close"):
        pool.close()
    assert sorted(path.read_text().split()) == ["0", "1"]


# ------------------------------------------------------ 15, 16, 18, 21, 22: programs of their own

PRELUDE = """
    import functools, json, os, signal, sys, time
    from pathlib import Path

    def started(columns, num):
        from tests.support import broken
        from tests.support.places import PLACES
        fns = [functools.partial(broken.BrokenEnv, tag) for tag in range(num)]
        pools = {column: PLACES[column](fns) for column in columns}
        for pool in pools.values():
            pool.reset()
        pids = {column: pool.call("pid") for column, pool in pools.items()}
        return pools, pids

    def tell(**facts):
        print(json.dumps(facts), flush=True)
"""
ENDS = """
    if __name__ == "__main__":
        pools, pids = started(sys.argv[1].split(","), 1)
        tell(pids=pids)
        kept = pools  # to be found at the end, as a user's own would
        {end}
"""
HANGS = """
    if __name__ == "__main__":
        from envpool_py.worker import processes
        processes.GRACE = 0.1
        pools, pids = started(sys.argv[1].split(","), 1)
        for column, pool in pools.items():
            path = Path(sys.argv[2], column)
            pool.send([f"stubborn:{{path}}"])
            while not (path.exists() and path.read_text()):
                time.sleep(0.001)
            pids[column].append(int(path.read_text()))
        tell(pids=pids)
"""
KILLED = """
    if __name__ == "__main__":
        from tests.test_fault_table import stopped
        pools, pids = started(sys.argv[1].split(","), 4)
        for column, pool in pools.items():
            path = Path(sys.argv[2], column)
            pool.send([f"stubborn:{{path}}", "gil", "stop"], [1, 2, 3])
            while not (path.exists() and path.read_text() and stopped(pids[column][3])):
                time.sleep(0.001)
            pids[column].append(int(path.read_text()))
        tell(pids=pids)
        os.kill(os.getpid(), signal.SIGKILL)
"""
INTERRUPTED = """
    if __name__ == "__main__":
        pools, pids = started(sys.argv[1].split(","), 2)
        done = []
        for column, pool in pools.items():
            try:
                pool.step(["", f"interrupt:{{os.getpgid(0)}}"])
            except KeyboardInterrupt:
                done.append(column)
            assert pool.call("pid") == pids[column], column
            assert pool.reset()[0][:, 2].tolist() == [0, 0], column
            assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1], column
            pool.close()
        tell(pids=pids, done=done)
"""


class Program:
    """What a program of its own has left: its exit, what it wrote, the processes it had."""

    def __init__(self, text: str, folder: Path, columns: tuple[str, ...], **names: str) -> None:
        script = folder / "script.py"
        whole = textwrap.dedent(PRELUDE) + textwrap.dedent(text).format(**names)
        script.write_text(whole)
        paths = folder / "stdout", folder / "stderr"
        with paths[0].open("w") as out, paths[1].open("w") as errors:
            done = subprocess.run(
                [sys.executable, str(script), ",".join(columns), str(folder)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,  # no pipes, which a process that is left over would hold open
                stderr=errors,
                timeout=40,
                check=False,
                start_new_session=True,
            )
        self.code, (told, self.errors) = done.returncode, (path.read_text() for path in paths)
        self.facts = json.loads(told) if told else {}

    def left_nothing(self, column: str, seconds: float = 5.0) -> bool:
        pids = self.facts["pids"][column]
        return wait_until(lambda: not any(map(running, pids)), seconds)


def program(text: str, columns: tuple[str, ...], **names: str) -> Any:
    """Make a fixture of a program, run once for all of its columns."""

    @pytest.fixture(scope="module")
    def ran(tmp_path_factory: pytest.TempPathFactory) -> Program:
        return Program(text, tmp_path_factory.mktemp("program"), columns, **names)

    return ran


passes = program(ENDS, ALL, end="pass")
raises = program(ENDS, ("dummy", *FORK), end="raise KeyError('mine')")
exits = program(ENDS, ("dummy", *FORK), end="sys.exit(3)")
hangs = program(HANGS, PROCESSES)
killed = program(KILLED, PROCESSES)
interrupted = program(INTERRUPTED, ALL)


@cells(16, at=ALL, by="place")
def test_the_program_ends(place: str, passes: Program) -> None:
    assert (passes.code, passes.errors) == (0, "")
    assert len(passes.facts["pids"][place]) == 1
    assert passes.left_nothing(place)


@cells(16, at=("dummy", *FORK), by="place")
def test_the_program_raises_or_exits(place: str, raises: Program, exits: Program) -> None:
    assert (raises.code, raises.errors.count("Traceback")) == (1, 1)
    assert raises.errors.endswith("KeyError: 'mine'\n")
    assert (exits.code, exits.errors) == (3, "")
    assert raises.left_nothing(place)
    assert exits.left_nothing(place)


@cells(15, at=PROCESSES, by="place")
def test_the_program_ends_with_an_env_that_hangs(place: str, hangs: Program) -> None:
    assert (hangs.code, hangs.errors) == (0, "")
    assert len(hangs.facts["pids"][place]) == 2
    assert hangs.left_nothing(place)


@cells(21, 22, at=PROCESSES, by="place")
def test_the_program_is_killed(place: str, killed: Program) -> None:
    """One env is idle, one hangs with a process of its own, one holds the GIL, one is stopped."""
    assert killed.code == -signal.SIGKILL, killed.errors
    assert len(set(killed.facts["pids"][place])) == 5
    assert killed.left_nothing(place)


@cells(18, at=ALL, by="place")
def test_the_program_is_interrupted(place: str, interrupted: Program) -> None:
    assert (interrupted.code, interrupted.errors) == (0, "")
    assert place in interrupted.facts["done"]
    assert interrupted.left_nothing(place)
