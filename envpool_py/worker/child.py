"""The loop inside a worker process: requests in, envs stepped in turn, results out.

What holds:

* whatever an env raises, ``sys.exit`` included, is told to the parent, and the process goes on;
* a row is whole, and what lies beside it has been sent, before its token is published;
* the process and what it started are killed as soon as the parent has gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import reduction
from operator import length_hint
from typing import Any, NamedTuple

from envpool_py import shm
from envpool_py.block import Beside, Block, Spec
from envpool_py.errors import pack_failure
from envpool_py.info_codec import Packer
from envpool_py.row_writer import RowWriter
from envpool_py.watchdog import Heartbeat, show_stacks
from envpool_py.worker import limits
from envpool_py.worker.base import Request
from envpool_py.worker.channel import (
    ATTACH,
    BESIDE,
    CLOSE,
    CLOSE_FAILURE,
    FAILURE,
    HEADER,
    HELLO,
    ID_MASK,
    ITEM,
    REQUESTS,
    TOKEN_BYTES,
    TOKENS_PROMPT,
    Looks,
    ProcessEnd,
)
from envpool_py.worker.executor import Executor
from envpool_py.worker.pickling import dumps

#: Seconds after which finished rows are told while others are still stepped: often enough that
#: nobody waits for a neighbour's slow env, seldom enough that a cheap env does not pay a system
#: call for each step.
PUBLISH_AFTER = 60e-6

# Linux's number; the fcntl module does not name it before Python 3.13.
_F_SETSIG = 10


class Descriptor:
    """A file descriptor that follows a process being started, by fork, spawn or forkserver."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.fd),)


def _received(dup: Any) -> Descriptor:
    return Descriptor(dup.detach())


class Shared(NamedTuple):
    """What all processes of a pool share.

    ``results``: the pipe for tokens. ``memory``: the block's; None for a worker of its own.
    ``parent_alive``: reading end of a pipe whose only other end is the parent's. ``stacks``: a file
    for the Python stacks that a process is asked for; None without ``step_timeout``.
    """

    results: Descriptor
    memory: Descriptor | None
    parent_alive: Descriptor
    stacks: Descriptor | None


class Habits(NamedTuple):
    """How a process goes about its work.

    ``look``: whether to look for the next request before sleeping. ``num_threads``: to compute
    with, None for no limit. ``core``: to stay on, None for any.
    """

    look: bool
    num_threads: int | None
    core: int | None


def main(
    number: int,
    ids: Sequence[int],
    env_fns: Sequence[Any],
    stream: Descriptor,
    shared: Shared,
    habits: Habits,
) -> None:
    """Run a worker process.

    Args:
        number: its place among the processes of the pool.
        ids: the envs that live here.
        env_fns: one callable for each, or its cloudpickle.
        stream: both ways between the parent and this process.
        shared: what all processes share.
        habits: how to go about it.
    """
    # A group of its own: Ctrl-C in the terminal reaches the parent alone, and a kill of the group
    # reaches what the envs have started.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _die_with_parent(shared.parent_alive.fd)
    if habits.num_threads is not None:
        limits.limit_threads(habits.num_threads)
    if habits.core is not None:
        limits.pin(habits.core)
    if shared.stacks is not None:
        show_stacks(shared.stacks.fd)
    _Process(number, ids, stream.fd, shared, habits).run(env_fns)


