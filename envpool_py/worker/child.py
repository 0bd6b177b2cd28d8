"""The loop inside a worker process: requests in, envs stepped in turn, ids out.

What travels, all in the machine's own byte order:

* parent to process, on the process's own stream: frames ``kind int32, length int64``, then either
  ``length`` tokens (int32) or ``length`` bytes of a pickle;
* process to parent, on a pipe that all processes of the pool share: tokens (int32) of rows that lie
  whole in the block, written at most ``IDS_PER_WRITE`` at a time, which is atomic; and ``WAKE``;
* process to parent, on the process's own stream: whatever is more than an id, as frames
  ``token int32, status int32, length int64`` and ``length`` bytes of a pickle. The parent may read
  the pipe before the stream whatever was written first, so what belongs together travels on one of
  them: an id that follows a complaint about its row goes by the stream as well.

Tokens are those of ``envpool_py.worker.tokens``. What has rows in the block may do without both:
see ``envpool_py.worker.bells``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import reduction
from operator import length_hint
from typing import Any, NamedTuple, cast

import cloudpickle

from envpool_py import shm
from envpool_py.errors import pack_failure
from envpool_py.rows import Block, FinalInfo, Shape, Side
from envpool_py.worker import limits
from envpool_py.worker.base import Request
from envpool_py.worker.bells import DOZE, LOOKS, MANY_LOOKS, Bell
from envpool_py.worker.execute import Executor
from envpool_py.worker.meter import EnvMeter
from envpool_py.worker.runner import Runner, taken_last
from envpool_py.worker.tokens import ID_MASK, WAKE_UP
from envpool_py.worker.watch import Begin, attach

FRAME = struct.Struct("=iq")
STEP, STEP_PROMPT, RESET, REQUESTS, ATTACH, CLOSE, RING = range(7)
_TOKEN_FRAMES = frozenset({STEP, STEP_PROMPT, RESET})

ITEM = struct.Struct("=iiq")
STEP_ROW, RESET_ROW, SIDE, REPLY, FAILURE, HELLO, CLOSE_FAILURE, COMPLAINT, STORED = range(9)
#: The last of them.
LAST_STATUS = STORED

IDS_PER_WRITE = select.PIPE_BUF // 4
#: Bytes; a frame that says more is none.
LARGEST = 1 << 40

#: Seconds after the first unpublished row at which rows are published: often enough that nobody
#: waits for a neighbour's slow env, seldom enough that cheap envs don't pay a system call each.
PUBLISH_AFTER = 120e-6
#: The same where the parent looks for rows, and need not be woken: that takes a core's time.
PUBLISH_SOON_AFTER = 40e-6

#: Seconds for which a process that has nothing to do looks for its next request before it sleeps.
#: To sleep and be woken costs tens of microseconds and a cold cache, as much as ten cheap steps. It
#: is done only where every process can have a core, and gives the core up at every look.
LOOK_FOR = 300e-6

_READ = 1 << 16
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


class Ways(NamedTuple):
    """What all processes of a pool share.

    ``results``: the pipe for ids. ``memory``: the block's; None where rows are pickled.
    ``parent_alive``: reading end of a pipe whose only other end is the parent's. ``meter``: where
    to count steps; None where nobody asked. ``bells``: where they are, and the number of this
    process there; None where there are none.
    """

    results: Descriptor
    memory: Descriptor | None
    parent_alive: Descriptor
    meter: Descriptor | None
    bells: tuple[Descriptor, int] | None


class Watch(NamedTuple):
    """Where a process says what it is doing, so that the parent can tell when it is stuck.

    ``memory``: the watch of all processes, see ``envpool_py.worker.watch``; ``number``: the place
    of this one in it. ``stacks``: a file for the Python stacks that it is asked for.
    """

    memory: Descriptor
    stacks: Descriptor
    number: int


class Habits(NamedTuple):
    """How a process goes about its work.

    ``look_for``: seconds to look for the next request before sleeping. ``num_threads``: to compute
    with, None for no limit. ``core``: to stay on, None for any. ``publish_after``: seconds from the
    first unpublished row to publishing, where rows are wanted as they end.
    """

    look_for: float
    num_threads: int | None
    core: int | None
    publish_after: float


def main(
    ids: Sequence[int],
    env_fns: Sequence[Any],
    stream: Descriptor,
    ways: Ways,
    habits: Habits,
    watch: Watch | None = None,
) -> None:
    """Run a worker process.

    Args:
        ids: the envs that live here.
        env_fns: one callable for each, or its cloudpickle.
        stream: both ways between the parent and this process.
        ways: the ways that all processes share.
        habits: how to go about it.
        watch: where to say what it is doing; None where nobody looks.
    """
    # A group of its own: Ctrl-C in the terminal reaches the parent alone, and a kill of the group
    # reaches what the envs have started.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _die_with_parent(ways.parent_alive.fd)
    if habits.num_threads is not None:
        limits.limit_threads(habits.num_threads)
    if habits.core is not None:
        limits.pin(habits.core)
    begin: Begin | None = None
    if watch is not None:
        begin = attach(watch.memory.fd, watch.number, watch.stacks.fd)
    _Process(ids, stream.fd, ways, habits, begin).run(env_fns)


class _Process:
    """The envs of this process, and its ways to the parent."""

    def __init__(
        self,
        ids: Sequence[int],
        stream: int,
        ways: Ways,
        habits: Habits,
        begin: Begin | None,
    ) -> None:
        self._ids = ids
        self._stream = socket.socket(fileno=stream)
        self._results = ways.results.fd
        self._memory = ways.memory
        self._meter = None if ways.meter is None else shm.attach(ways.meter.fd)
        self._bell: Bell | None = None
        if ways.bells is not None:
            memory, number = ways.bells
            self._bell = Bell(shm.attach(memory.fd), number)
        self._habits = habits
        self._begin = begin
        self._executors: dict[int, Executor] = {}
        self._runner: Runner | None = None
        self._requests: dict[int, Callable[[Request], Any]] = {}
        self._store: Callable[..., Any] | None = None  # None: rows are pickled
        self._done: list[int] = []
        self._items: list[bytes] = []
        self._complained = False
        self._last_body = b""
        self._last_tokens: list[int] = []

    def run(self, env_fns: Sequence[Any]) -> None:
        if self._build(env_fns):
            frames = _frames(self._stream, self._habits.look_for, self._bell)
            if self._begin is not None:
                frames = self._begin.counted(frames)
            for kind, body in frames:
                if kind == RING:
                    self._step_again()
                elif kind in _TOKEN_FRAMES:
                    if kind == RESET:
                        self._reset(memoryview(body).cast("i"))
                    else:
                        self._step(body, prompt=kind == STEP_PROMPT)
                elif kind == REQUESTS:
                    for token, request in pickle.loads(body):  # noqa: S301 - from our own parent
                        self._answer(token, request)
                        self._publish()
                elif kind == ATTACH:
                    self._attach(pickle.loads(body))  # noqa: S301 - from our own parent
                elif kind == CLOSE:
                    break
        self._close()

    def _attach(self, shape: Shape) -> None:
        """Keep rows in the block from now on."""
        assert self._memory is not None  # noqa: S101 - for the type checker
        block = Block(shape, shm.attach(self._memory.fd))
        writer = block.writer(pack_infos=True)
        self._store = writer.store
        self._runner = Runner(self._executors, block, writer, self._add_side, self._begin)

    def _build(self, env_fns: Sequence[Any]) -> bool:
        """Make the envs and tell the parent their facts; False where one can't be made."""
        seen: dict[int, int] = {}
        i = self._ids[0]
        try:
            for i, env_fn in zip(self._ids, env_fns, strict=True):
                make = pickle.loads(env_fn) if isinstance(env_fn, bytes) else env_fn  # noqa: S301
                executor = Executor(make)
                executor.complain = functools.partial(self._complain, i)
                self._executors[i] = executor
                if self._meter is not None:
                    executor.measure(EnvMeter(self._meter, i))
                self._requests[i] = self._watched(executor, i)
                first = seen.setdefault(id(getattr(executor.env, "unwrapped", executor.env)), i)
                if first != i:
                    raise ValueError(  # noqa: TRY301 - one way out for every failure
                        f"it returned the instance that env {first} has;"
                        " every env_fn must make its own"
                    )
            facts = [executor.facts() for executor in self._executors.values()]
            self._add(self._ids[0], HELLO, _dumps(facts))
        except BaseException as error:  # noqa: BLE001 - sys.exit in an env_fn included
            self._fail(i, "env_fn", error)
            self._publish()
            return False
        self._publish()
        return True

    def _complain(self, i: int, text: str) -> None:
        self._complained = True
        self._add(i, COMPLAINT, text.encode(errors="replace"))

    def _watched(self, carry_out: Callable[[Any], Any], i: int) -> Callable[[Any], Any]:
        return carry_out if self._begin is None else self._begin.watched(carry_out, i)

    def _step_again(self) -> None:
        """Carry out what the last step frame asked for, and answer by the bell."""
        bell = self._bell
        assert bell is not None  # noqa: S101 - for the type checker
        self._run(self._last_tokens, prompt=False)
        whole = self._done == self._last_tokens and not self._items
        if whole:
            self._done.clear()
        else:
            self._publish()
        if bell.answer(whole=whole):
            os.write(self._results, WAKE_UP)

    def _step(self, body: bytes, *, prompt: bool) -> None:
        if body != self._last_body:  # most often it asks for just what the last one did
            self._last_body = body
            self._last_tokens = memoryview(body).cast("i").tolist()
        self._run(self._last_tokens, prompt=prompt)
        done = self._done
        if done == self._last_tokens and not self._items and len(body) <= select.PIPE_BUF:
            done.clear()
            os.write(self._results, body)  # the very same bytes
        else:
            self._publish()

    def _run(self, tokens: list[int], *, prompt: bool) -> None:
        """Step the envs of these tokens."""
        runner = self._runner
        assert runner is not None  # noqa: S101 - for the type checker
        done = self._done
        left = iter(tokens)
        due = None
        while length_hint(left):
            if prompt:
                due = time.perf_counter() + self._habits.publish_after
            raised = None
            try:
                runner.run(left, done, due)
            except BaseException as error:  # noqa: BLE001 - every fault of an env goes home
                raised = error
            if self._begin is not None:  # what follows may wait for the parent
                self._begin.end()
            if raised is not None:
                self._fail_row(taken_last(tokens, left), "step", raised)
                raised = None  # it holds this very frame
            if prompt and length_hint(left):
                self._publish()

    def _reset(self, tokens: Sequence[int]) -> None:
        request = Request("reset")
        for token in tokens:
            self._answer(token, request)
            self._publish()

    def _answer(self, token: int, request: Request) -> None:
        """Carry out any request."""
        i = token & ID_MASK
        kind = request.kind
        if self._runner is not None:
            self._runner.forget(i)
        try:
            carry_out: Callable[[Request], Any] = self._requests[i]
            if kind == "rebuild" and self._begin is not None:
                carry_out = self._begin.untimed(self._executors[i])  # longer than a step, rightly
            if kind == "replay":  # many requests, each of them timed
                carry_out = functools.partial(_replay, self._executors[i], carry_out)
            reply = carry_out(request)
            if kind == "reset":
                obs, info = reply
                reply = (obs, 0.0, False, False, info)
            if kind in ("step", "reset"):
                self._keep_row(token, kind, reply)
            else:
                self._add(token, REPLY, _dumps_named(reply, "result"))
        except BaseException as error:  # noqa: BLE001 - every fault of an env goes home
            self._fail_row(token, kind, error)

    def _keep_row(self, token: int, kind: str, row: Any) -> None:
        i = token & ID_MASK
        if self._store is None:
            if type(row[4]) is FinalInfo:  # said here, the ended row can still come first
                self._executors[i].check_fits(row[0])
            self._add(token, STEP_ROW if kind == "step" else RESET_ROW, _dumps_named(row))
        else:
            side = self._store(i, row)
            if side is None:
                self._done.append(token)
            else:
                self._add_side(token, side)
        self._executors[i].note_kept()

    def _fail_row(self, token: int, kind: str, error: BaseException) -> None:
        """Tell of an error; where it is only of the reset behind an ended row, hand that on."""
        executor = self._executors[token & ID_MASK]
        ended = executor.ended_row(error) if kind == "step" else None
        if ended is not None:
            try:
                self._keep_row(token, kind, ended)
            except Exception as second:  # noqa: BLE001 - the end of the episode can't be kept either
                error = second
            else:
                return
        self._fail(token, executor.failing(kind), error)

    def _fail(self, token: int, kind: str, error: BaseException) -> None:
        self._add(token, FAILURE, pickle.dumps((kind, *pack_failure(error))))

    def _add_side(self, token: int, side: Side) -> None:
        self._add(token, SIDE, _dumps_named(side))

    def _add(self, token: int, status: int, data: bytes) -> None:
        self._items.append(ITEM.pack(token, status, len(data)))
        self._items.append(data)

    def _publish(self) -> None:
        """Tell the parent of everything that is done."""
        if self._complained:
            for token in self._done:
                self._add(token, STORED, b"")
            self._done.clear()
            self._complained = False
        if self._items:
            data = b"".join(self._items)
            self._items.clear()
            self._stream.sendall(data)
        done = self._done
        if done:
            for start in range(0, len(done), IDS_PER_WRITE):
                part = done[start : start + IDS_PER_WRITE]
                os.write(self._results, array("i", part).tobytes())
            done.clear()

    def _close(self) -> None:
        for i, executor in self._executors.items():
            try:
                executor.close()
            except BaseException as error:  # noqa: BLE001 - the other envs must be closed as well
                self._add(i, CLOSE_FAILURE, pickle.dumps(("close", *pack_failure(error))))
        with contextlib.suppress(ConnectionError):  # the parent has gone: nobody is to be told
            self._publish()
        # Left open: its end is not to be told before that of the process.
        self._stream.detach()


