"""A signal handler that raises, at any moment of any call, leaves the pool usable and truthful."""

import collections
import ctypes
import functools
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

import envpool_py
from envpool_py import BaseVectorEnv, EnvError, interrupts
from envpool_py.pool import base
from envpool_py.worker import DummyEnvWorker, ShmemEnvWorker, fork_server
from envpool_py.worker.supervisor import Supervisor
from tests.faults.helpers import (
    BROKEN,
    FNS,
    goes_on,
    handling,
    raising,
    reset_pool,
    signalling,
)
from tests.support import envs
from tests.support.helpers import Helper, descriptors, wait_until, wait_until_blocked
from tests.support.places import PLACES, slow, soak

PACKAGE = Path(envpool_py.__file__).parent
HOST = "worker/host.py", "worker/process_host.py", "worker/messages.py"


class SignalledPoll:
    """An epoll object before each of whose waits a signal comes, too late for Python to see it."""

    def __init__(self, poll):
        self.inner = poll

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def poll(self, seconds):
        calls = (
            functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1),
            functools.partial(self.inner.poll, seconds),
        )
        return [*map(functools.partial.__call__, calls)][1]  # no bytecode in between


@pytest.mark.skipif(sys.platform != "linux", reason="needs epoll")
@pytest.mark.parametrize("call", ["recv", "call"])
def test_a_signal_just_before_a_wait_is_not_kept_until_a_result_comes(call, monkeypatch):
    monkeypatch.setattr("envpool_py.engine.flight.HANGS_AFTER", 1e5)
    go_on = multiprocessing.get_context("fork").Event()
    env = functools.partial(envs.ChangedEnv, 0, step=lambda *row: go_on.wait() and row[2])
    with reset_pool("shmem-fork", [env]) as pool:
        pool.send([0])
        if call == "call":  # it waits for the process, which still steps
            pool.cancel()
        poller = pool.engine.hosts.supervisor.poller
        poller._poll = SignalledPoll(poller._poll)
        with handling(signal.SIGUSR1, raising(TimeoutError())), pytest.raises(TimeoutError):
            pool.recv() if call == "recv" else pool.call("pid")
        poller._poll = poller._poll.inner
        go_on.set()


class CallerWorker(DummyEnvWorker):
    """Not one of the package's own."""


@pytest.mark.parametrize(
    ("place", "kind", "on_error"),
    [
        ("dummy", EnvError, "raise"),
        ("shmem-fork-packed", TimeoutError, "raise"),
        ("shmem-fork-caller", TimeoutError, "restart"),
        ("thread", TimeoutError, "raise"),
        ("custom worker", TimeoutError, "restart"),
    ],
)
def test_a_signal_handler_raises(place, kind, on_error):
    """A TimeoutError is an OSError, which nothing may take for a broken pipe.

    `tests/unit/test_interrupts.py` has every kind of handler.
    """
    error = kind("of another pool", (0,))

    def step(_, action, row):
        if action:
            os.kill(main, signal.SIGUSR1)
        return row

    main = os.getpid()
    fns = [functools.partial(envs.ChangedEnv, tag, step=step) for tag in range(3)]
    # A custom worker whose env is in this process has no place.
    make = PLACES.get(place, functools.partial(BaseVectorEnv, worker_fn=CallerWorker))
    with make(fns, on_error=on_error) as pool:
        pool.reset()
        pids = pool.call("pid")
        with handling(signal.SIGUSR1, raising(error)), pytest.raises(kind) as caught:
            pool.step([1, 0, 0] if kind is EnvError else np.array([1, 0, 0]))
        assert caught.value is error, "no env is blamed for it"
        assert pool.waiting_id == []
        with pytest.raises(ResetNeeded, match="envs 0 to 2: .* cancelled"):
            pool.step([0, 0, 0])
        assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert pool.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]
        assert pool.call("pid") == pids
        assert sum(pool.restarts) == 0