class _Process:
    """The envs of this process, and its ways to the parent."""

    def __init__(
        self, number: int, ids: Sequence[int], stream: int, shared: Shared, habits: Habits
    ) -> None:
        self._number = number
        self._ids = ids
        self._socket = socket.socket(fileno=stream)
        self._end = ProcessEnd(self._socket, shared.results.fd, Looks(allowed=habits.look))
        self._shared = shared
        self._executors: dict[int, Executor] = {}
        self._writer: RowWriter | None = None
        self._heartbeat: Heartbeat | None = None
        self._items: list[bytes] = []

    def run(self, env_fns: Sequence[Any]) -> None:
        if self._build(env_fns):
            frames = 0
            while True:
                kind, body = self._end.receive()
                if kind == CLOSE:
                    break
                if kind == REQUESTS:
                    self._answer(body)
                elif kind == ATTACH:
                    self._attach(pickle.loads(body))  # noqa: S301 - from our own parent
                else:
                    self._carry_out(body, PUBLISH_AFTER if kind == TOKENS_PROMPT else 0)
                frames += 1
                if self._heartbeat is not None:
                    self._heartbeat.count(frames)
        self._close()

    def _attach(self, spec: Spec) -> None:
        """Keep rows in the block from now on."""
        assert self._shared.memory is not None  # noqa: S101 - for the type checker
        block = Block(spec, shm.attach(self._shared.memory.fd))
        if spec.num_processes:
            self._heartbeat = Heartbeat(block.heartbeats[self._number])
        keep_info = Packer(*block.info_memory).pack
        self._writer = RowWriter(
            block, self._executors, self._send_beside, self._fail, keep_info, self._heartbeat
        )

    def _build(self, env_fns: Sequence[Any]) -> bool:
        """Make the envs and tell the parent their spaces; False where one cannot be made."""
        seen: dict[int, int] = {}
        self._add(self._ids[0], HELLO, b"")
        self._end.send(self._items)
        for i, env_fn in zip(self._ids, env_fns, strict=True):
            try:
                make = pickle.loads(env_fn) if isinstance(env_fn, bytes) else env_fn  # noqa: S301
                executor = Executor(make)
                first = seen.setdefault(id(getattr(executor.env, "unwrapped", executor.env)), i)
                if first != i:
                    raise ValueError(  # noqa: TRY301 - one way out for every failure
                        f"it returned the instance that env {first} has;"
                        " every env_fn must make its own"
                    )
                self._executors[i] = executor
                self._add(i, HELLO, dumps(executor.env_spaces(), "spaces"))
                # One by one: the parent knows which env_fn it waits for.
                self._end.send(self._items)
            except BaseException as error:  # noqa: BLE001 - sys.exit in an env_fn included
                self._fail(i, "env_fn", error)
                self._end.send(self._items)
                return False
        return True

    # ----------------------------------------------------------------------------------- requests

    def _carry_out(self, data: bytes, publish_after: float) -> None:
        """Carry out steps and plain resets; tell of those that are done every now and then."""
        writer = self._writer
        assert writer is not None  # noqa: S101 - the parent attaches a block first
        tokens = memoryview(data).cast("q").tolist()
        todo, start, left = iter(tokens), 0, len(tokens)
        while left:
            due = time.perf_counter() + publish_after if publish_after else 0.0
            writer.carry_out(tokens, todo, due)
            left = length_hint(todo)
            stop = len(data) - left * TOKEN_BYTES
            # What was received is the answer.
            self._publish(data[start:stop])
            start = stop

    def _answer(self, body: bytes) -> None:
        """Carry out requests with arguments."""
        for tokens, data in pickle.loads(body):  # noqa: S301 - from our own parent
            for token in tokens:
                try:
                    request = pickle.loads(data)  # noqa: S301 - likewise; a copy for each env
                except BaseException as error:  # noqa: BLE001 - unpickling runs the user's code
                    note = self._fail if self._writer is None else self._writer.note_error
                    note(token, "request", error)
                else:
                    self._answer_one(token, request)
                self._publish(HEADER.pack(token))

    def _answer_one(self, token: int, request: Request) -> None:
        if self._writer is not None:
            self._writer.answer(token, request)
            return
        try:
            reply = self._executors[token & ID_MASK](request)
            self._send_beside(token, {"reply": reply})
        except BaseException as error:  # noqa: BLE001 - every fault of an env is told
            self._fail(token, request.kind, error)

    # ------------------------------------------------------------------------------------ results

    def _send_beside(self, token: int, beside: Beside) -> None:
        self._add(
            token, BESIDE, dumps(beside, "result" if "reply" in beside else "info or observation")
        )

    def _fail(self, token: int, kind: str, error: BaseException) -> None:
        self._add(token, FAILURE, pickle.dumps((kind, pack_failure(error))))

    def _add(self, token: int, status: int, data: bytes) -> None:
        self._items.append(ITEM.pack(token, status, len(data)))
        self._items.append(data)

    def _publish(self, tokens: bytes) -> None:
        if self._items:
            self._end.send(self._items)
        self._end.publish(tokens)

    def _close(self) -> None:
        for i, executor in self._executors.items():
            try:
                executor.close()
            except BaseException as error:  # noqa: BLE001 - the other envs must be closed as well
                self._add(i, CLOSE_FAILURE, pickle.dumps(("close", pack_failure(error))))
        with contextlib.suppress(ConnectionError):  # the parent has gone: nobody is to be told
            self._end.send(self._items)
        # Left open: its end is not to be told before that of the process.
        self._socket.detach()


def _die_with_parent(alive: int) -> None:
    """Have this process and what it started killed as soon as the parent has gone.

    On Linux the kernel does it, also while an env holds the GIL in C code or the process is
    stopped: a descriptor can be asked to send a signal of one's choice when its state changes, and
    that of this pipe changes once, when the parent's end of it closes.
    """
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415 - not everywhere

        try:
            # Owner and signal belong to the open file, which forked siblings share: open it again.
            own = os.open(f"/proc/self/fd/{alive}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpid())
            fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            pass
        else:
            if _closed(own, 0):  # it had gone before
                os.killpg(0, signal.SIGKILL)
            return
    threading.Thread(target=_watch, args=(alive,), daemon=True, name="envpool_py parent").start()


def _watch(alive: int) -> None:
    _closed(alive, None)
    os.killpg(0, signal.SIGKILL)


def _closed(fd: int, timeout: float | None) -> bool:
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout))
