"""``ProcessHost``: some envs in one worker process; start it, talk to it, end it.

What holds, whatever the envs do:

* a process that ends is noticed by the process itself ending, not by its stream: what an env has
  forked may hold that open;
* a process is a group of processes: killing it ends what its envs have started, and Ctrl-C in a
  terminal reaches the parent alone;
* after SIGKILL of the parent the kernel kills every process and what it started (on Linux);
* the parent never blocks in a write: what the process does not take at once waits, and reading goes
  on meanwhile, so that two full pipes cannot wait for each other;
* a signal handler that raises leaves the stream whole, or ``cut`` set.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

from envpool_py import errors
from envpool_py.errors import EnvError, WorkerDiedError
from envpool_py.worker import channel, child
from envpool_py.worker.base import Request
from envpool_py.worker.channel import ID_MASK, ITEM
from envpool_py.worker.executor import EnvSpaces

#: Seconds that a process may live on once its stream is closed: one that ends has closed it too.
DISCONNECTED_FOR = 1.0
#: Seconds after which a pool says for which ``env_fn`` it is waiting, and after which a process
#: that is restarted is killed.
SLOW_START = 60.0

# The bits of a token by which items are kept: an env has one of a row, and one of a reply.
_PLACE = ID_MASK | channel.ASK
_UNREADABLE = "was killed: it sent what cannot be read"
_READ = 1 << 18
# Windows has none; it has no worker processes either.
_KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
# Bytes that the system writes whole or not at all.
_ATOMIC = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512


class Stream:
    """The parent's end of the socket to the process of these envs: what is left to send, items in.

    Attributes:
        theirs: the other end, until the process has it.
        cut: whether a message was cut in two; the process must be killed.
        garbled: whether what came is no item; nothing follows it.
        ended: whether the other end is closed, which is no proof that the process has ended.
        sent: messages written, or waiting to be.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.fd = channel.claim(ours.detach())
        self._ids = frozenset(ids)
        self.cut = self.garbled = self.ended = False
        self.sent = 0
        self.outbox: deque[memoryview] = deque()
        # Bytes that are no whole item yet, items (token, status, data) that nobody has taken, and
        # how many bytes the next item needs. Replaced as a whole: no interrupt can come in between.
        self._received: tuple[list[bytes], deque[tuple[int, int, bytes]], int]
        self._received = [], deque(), ITEM.size

    def flush(self) -> bool:
        """Send what is left over; True when nothing is."""
        while self.outbox:
            head = self.outbox[0]
            self.cut = True
            try:
                sent = os.write(self.fd, head)
            except BlockingIOError:
                sent = 0
            except ConnectionError:
                sent = len(head)
            self.outbox[0] = head[sent:]
            if sent == len(head):
                self.outbox.popleft()
            self.cut = False
            if sent < len(head):
                return False
        return True

    def read(self) -> deque[tuple[int, int, bytes]]:
        """The items that have arrived, and that nobody has taken off this queue."""
        chunks = self._received[0]
        if self.fd < 0:
            return self._received[1]
        try:
            # In one call: no signal handler can come between the read and the list.
            chunks.extend(map(os.read, (self.fd,), (_READ,)))
            while len(chunks[-1]) == _READ:
                chunks.extend(map(os.read, (self.fd,), (_READ,)))
            self.ended |= not chunks[-1]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.ended = True
        self._parse()
        return self._received[1]

    def _parse(self) -> None:
        chunks, before, needed = self._received
        if sum(map(len, chunks)) < needed:  # a large item in many pieces is joined once
            return
        data, items, start, needed = b"".join(chunks), before.copy(), 0, ITEM.size
        while len(data) - start >= ITEM.size:
            token, status, length = ITEM.unpack_from(data, start)
            known = token >= 0 and token & ID_MASK in self._ids
            known &= 0 <= status <= channel.CLOSE_FAILURE
            if not (known and 0 <= length <= channel.LARGEST):
                self.garbled, start = True, len(data)
                break
            needed = ITEM.size + length
            if len(data) - start < needed:
                break
            items.append((token, status, data[start + ITEM.size : start + needed]))
            start, needed = start + needed, ITEM.size
        self._received = [data[start:]], items, needed