class AlarmingValue:
    """Sends a signal to its own process when it is pickled."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGUSR1)
        return AlarmingValue, ()


def test_a_signal_handler_raises_while_a_value_is_pickled_or_unpickled():
    error = TimeoutError("mine")
    with reset_pool("shmem-fork-packed", BROKEN) as pool, handling(signal.SIGUSR1, raising(error)):
        for ask in (
            lambda: pool.reset(options={"alarm": AlarmingValue()}),
            lambda: pool.step(["", "bell", ""]),
        ):
            with pytest.raises(TimeoutError) as caught:
                ask()
            assert caught.value is error
            goes_on(pool, [0, 1, 2])


@pytest.mark.slow
def test_a_signal_handler_raises_while_a_message_waits_or_is_written(beside):
    """The rest of the message is sent before the next one, and all envs go on."""
    handler = raising(TimeoutError("mine"))
    with reset_pool("shmem-fork", BROKEN) as pool, handling(signal.SIGUSR1, handler):
        pids = pool.call("pid")
        os.kill(pids[1], signal.SIGSTOP)
        pool.send([np.zeros(1 << 22, np.uint8)], [1])  # most of it stays in the outbox
        beside(signalling())
        with pytest.raises(TimeoutError, match="mine"):
            pool.recv()
        os.kill(pids[1], signal.SIGCONT)
        goes_on(pool, [0, 1, 2])
        assert pool.call("pid") == pids
        step = functools.partial(pool.step, [np.zeros(1 << 19, np.uint8)] * 3)
        for _ in each_moment(step, HOST, visits=2):
            goes_on(pool, [0, 1, 2])
        assert pool.call("pid") == pids


@pytest.mark.parametrize("sends", [False, True])
def test_a_message_counts_if_it_was_sent(sends):
    """Else a process that is idle is late with a message that it never got, and is killed."""
    with reset_pool("shmem-fork", step_timeout=60.0) as pool:
        host = pool.engine.hosts.of(0)
        send = host.stream.send

        def interrupted(*args):
            host.stream.send = send
            if sends:
                send(*args)
            signal.raise_signal(signal.SIGINT)

        host.stream.send = interrupted
        with pytest.raises(KeyboardInterrupt):
            pool.step([""] * len(pool))
        pool.reset()
        count = pool.engine.hosts.supervisor._messages_sent
        assert wait_until(lambda: count()[0] == host.heartbeat["handled"])


SHORT = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]


def each_moment(call, files=("",), *, opcodes=0, visits=10**9, kind=KeyboardInterrupt, without=()):
    """Interrupt a call at each line, or at each ``opcodes``-th opcode, in files of the package.

    There a signal handler raises, and what it raises must come out; then the test may look. A line
    counts for as many visits, and none in the functions ``without``. The end is a call that is not
    interrupted.
    """
    counted, pid = tuple(str(PACKAGE / file) for file in files), os.getpid()

    def trace(frame, event, arg):  # noqa: ARG001 - of a tracer
        nonlocal left
        if os.getpid() != pid:  # a process that was forked meanwhile
            sys.settrace(None)
            return None
        if not frame.f_code.co_filename.startswith(counted):
            return None
        if frame.f_code.co_name in without:
            return None
        frame.f_trace_opcodes = opcodes > 0
        if event == ("opcode" if opcodes else "line"):
            place = frame.f_code.co_filename, frame.f_lineno
            seen[place] += 1
            left -= seen[place] <= visits
            if not left:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    for number in itertools.count(1, opcodes or 1):
        seen = collections.Counter()
        left, came_out = number, False
        before, error = sys.gettrace(), kind("of the handler")
        with handling(signal.SIGUSR1, raising(error)):
            try:
                sys.settrace(trace)
                call()
            except kind as caught:
                assert caught is error  # noqa: PT017 - it may raise or not
                caught.__traceback__ = None  # which holds what was half made
                came_out = True
            finally:
                sys.settrace(before)
        assert came_out == (not left), "what the handler raised was swallowed"
        if not came_out:
            break
        yield number
    assert number > 30, "the tracer has seen hardly a line"


def test_a_block_of_deferred_handlers_may_be_interrupted_at_any_line():
    """The handlers are the user's again, that of a signal in the block has run once."""

    def block():
        seen.clear()
        with interrupts.deferred():
            signal.raise_signal(signal.SIGUSR2)
            seen.append("block")

    seen = []
    with handling(signal.SIGUSR2, lambda *_: seen.append("handler")):
        before = {signum: signal.getsignal(signum) for signum in signal.valid_signals()}
        del before[signal.SIGUSR1]
        for _ in each_moment(block, ("interrupts.py",)):
            assert {signum: signal.getsignal(signum) for signum in before} == before
            assert not isinstance(signal.getsignal(signal.SIGUSR1), interrupts._Deferral)
            assert interrupts._deferrals == []
            assert seen in ([], ["block", "handler"])
        assert seen == ["block", "handler"]


