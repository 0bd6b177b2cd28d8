"""The parent's end of one worker process: start it, write to it, read from it, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, TypeAlias

from envpool_py.errors import name_exit
from envpool_py.worker import child
from envpool_py.worker.tokens import ID_MASK

_READ = 1 << 18
_TAKEN_BY_A_START = 6  # descriptors, for a moment
_LONGEST = 1e6  # seconds; the system takes no more in one wait

#: The status of a frame that stands for what can't be read; nothing follows it.
GARBLED = -1

#: (token, status, pickle)
Frame: TypeAlias = "tuple[int, int, bytes]"

#: Descriptors that only this process may hold: a fork, of ours or of anybody, closes its copies. A
#: copy of the parent's end of ``parent_alive`` would keep the workers alive after the parent.
_OURS: set[int] = set()


def claim(fd: int) -> int:
    """Have ``fd`` closed in every process forked from now on."""
    _OURS.add(fd)
    return fd


def release(fd: int) -> None:
    """Close a descriptor that was claimed."""
    _OURS.discard(fd)
    os.close(fd)


def _close_in_fork() -> None:
    for fd in _OURS:
        try:
            os.close(fd)
        except OSError:
            continue
    _OURS.clear()


os.register_at_fork(after_in_child=_close_in_fork)


class Poller:
    """Which descriptors are ready; a poll costs nothing for those that are not."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._poll = select.poll() if self._epoll is None else None

    def watch(self, fd: int, *, write: bool = False, known: bool = False) -> None:
        """Watch ``fd`` for reading, and for writing if asked."""
        poller: Any = self._epoll or self._poll
        mask = select.POLLIN | (select.POLLOUT if write else 0)
        (poller.modify if known else poller.register)(fd, mask)

    def forget(self, fd: int) -> None:
        """Watch ``fd`` no longer."""
        poller: Any = self._epoll or self._poll
        with contextlib.suppress(FileNotFoundError, KeyError):  # forgotten already
            poller.unregister(fd)

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        """(descriptor, events) of those that are ready; waits up to ``timeout`` seconds."""
        if self._epoll is not None:
            return self._epoll.poll(None if timeout is None else min(timeout, _LONGEST))
        assert self._poll is not None  # noqa: S101 - for the type checker
        return self._poll.poll(None if timeout is None else min(timeout, _LONGEST) * 1000)

    def close(self) -> None:
        """Free the descriptor."""
        if self._epoll is not None:
            self._epoll.close()


class _Received(NamedTuple):
    """What has come from a process, replaced as a whole.

    ``rest`` and ``chunks`` have ``needed`` bytes at the least before there is another frame.
    """

    rest: bytes
    frames: deque[Frame]
    chunks: list[bytes]
    needed: int


def _parsed(data: bytes, before: deque[Frame], ids: frozenset[int]) -> _Received:
    frames = deque(before)
    header = child.ITEM
    start, needed = 0, header.size
    while len(data) - start >= header.size:
        token, status, length = header.unpack_from(data, start)
        known = token & ID_MASK in ids and 0 <= status <= child.LAST_STATUS
        if not known or not 0 <= length <= child.LARGEST:
            frames.append((min(ids), GARBLED, b""))
            return _Received(b"", frames, [], sys.maxsize)
        end = start + header.size + length
        if len(data) < end:
            needed = header.size + length
            break
        frames.append((token, status, data[start + header.size : end]))
        start = end
    return _Received(data[start:], frames, [], needed)


def _assure_descriptors() -> None:
    """Raise now if a process can't be started: multiprocessing leaks pipes where it gets no more.

    Raises:
        OSError: too few descriptors are left.
    """
    spare: list[int] = []
    try:
        while len(spare) < _TAKEN_BY_A_START:
            spare.extend(os.pipe())
    finally:
        for fd in spare:
            os.close(fd)