@dataclass(eq=False, repr=False)
class ProcessHost:
    """Process ``number`` of a pool, with the envs ``ids``, which these ``env_fns`` make.

    Attributes:
        exit: how the process ended; None while it runs, empty before it was started.
        ended: whether it has ended and nobody has handled that.
        restarting: whether it was started again, and nobody has taken that up yet.
        deadline: when it is to be killed unless it goes on; infinity for never.
        kill_reason: why the pool killed it, where it did.
        start_error: what an env_fn raised.
        name: what an error calls the process.
        items: what the process sent beside rows, with the token of its request.
    """

    number: int
    ids: list[int]
    _env_fns: Sequence[Any]
    _context: BaseContext
    _shared: child.Shared
    _channel: channel.Channel

    def __post_init__(self) -> None:
        self.close_errors: list[EnvError] = []
        # Kept over a restart: rows that had arrived are still to be returned.
        self.items: dict[int, tuple[int, Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self.process: Any = None
        self.exit: str | None = ""
        self.ended = self.restarting = False
        self.deadline = math.inf
        self.spaces: dict[int, EnvSpaces] = {}
        self.start_error: EnvError | None = None
        self.kill_reason: str | None = None
        self.name = "worker process"
        self._death_fd = -1

    # -------------------------------------------------------------------------------- start, end

    def start(self, *, again: bool = False) -> None:
        """Start the process, which makes its envs meanwhile; OSError where that cannot be."""
        self._reset()
        stream = Stream(self.ids)
        try:
            _assure_descriptors()
            process = self._context.Process(  # type: ignore[attr-defined]
                target=child.main,
                args=(self.number, self.ids, self._env_fns, stream.theirs, self._shared),
                name=f"envpool_py {self.ids[0]}-{self.ids[-1]}",
                daemon=False,
            )
            # Noted down before it runs: an interrupt finds it.
            self.process, self.stream = process, stream
            process.start()
            try:
                fd = os.pidfd_open(process.pid)
            except (AttributeError, ProcessLookupError):  # not on Linux; its server has reaped it
                fd = os.dup(process.sentinel)
            self._death_fd = channel.claim(fd)
            self._channel.watch(stream.fd, self._on_stream)
            self._channel.watch(fd, self._on_death)
        except BaseException:
            if self.process is not None and self.process.pid is not None:
                self.process.kill()
                self.process.join()
            self._free(stream)
            raise
        finally:
            stream.theirs.close()
        # Should everything else fail, a process must not keep the interpreter from ending.
        self._finalizer = Finalize(None, self.kill, exitpriority=5)
        if again:
            self.restarting, self.deadline = True, time.monotonic() + SLOW_START
        self.exit = None

    def _free(self, stream: Stream) -> None:
        fds, stream.fd, self._death_fd = (stream.fd, self._death_fd), -1, -1
        for fd in fds:
            self._channel.forget(fd)
            channel.release(fd)

    @property
    def started(self) -> bool:
        """Whether all of its envs are made."""
        return len(self.spaces) == len(self.ids)

    def kill(self, signum: int = _KILL, reason: str | None = None) -> None:
        """Signal the process and everything that it has started."""
        self.kill_reason = self.kill_reason or reason
        if self.exit is None:
            for kill in (os.killpg, os.kill):  # the group may not exist yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.process.pid, signum)

    def end(self, reason: str | None = None) -> None:
        """Kill the process and wait for its end, 5 seconds at the most."""
        self.kill(reason=reason)
        if self._death_fd >= 0:
            self.ended |= channel.is_readable(self._death_fd, 5)

    def reap(self) -> None:
        """Take in what the process has left, end what it left running, free the descriptors."""
        if self.exit is not None:
            return
        while self.read():
            pass
        self.kill()  # its children; the pid is free for others only once the process is joined
        self._free(self.stream)
        self.process.join(5)
        exitcode = self.process.exitcode
        self._finalizer.cancel()
        self.deadline = math.inf
        # Last: should an interrupt come before, all of this is done once more.
        self.exit = self.kill_reason or errors.name_exit(exitcode)
        with contextlib.suppress(ValueError):  # it has not ended after SIGKILL
            self.process.close()

    def death_of(self, i: int) -> WorkerDiedError:
        """A new error that says how env ``i``'s process ended."""
        text = f"the {self.name} {self.exit or self.kill_reason}"
        if not self.started:
            text += " while starting"
            method = "fork" if self._context is None else self._context.get_start_method()
            if method != "fork":
                text += f'; under {method!r} the program needs `if __name__ == "__main__":`'
        others = [other for other in self.ids if other != i]
        shared = f"; it was also that of {errors.name_ids(others)}" if others else ""
        return WorkerDiedError(f"env {i}: {text}{shared}", (i, *others))

    # ------------------------------------------------------------------------------------ sending

    def pack(self, pairs: list[tuple[int, Request]]) -> bytes:
        """Requests with their tokens as a message; TypeError where one cannot be pickled.

        A request is unpickled once for each of its envs, so that no env sees what another does to
        its arguments; one that several envs share is pickled once.
        """
        bodies: dict[int, bytes] = {}
        for token, request in pairs:
            if id(request) not in bodies:
                what = f"env {token & ID_MASK}: the arguments of {request.kind}"
                bodies[id(request)] = channel.dumps(request, what)
        message = [(token, bodies[id(request)]) for token, request in pairs]
        return channel.frame(channel.REQUESTS, pickle.dumps(message))

    def write(self, data: bytes) -> None:
        """Send a message; what the process does not take at once is sent when it does."""
        if self.exit is not None:
            return
        stream, sent = self.stream, 0
        stream.sent += 1
        if len(data) <= _ATOMIC and not stream.outbox:
            try:
                sent = os.write(stream.fd, data)
            except BlockingIOError:
                pass
            except ConnectionError:  # the process has ended, which is noticed elsewhere
                return
            if sent == len(data):
                return
        stream.outbox.append(memoryview(data)[sent:])
        if len(stream.outbox) > 1 or not stream.flush():
            self._channel.watch(stream.fd, self._on_stream, write=True)

    @property
    def sent(self) -> int:
        """Messages written; -1 where nothing is to be expected of the process."""
        return -1 if self.exit is not None or not self.started else self.stream.sent

    @property
    def disconnected(self) -> bool:
        """Whether the process has closed its end of the stream, and may live on."""
        return self.exit is None and self.stream.ended

    # ---------------------------------------------------------------------------------- receiving

    def _on_death(self, fd: int, events: int) -> None:  # noqa: ARG002 - what a channel calls
        self.ended = True

    def _on_stream(self, fd: int, events: int) -> None:
        if events & select.POLLOUT and self.stream.flush():
            self._channel.watch(fd, self._on_stream)
        self.read()
        if self.stream.ended:  # that would be news indefinitely
            self._channel.forget(fd)
            self.deadline = min(self.deadline, time.monotonic() + DISCONNECTED_FOR)

    def read(self) -> bool:
        """Take in the items that have arrived; return whether there were any."""
        items = self.stream.read()
        found = bool(items)
        while items:
            token, status, data = items[0]
            i = token & ID_MASK
            if status == channel.HELLO:
                self._greet(i, data)
            elif status == channel.CLOSE_FAILURE:
                if (error := self._error_in(i, data)) is not None:
                    self.close_errors.append(error)
            elif status == channel.FAILURE and not self.started:
                self.start_error = self._error_in(i, data)
            else:
                self.items[token & _PLACE] = token & ~channel.RESET, (status, data)
            items.popleft()
        if self.stream.garbled:
            self.kill(reason=_UNREADABLE)
        return found

    def _greet(self, i: int, data: bytes) -> None:
        """Env ``i`` was made, or, without data, the first env_fn is called."""
        if data:
            spaces = self._loaded(data, i, "env_fn")
            if isinstance(spaces, EnvError):
                self.start_error = spaces
            else:
                self.spaces[i] = spaces
        if self.restarting:
            limit = self._shared.step_timeout or SLOW_START
            self.deadline = math.inf if self.started else time.monotonic() + limit

    def take_item(self, token: int, kind: str) -> Any:
        """What the process sent beside a row, or in place of one: a dict or an EnvError.

        ``token`` and ``kind`` are those of the request, which has been answered.
        """
        i, place = token & ID_MASK, token & _PLACE
        while self.items.get(place, (-1,))[0] != token:
            if not self.read():  # it was sent before its token
                self.kill(reason=_UNREADABLE)
                return self.death_of(i)
        status, data = self.items.pop(place)[1]
        if status == channel.FAILURE:
            return self._error_in(i, data) or self.death_of(i)
        return self._loaded(data, i, kind)

    def _loaded(self, data: bytes, i: int, kind: str) -> Any:
        """What env ``i`` sent, or an EnvError: unpickling runs the user's code."""
        try:
            return pickle.loads(data)  # noqa: S301 - from our own worker process
        except Exception as error:
            if errors.from_signal_handler(error):
                raise
            return errors.env_error(error, i, kind)

    def _error_in(self, i: int, data: bytes) -> EnvError | None:
        """The error that env ``i`` sent; None, and the end of its process, if it is none."""
        try:
            kind, failure = pickle.loads(data)  # noqa: S301 - from our own worker process
            return errors.unpack_failure(failure, i, kind)
        except Exception as error:
            if errors.from_signal_handler(error):
                raise
            self.kill(reason=_UNREADABLE)
            return None


def _assure_descriptors() -> None:
    """Raise OSError now if too few descriptors are left: a start would leak some of its own."""
    spare: list[int] = []
    try:
        for _ in range(3):
            spare.extend(os.pipe())
    finally:
        for fd in spare:
            os.close(fd)