def _frames(
    stream: socket.socket, look_for: float, bell: Bell | None = None
) -> Iterator[tuple[int, Any]]:
    """The frames of the stream, until its other end is closed; one of kind ``RING`` for a ring."""
    space = memoryview(bytearray(_READ))
    buffer = last = b""
    rung = False
    frame: tuple[int, Any] = (CLOSE, b"")
    while True:
        while len(buffer) < FRAME.size:
            if rung and bell is not None and bell.rings(MANY_LOOKS):
                yield RING, b""
                continue
            # Who was called by a frame last will most often be called by one again.
            looks = LOOKS if rung else 1
            count = _receive(stream, space, look_for, None if buffer else bell, looks)
            rung = count < 0
            if rung:
                yield RING, b""
                continue
            if not count:
                return
            buffer += space[:count]
        if bell is not None and bell.rings():  # which was before this frame, or wakes by it
            yield RING, b""
        if buffer == last:
            buffer = b""
            yield frame
            continue
        kind, length = FRAME.unpack_from(buffer)
        if not (STEP <= kind <= RING and 0 <= length <= LARGEST):
            raise ValueError(f"no frame has kind {kind} and length {length}")
        size = FRAME.size + (4 * length if kind in _TOKEN_FRAMES else length)
        if len(buffer) < size:
            whole = memoryview(bytearray(size))
            filled = len(buffer)
            whole[:filled] = buffer
            while filled < size:
                count = _receive(stream, whole[filled:], 0)
                if not count:
                    return
                filled += count
            buffer = bytes(whole)
        if kind == RING:  # all that it tells has been heard by now
            buffer = buffer[size:]
            continue
        frame = kind, buffer[FRAME.size : size]
        last = buffer if len(buffer) == size <= select.PIPE_BUF else b""
        buffer = buffer[size:]
        yield frame


