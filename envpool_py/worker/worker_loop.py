"""The loop of a worker process: receive requests, step the envs, send results.

Invariants:

* any exception of an env, ``SystemExit`` included, is sent to the parent, and the process goes on;
* a row is complete, and the values beside it are sent, before its token is published;
* the process and its child processes are killed as soon as the parent has ended: only a CLOSE
  message, or an ``env_fn`` that raises, lets the process end by itself.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from operator import length_hint
from typing import Any, NamedTuple

from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import Executor, Recreated, claim_instance
from envpool_py.env.failures import describe, pack_failure, place_of
from envpool_py.env.heartbeat import Heartbeat
from envpool_py.env.request import ID_MASK, TOKEN_BYTES, pack_token
from envpool_py.env.step_loop import StepLoop
from envpool_py.interrupts import ordinary
from envpool_py.options import ProcessOptions
from envpool_py.worker import cores_and_threads, file_descriptors, messages
from envpool_py.worker.connection_to_parent import ConnectionToParent, Spinning
from envpool_py.worker.watchdog import show_stacks

#: Seconds after which finished rows are published while other envs are still stepped: short, so
#: that a slow env does not delay the rows of others; not 0, so that cheap envs do not need a system
#: call per step.
PUBLISH_AFTER = 60e-6


class Shared(NamedTuple):
    """The settings and descriptors that all processes of a pool share, with every start method.

    ``may_spin``: whether to spin for the next request. ``results``: the pipe for tokens.
    ``memory``: the memory of the block. ``parent_alive``: reading end of a pipe whose writing end
    only the parent has. ``stacks``: the file for Python stacks; -1: each process gets its own.
    """

    may_spin: bool
    options: ProcessOptions
    results: int
    memory: int
    parent_alive: int
    stacks: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_shared, (self[:2], [reduction.DupFd(fd) for fd in self[2:]])


def _unpickle_shared(settings: Sequence[Any], fds: Sequence[Any]) -> Shared:
    return Shared(*settings, *[fd.detach() for fd in fds])


def main(
    number: int, ids: Sequence[int], env_fns: Sequence[Any], stream: socket.socket, shared: Shared
) -> None:
    """Run worker process ``number``; ``env_fns``, pickled or not, make the envs ``ids``."""
    os.setpgid(0, 0)  # why: see the invariants of ``process_host``
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops one that came before ``setpgid``
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # Python's default, under fork too
    signal.set_wakeup_fd(-1)
    _die_with_parent(shared.parent_alive)
    cores_and_threads.limit_threads(shared.options.threads_per_process)
    if shared.options.affinity:
        cores_and_threads.pin(number)
    show_stacks(shared.stacks, number)
    multiprocessing.parent_process()._sentinel = shared.parent_alive  # type: ignore[union-attr]  # noqa: SLF001 - the parent closes multiprocessing's
    file_descriptors.claim(stream.fileno(), stream)  # a copy that an env forks would keep it open
    end = ConnectionToParent(stream, shared.results, Spinning(allowed=shared.may_spin))

    def open_block(spec: bytes) -> Block:
        return Block(pickle.loads(spec), mmap.mmap(shared.memory, 0))  # noqa: S301 - from our parent

    try:
        loop = EnvLoop(ids, end, {}, open_block)
        run_envs(loop, end.receive, made=loop.make_envs(env_fns))
    except ordinary(ConnectionError):  # the parent has ended, maybe before the pipe says so
        os.killpg(0, signal.SIGKILL)
    except BaseException as error:  # of a signal handler that an env has installed
        end.add(ids[0], messages.ENDED, (describe(error) + place_of(error)).encode())
        with contextlib.suppress(OSError):  # an env has closed the connection
            end.send()
        raise
    stream.detach()  # left open: the parent must not see its end before that of the process


class EnvLoop:
    """The envs that one thread steps; ``end`` is its connection to the parent.

    The threads of a process share ``claimed``, see ``claim_instance``. ``open_block`` returns the
    block for the body of an ATTACH.
    """

    _load: Callable[[Any], Any] = staticmethod(pickle.loads)
    _dump: Callable[[Any, str], Any] = staticmethod(messages.dumps)
    _dump_error: Callable[[BaseException, str], Any] = staticmethod(pack_failure)

    def __init__(
        self,
        ids: Sequence[int],
        end: Any,
        claimed: dict[int, tuple[int, Executor]],
        open_block: Callable[[Any], Block] = lambda block: block,
    ) -> None:
        self.ids, self._connection, self._claimed, self._open_block = ids, end, claimed, open_block
        self._executors: dict[int, Executor] = {}
        self._loop: StepLoop | None = None
        self.heartbeat: Heartbeat | None = None
        self._patience = 0.0

    def handle_message(self, kind: int, body: Any) -> bool:
        """Carry out the requests of one message; return False for CLOSE."""
        if kind <= messages.TOKENS_EARLY:
            self._carry_out(body, PUBLISH_AFTER if kind == messages.TOKENS_EARLY else 0)
        elif kind == messages.REQUESTS:
            self._answer(self._load(body))
        elif kind == messages.ATTACH:
            self._attach(self._open_block(body))
        elif body:
            (self._patience,) = messages.PATIENCE.unpack(body)
        return kind != messages.CLOSE

    def make_envs(self, env_fns: Sequence[Any]) -> bool:
        """Make the envs and send their spaces to the parent; False if an env_fn raised.

        Equal spaces are sent once: later only their digest, because a space may be large.
        """
        sent = set[bytes]()
        self._connection.add(self.ids[0], messages.MADE, b"")
        for i, env_fn in zip(self.ids, env_fns, strict=True):
            # Sent one by one, so that the parent knows for which env_fn it is waiting.
            self._connection.send()
            try:
                again = isinstance(env_fn, Recreated)
                make = env_fn.env_fn if again else env_fn
                make = pickle.loads(make) if isinstance(make, bytes) else make  # noqa: S301
                self._executors[i] = executor = Executor(Recreated(make) if again else make)
                claim_instance(executor, i, self._claimed)
                data = self._dump(executor.spaces, "the spaces")
                if isinstance(data, bytes) and (digest := messages.digest(data)) in sent:
                    data = digest
                elif isinstance(data, bytes):
                    sent.add(digest)
                self._connection.add(i, messages.MADE, data)
            except BaseException as error:  # noqa: BLE001 - sys.exit in an env_fn included
                self._fail(i, "env_fn", error)
                self._connection.send()
                return False
        self._connection.send()
        return True

    def _attach(self, block: Block, *functions: Callable[[], object]) -> None:
        first, send = self.ids[0], self._send_beside
        row = block.heartbeats[first : first + 1]
        self.heartbeat = beat = Heartbeat(row, *functions, limited=block.spec.timed)
        self._loop = StepLoop(block, self._executors, send, self._fail, beat)

    def _carry_out(self, data: bytes, publish_after: float) -> None:
        """Carry out steps and plain resets; publish finished rows at intervals."""
        loop = self._loop
        assert loop is not None  # noqa: S101 - the parent attaches a block first
        tokens = memoryview(data).cast("q").tolist()
        todo = iter(tokens)
        while data:
            due = time.perf_counter() + publish_after if publish_after else 0.0
            loop.carry_out(tokens, todo, due)
            done = len(data) - length_hint(todo) * TOKEN_BYTES
            self._connection.publish(data[:done])  # the answer to a request is its token
            data = data[done:]

    def _answer(self, pairs: Sequence[tuple[int, bytes]]) -> None:
        """Carry out requests with arguments; publish finished ones at intervals."""
        loop, done, due = self._loop, b"", time.perf_counter() + PUBLISH_AFTER
        for token, data in pairs:
            kind = "request"
            try:
                request = self._load(data)  # a copy for each env
                kind = request.kind
                if loop is not None:
                    loop.answer(token, request)
                else:
                    reply = self._executors[token & ID_MASK](request)
                    self._send_beside(token, {"reply": reply})
            except BaseException as error:  # noqa: BLE001 - unpickling runs the user's code
                (self._fail if loop is None else loop.note_error)(token, kind, error)
            done += pack_token(token)
            if time.perf_counter() > due:
                self._connection.publish(done)
                done, due = b"", time.perf_counter() + PUBLISH_AFTER
        if done:
            self._connection.publish(done)

    def _send_beside(self, token: int, beside: Beside) -> None:
        what = "the result" if "reply" in beside else "the info or observation"
        self._connection.add(token, messages.VALUES, self._dump(beside, what))

    def _fail(self, token: int, kind: str, error: BaseException) -> None:
        self._connection.add(token, messages.FAILURE, self._dump_error(error, kind))

    def close(self) -> None:
        """Close the envs; if one hangs, other threads close the rest, each in its own."""
        left = iter([*self._executors.items()])

        def close_all() -> None:
            for i, executor in left:
                failure = b""
                try:
                    executor.close()
                except BaseException as error:  # noqa: BLE001 - others must be closed as well
                    failure = self._dump_error(error, "close")
                # Sent one by one, so that the parent knows whose close has ended the process.
                self._connection.add(i, messages.CLOSED, failure)
                self._connection.send()

        def help_out() -> None:
            for _ in self._executors:
                threading.Thread(target=close_all, daemon=True, name="envpool_py close").start()

        timer = threading.Timer(self._patience, help_out)
        timer.daemon = True
        if len(self._executors) > 1 and self._patience:
            timer.start()
        close_all()
        timer.cancel()


def run_envs(loop: EnvLoop, receive: Callable[[], Any], *, made: bool) -> None:
    """Carry out the parent's requests, one by one, if the envs were made; close the envs."""
    if made:
        handled = 0
        while loop.handle_message(*receive()):
            handled += 1
            if loop.heartbeat is not None and loop.heartbeat.is_read:
                loop.heartbeat.count(handled)
    loop.close()


def _die_with_parent(alive: int) -> None:
    """Kill this process and its child processes as soon as the parent has ended.

    On Linux the kernel does this, even while an env holds the GIL or the process is stopped: a
    descriptor can send a signal when its state changes, and the state of this pipe changes only
    when the parent's end closes. On other systems a thread waits for that.
    """
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415 - not on Windows

        with contextlib.suppress(OSError):
            # Owner and signal belong to the open file, which forked processes share: reopen it.
            pipe = os.open(f"/proc/self/fd/{alive}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())
            fcntl.fcntl(pipe, 10, signal.SIGKILL)  # F_SETSIG, without a name before Python 3.13
            fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
            if file_descriptors.is_readable(pipe, 0):  # the parent has ended already
                os.killpg(0, signal.SIGKILL)
            return

    def watch() -> None:
        file_descriptors.is_readable(alive, None)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="envpool_py parent").start()