def test_the_value_of_a_reply_that_was_not_read_is_none_of_the_next_call(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with reset_pool("shmem-fork") as pool:
        host = pool.engine.hosts.of(0)
        pool.engine.hosts.supervisor.poller.forget(host.stream.fd)  # values are read when needed
        with monkeypatch.context() as patch:
            patch.setattr(pool.engine.flight, "take_reply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.call("pid")
        assert wait_until(host.read)
        assert pool.get_env_attr("tag") == [0, 1, 2]


@pytest.mark.parametrize("place", ["dummy", "shmem-fork", "thread"])
def test_a_restart_and_the_reset_that_goes_on_with_it_are_interrupted(place):
    """The env's late reply to the first is not taken for that to the second, nor to the call."""

    def interrupt_in(owner, name, call):
        def interrupted(*_):
            delattr(owner, name)
            raise KeyboardInterrupt

        setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()

    with reset_pool(place, SHORT[:1]) as pool:
        interrupt_in(pool.engine.recovery.recreation, "_notify", lambda: pool.restart([0]))
        interrupt_in(pool.engine.flight, "take_reply", pool.reset)
        assert pool.call("__getattribute__", "tag") == [0]
        assert pool.reset()[0].tolist() == [[0, 0, 0]]
        assert pool.restarts == [1]


@pytest.mark.parametrize(
    ("place", "visits"),
    [*slow(("shmem-fork", 1)), *soak(("shmem-fork", 2), ("shmem-forkserver", 2))],
)
def test_a_constructor_that_is_interrupted_at_any_line_leaves_nothing(place, visits, tmp_path):
    # The fixture of all tests sees what is left; a record that is left is refused.
    files = (
        "pool/base.py",
        "engine/engine.py",
        "record/record_writer.py",
        "worker/fork_server.py",
        "worker/host_group.py",
        "worker/supervisor.py",
    )
    made, options = [], {"autoreset_mode": "same_step", "record": tmp_path / "record"}

    def make():
        made.append(PLACES[place](SHORT[:2], **options))

    # Later calls do not import the modules: after a walk through an import, as many lines of the
    # call itself would not be interrupted.
    PLACES[place](SHORT[:2]).close()
    before = len(descriptors())
    # One while the handler of Ctrl-C is put back leaves Ctrl-C deferred.
    with handling(signal.SIGINT, signal.getsignal(signal.SIGINT)):
        own = files if place == "shmem-fork" else ("worker/fork_server.py",)  # a server is slow
        for _ in each_moment(make, own, visits=visits):
            assert not made
            assert wait_until(lambda: len(descriptors()) == before)
    made[0].close()


def test_a_fork_server_that_starts_while_it_is_closed_ends(monkeypatch):
    """The thread of a start that was interrupted goes on."""
    begun, may_go_on, spawn = threading.Event(), threading.Event(), forkserver.util.spawnv_passfds

    def spawn_late(*args):
        begun.set()
        assert may_go_on.wait(60)
        return spawn(*args)

    server = fork_server.Context()
    server.prepare([], None, math.inf, math.inf)
    fork_server._kill_server(server._server)
    monkeypatch.setattr(forkserver.util, "spawnv_passfds", spawn_late)
    threads = [Helper(server._server.ensure_running), Helper(server.close)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    may_go_on.set()
    for thread in threads:
        thread.finish()


def start_a_fork_server():
    server = fork_server.Context()
    try:
        server.prepare([], None, math.inf, math.inf)
    finally:
        server.close()


def open_a_supervisor():
    supervisor = Supervisor([SHORT[0]], "fork", 1)
    try:
        supervisor._open()
    finally:
        supervisor.close()


OPENING = ("worker/supervisor.py", "worker/poller.py", "env/shared_memory.py")


def start_a_worker_outside_a_pool():
    worker = ShmemEnvWorker(SHORT[0], "fork")
    try:
        worker.process  # noqa: B018 - it starts
    finally:
        worker.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start_and_close", "files", "opcodes", "seconds"),
    [
        # Its thread may go on for a while.
        (start_a_fork_server, ("worker/fork_server.py", threading.__file__), 30, 60.0),
        # Until a name has it, a descriptor is a number that nobody closes.
        (open_a_supervisor, OPENING, 1, 0.0),
        (start_a_worker_outside_a_pool, ("worker/builtin_env_workers.py", "errors.py"), 1, 0.0),
    ],
)
def test_what_is_interrupted_while_it_starts_is_closed(start_and_close, files, opcodes, seconds):
    start_and_close()  # later calls do not import
    kept = descriptors(), threading.enumerate()
    options = {"without": ("close", "_await_exits", "<listcomp>"), "kind": TimeoutError}
    for _ in each_moment(start_and_close, files, opcodes=opcodes, **options):
        assert not multiprocessing.active_children()
        assert wait_until(lambda: (descriptors(), threading.enumerate()) == kept, seconds)


@pytest.mark.slow
def test_what_a_handler_raises_while_a_row_is_stored_is_not_taken_for_the_envs():
    """Such an error is neither swallowed nor taken for one of the env."""
    files = tuple(
        f"env/{name}.py" for name in ("spaces", "step_loop", "block_io", "validation", "executor")
    )
    fns = [functools.partial(envs.SpaceEnv, tag, "mixed", length=1) for tag in range(2)]
    with reset_pool("dummy", fns, autoreset_mode="same_step", validate="always") as pool:
        actions = [space.sample() for space in pool.action_space]
        pool.send(actions)
        for _ in each_moment(pool.recv, files, visits=1, kind=ValueError):
            pool.cancel()
            pool.reset()
            infos = pool.step(actions)[4]  # the end of an episode, and a reset
            assert [info["final_info"]["step"] for info in infos] == [1, 1]
            pool.send(actions)


@pytest.mark.parametrize(
    ("place", "name", "by"),
    [
        ("dummy", "recv", "handler"),
        ("shmem-fork-packed", "recv", "ctrl-c"),
        ("shmem-fork-packed", "get_env_attr", "thread"),
    ],
)
def test_a_back_off_ends_at_once(place, name, by, beside, monkeypatch):
    """By close() of another thread or of a signal handler, and by Ctrl-C."""

    def wait_and_close():
        wait_until_blocked(threading.main_thread())
        pool.close()

    error = KeyboardInterrupt if by == "ctrl-c" else ClosedEnvironmentError
    handler = raising(KeyboardInterrupt()) if by == "ctrl-c" else lambda *_: pool.close()
    monkeypatch.setattr("envpool_py.engine.failed.LONGEST_BACKOFF", 1e5)
    with reset_pool(place, on_error="restart", restart_backoff=1e5) as pool:
        pool.step(["", "value", ""])  # the first restart is at once
        pool.reset([1])
        pool.wait_num = 2
        assert len(pool.step(["", "value", ""])[0]) == 2
        pool.timeout, pool.strict_timeout = 0.01, True
        while 1 not in pool.engine.recovery.recreating:
            assert len(pool.recv()[0]) == 0
        pool.timeout = None
        if name == "get_env_attr":
            pool.cancel([1])
        with handling(signal.SIGUSR1, handler):
            beside(wait_and_close if by == "thread" else signalling())
            with pytest.raises(error):
                pool.recv() if name == "recv" else pool.get_env_attr("tag", [1])
        if by == "ctrl-c":
            assert sorted(pool.step(["", ""], [0, 2])[0][:, 2].tolist()) == [3, 3]


SECOND = [
    *((name, ([0], [0])) for name in ("step", "send")),
    *((name, ([0],)) for name in ("reset", "send_reset", "restart")),
    *((name, ()) for name in ("recv", "drain", "cancel")),
    *(("step", (None,)), ("get_env_attr", ("tag", [0])), ("call", ("counts",))),
]


@pytest.mark.parametrize(("place", "by"), [("dummy", "handler"), ("shmem-fork", "thread")])
def test_a_second_call_is_refused(place, by, gates, beside):
    refused = []

    def call(*_):
        for name, arguments in SECOND:
            with pytest.raises(AlreadyPendingCallError):
                getattr(pool, name)(*arguments)
            refused.append(name)

    def interfere():
        with gates[1].held():
            call() if by == "thread" else signalling()()

    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]
    with reset_pool(place, fns) as pool, handling(signal.SIGUSR1, call):
        helper = beside(interfere)
        batch = pool.step([envs.BLOCK], [1])
        helper.finish()
        assert len(refused) == len(SECOND)
        assert batch[0].tolist() == [[1, 0, 1]]
        assert [info["env_id"] for info in batch[4]] == [1]
        assert pool.call("counts") == [(0, 1), (1, 1), (0, 1)]
        assert pool.step([0] * 3)[0][:, 2].tolist() == [1, 2, 1]


def test_what_a_pool_does_at_exit_is_noted_whole(monkeypatch):
    """Half of a Finalize prints a traceback when the pool is freed."""

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGUSR1)
        made.append(plain(*args, **options))

    made, plain = [], base.Finalize
    monkeypatch.setattr(base, "Finalize", interrupted)
    with handling(signal.SIGUSR1, raising(InterruptedError)), pytest.raises(InterruptedError):
        PLACES["thread"](FNS)
    assert len(made) == 1