def _receive(
    stream: socket.socket,
    space: memoryview,
    look_for: float,
    bell: Bell | None = None,
    looks: int = 1,
) -> int:
    """Read into ``space``; return how many bytes, 0 when the other end is closed, -1 at a ring."""
    try:
        if look_for:
            clock = time.perf_counter
            end = clock() + look_for
            while clock() < end:
                if bell is not None and bell.rings(looks):
                    return -1
                try:
                    return stream.recv_into(space, 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
        if bell is None:
            return stream.recv_into(space)
        bell.sleep(True)
        try:
            if bell.rings() or (not _readable(stream, DOZE) and bell.rings()):
                return -1
            return stream.recv_into(space)
        finally:
            bell.sleep(False)
    except ConnectionError:
        return 0


def _readable(stream: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _replay(executor: Executor, carry_out: Callable[[Request], Any], request: Request) -> Any:
    past, layouts = request.args
    return executor.replay(past, layouts, carry_out)


def _dumps(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # noqa: BLE001 - pickling runs the user's code; cloudpickle may still know a way
        return cast("bytes", cloudpickle.dumps(value, protocol=5))


def _dumps_named(value: Any, what: str = "info or observation") -> bytes:
    try:
        return _dumps(value)
    except Exception as error:
        raise TypeError(f"the {what} cannot be pickled: {error}") from error


def _die_with_parent(alive: int) -> None:
    """Have this process and what it started killed as soon as the parent has gone.

    On Linux the kernel does it, also while an env holds the GIL in C code or the process is
    stopped: a descriptor can be asked to send a signal of one's choice when its state changes, and
    that of this pipe changes once, when the parent's end of it closes.
    """
    if sys.platform == "linux":
        try:
            # Owner and signal belong to the open file, which forked siblings share: open it anew.
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