class Lane:
    """One worker process, with the envs ``ids``.

    Safe to interrupt: a signal handler that raises leaves the lane usable, or ``torn`` set: a
    message was cut in two then, and the process must be killed.
    """

    def __init__(
        self,
        context: BaseContext,
        ids: Sequence[int],
        env_fns: Sequence[Any],
        ways: child.Ways,
        habits: child.Habits,
        watch: child.Watch | None = None,
    ) -> None:
        self.ids = ids
        self._own_ids = frozenset(ids)
        self.torn = False
        self.exit: str | None = None
        self.started = False
        #: Whether its end of the stream is closed, which is no proof of its death.
        self.mute = False
        #: Frames written, or waiting to be.
        self.sent = 0
        #: Why this process was killed, where the pool did it.
        self.verdict: str | None = None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.fd = claim(ours.detach())
        try:
            _assure_descriptors()
            self.process = context.Process(  # type: ignore[attr-defined]
                target=child.main,
                args=(ids, env_fns, child.Descriptor(theirs.fileno()), ways, habits, watch),
                name=f"envpool_py {ids[0]}-{ids[-1]}",
                daemon=False,
            )
            self.process.start()
        except BaseException:
            release(self.fd)
            raise
        finally:
            theirs.close()
        self.pid: int = self.process.pid
        # Should everything else fail, a process must not keep the interpreter from ending.
        self._finalizer = Finalize(None, self.kill, exitpriority=5)
        # EOF and the sentinel are no proof of death: what an env has forked holds both open.
        self._own_death = hasattr(os, "pidfd_open")
        try:
            self.death = claim(os.pidfd_open(self.pid)) if self._own_death else -1
        except ProcessLookupError:  # it has ended, and the fork server has buried it
            self._own_death = False
        except OSError:  # no descriptor is left
            self.exit = ""
            self._finalizer.cancel()
            self.process.kill()
            self.process.join()
            release(self.fd)
            raise
        if not self._own_death:
            self.death = self.process.sentinel
        self._outbox: deque[memoryview] = deque()
        self._received = _Received(b"", deque(), [], 0)

    def write(self, data: bytes) -> bool:
        """Send ``data``, as far as that does not block; False if a rest is left to ``flush``."""
        self.sent += 1
        if self.mute:
            return True
        if self._outbox:
            self._outbox.append(memoryview(data))
            return False
        large = len(data) > select.PIPE_BUF
        self.torn |= large
        sent = self._send(data)
        if sent < len(data):
            self._outbox.append(memoryview(data)[sent:])
        if large:
            self.torn = False
        return sent == len(data)

    def flush(self) -> bool:
        """Send what is left over; True when nothing is."""
        while self._outbox:
            head = self._outbox[0]
            self.torn = True
            sent = self._send(head)
            if sent == len(head):
                self._outbox.popleft()
            else:
                self._outbox[0] = head[sent:]
            self.torn = False
            if sent < len(head):
                return False
        return True

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)  # the process has ended; its death is noticed elsewhere

    def read(self) -> bool:
        """Take in what has arrived, whole frames into ``frames``; False if nothing has.

        Each change is one store or one call, so that no signal handler can come in between.
        """
        received = self._received
        chunks = received.chunks
        known = len(chunks)
        try:
            chunks.extend(map(os.read, (self.fd,), (_READ,)))
            if not chunks[-1]:
                self._note_mute()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._note_mute()
        if not any(chunks):
            return False
        available = len(received.rest) + sum(map(len, chunks))
        if available >= received.needed:
            data = received.rest + b"".join(chunks)
            self._received = _parsed(data, received.frames, self._own_ids)
        return any(chunks[known:])

    def _note_mute(self) -> None:
        self.mute = True
        self._outbox.clear()  # nobody will read it

    @property
    def frames(self) -> deque[Frame]:
        """The frames that have arrived and nobody has taken."""
        return self._received.frames

    @property
    def unread(self) -> bool:
        """Whether an interrupt has left something read and not yet made into frames."""
        return bool(self._received.chunks)

    @property
    def full(self) -> bool:
        """Whether something is left to ``flush``."""
        return bool(self._outbox)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Signal the process and everything that it has started."""
        if self.exit is not None:
            return
        for kill in (os.killpg, os.kill):  # the group may not exist yet
            try:
                kill(self.pid, signum)
            except (ProcessLookupError, PermissionError):
                continue

    def ends(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it has not ended after ``seconds``."""
        poll = select.poll()
        poll.register(self.death, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def bury(self) -> None:
        """Take note of the end of the process, end what it left running, free the descriptors."""
        if self.exit is None:
            self.kill()  # its children; the pid is not free for others until the process is joined
            self.process.join(5)
            self.exit = name_exit(self.process.exitcode)
            self._finalizer.cancel()
        for name in ("fd", "death"):  # each once, also where an interrupt came between
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0 and (name == "fd" or self._own_death):
                release(fd)
        with contextlib.suppress(ValueError):  # it lives on, against all
            self.process.close()
