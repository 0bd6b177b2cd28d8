"""``ProcessHost``: some envs in one worker process; start it, talk to it, end it.

What holds, whatever the envs do:

* a process that ends is noticed by the process itself ending, not by its stream: what an env has
  forked may hold that open;
* a process is a group of processes: killing it ends what its envs have started, and Ctrl-C in a
  terminal reaches the parent alone;
* after SIGKILL of the parent the kernel kills every process and what it started (on Linux).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from envpool_py.block import Spec
from envpool_py.errors import (
    EnvError,
    WorkerDiedError,
    env_error,
    from_signal_handler,
    name_exit,
    name_ids,
    unpack_failure,
)
from envpool_py.worker import child
from envpool_py.worker.base import Request
from envpool_py.worker.channel import (
    ASK,
    ATTACH,
    CLOSE,
    CLOSE_FAILURE,
    FAILURE,
    HELLO,
    ID_MASK,
    REQUESTS,
    RESET,
    Channel,
    frame,
)
from envpool_py.worker.executor import EnvSpaces
from envpool_py.worker.pickling import pickled_requests
from envpool_py.worker.stream import GARBLED, Stream, claim, release

# The bits of a token by which items are kept: an env has one of a row, and one of a reply.
_PLACE = ID_MASK | ASK
_UNREADABLE = "was killed: it sent what cannot be read"
# Descriptors that a start takes for a moment.
_TAKEN_BY_A_START = 6


class Settings(NamedTuple):
    """What all processes of a pool are started with.

    ``env_fns``: one for each env of the pool, pickled where the start method needs it.
    ``num_threads``: to compute with; None is no limit. ``cores``: those to keep processes on, in
    turn; empty for none. ``look``: whether a process may look for its next request before it
    sleeps.
    """

    context: BaseContext
    env_fns: Sequence[Any]
    shared: child.Shared
    num_threads: int | None
    cores: Sequence[int]
    look: bool


class ProcessHost:
    """One worker process and its envs.

    Args:
        number: its place among the processes of the pool.
        ids: the envs that live there.
        settings: what it is started with.
        channel: brings the results of all processes, and notices what happens to this one.

    Attributes:
        process: the ``multiprocessing`` process.
        stream: to the process.
        exit: how it ended; None while it lives.
        started: whether all of its envs are made.
        spaces: of the envs that are made, by id.
        made: how many these are; -1 before the first is begun.
        start_error: what an env_fn raised.
        items: what the process sent beside rows, with the token of its request.
        ended: whether the process has ended and nobody has reaped it.
        kill_reason: why the pool killed it, where it did.
    """

    def __init__(self, number: int, ids: list[int], settings: Settings, channel: Channel) -> None:
        self.number = number
        self.ids = ids
        self._settings = settings
        self._channel = channel
        self.close_errors: list[EnvError] = []
        # Kept over a restart: rows that had arrived are still to be returned.
        self.items: dict[int, tuple[int, Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self.process: Any = None
        self.exit: str | None = ""
        self.started = self.ended = False
        self.spaces: dict[int, EnvSpaces] = {}
        self.made = -1
        self.start_error: EnvError | None = None
        self.kill_reason: str | None = None
        self._finalizer: Any = None
        self._death = -1

    # -------------------------------------------------------------------------------- start, end

    def start(self, spec: Spec | None = None) -> None:
        """Start the process; its envs are made there meanwhile.

        Args:
            spec: of the block, where there is one already.

        Raises:
            OSError: the process cannot be started.
        """
        self._reset()
        settings = self._settings
        stream = Stream(self.ids)
        cores = settings.cores
        try:
            _assure_descriptors()
            process = settings.context.Process(  # type: ignore[attr-defined]
                target=child.main,
                args=(
                    self.number,
                    self.ids,
                    [settings.env_fns[i] for i in self.ids],
                    child.Descriptor(stream.theirs.fileno()),
                    settings.shared,
                    child.Habits(
                        settings.look,
                        settings.num_threads,
                        cores[self.number % len(cores)] if cores else None,
                    ),
                ),
                name=f"envpool_py {self.ids[0]}-{self.ids[-1]}",
                daemon=False,
            )
            # Noted down before it runs: an interrupt finds it.
            self.process, self.stream = process, stream
            process.start()
        except BaseException:
            if self.process is not None and self.process.pid is not None:
                self.process.kill()
                self.process.join()
            self.process = None
            stream.close()
            raise
        finally:
            stream.theirs.close()
        self.exit = None
        # Should everything else fail, a process must not keep the interpreter from ending.
        self._finalizer = Finalize(None, self.kill, exitpriority=5)
        try:
            self._death = claim(os.pidfd_open(process.pid)) if hasattr(os, "pidfd_open") else -1
        except ProcessLookupError:  # it has ended, and the fork server has reaped it
            pass
        except OSError:  # no descriptor is left
            process.kill()
            process.join()
            self.exit = ""
            self._finalizer.cancel()
            stream.close()
            raise
        self._channel.watch(stream.fd, self._on_stream)
        self._channel.watch(self._death_fd, self._on_death)
        if spec is not None:
            self.attach(spec)

    @property
    def _death_fd(self) -> int:
        return self._death if self._death >= 0 else int(self.process.sentinel)

    def attach(self, spec: Spec) -> None:
        """Have the process keep rows in the block from now on."""
        self.write(frame(ATTACH, pickle.dumps(spec)))

    def kill(self, signum: int = signal.SIGKILL, reason: str | None = None) -> None:
        """Signal the process and everything that it has started."""
        if reason is not None:
            self.kill_reason = self.kill_reason or reason
        if self.exit is not None or self.process is None:
            return
        for kill in (os.killpg, os.kill):  # the group may not exist yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.process.pid, signum)

    def ends(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it has not ended after ``seconds``."""
        poll = select.poll()
        poll.register(self._death_fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def reap(self) -> None:
        """Take in what the process has left, end what it left running, free the descriptors."""
        if self.exit is not None or self.process is None:
            return
        while self.read():
            pass
        self._channel.forget(self.stream.fd)
        self._channel.forget(self._death_fd)
        self.kill()  # its children; the pid is free for others only once the process is joined
        self.process.join(5)
        exitcode = self.process.exitcode
        self._finalizer.cancel()
        self.stream.close()
        if self._death >= 0:
            release(self._death)
            self._death = -1
        # Last: should an interrupt come before, all of this is done once more.
        self.exit = self.kill_reason or name_exit(exitcode)
        with contextlib.suppress(ValueError):  # it lives on, against all
            self.process.close()

    def ask_to_close(self) -> None:
        """Have the process close its envs and end."""
        self.write(frame(CLOSE, b""))

    def death_of(self, i: int) -> WorkerDiedError:
        """A new error that says how env ``i``'s process ended."""
        text = f"the worker process {self.exit or self.kill_reason}"
        if not self.started:
            text += " while starting"
            method = self._settings.context.get_start_method()
            if method != "fork":
                text += f'; under {method!r} the program needs `if __name__ == "__main__":`'
        others = [other for other in self.ids if other != i]
        shared = f"; it was also that of {name_ids(others)}" if others else ""
        return WorkerDiedError(f"env {i}: {text}{shared}", (i, *others))

    # ------------------------------------------------------------------------------------ sending

    def pack(self, pairs: list[tuple[int, Request]]) -> bytes:
        """Requests with their tokens, as a message for ``write``.

        Raises:
            TypeError: the arguments of one cannot be pickled.
        """
        return frame(REQUESTS, pickled_requests(pairs))

    def write(self, message: bytes) -> None:
        """Send a message; what the process does not take at once is sent when it does."""
        if self.exit is None and not self.stream.write(message):
            self.write_later()

    def write_later(self) -> None:
        """Go on with a message when the process takes it."""
        self._channel.watch(self.stream.fd, self._on_stream, write=True)

    @property
    def sent(self) -> int:
        """Messages written; -1 where nothing is to be expected of the process."""
        return -1 if self.exit is not None or not self.started else self.stream.sent

    @property
    def disconnected(self) -> bool:
        """Whether the process has closed its end of the stream, and may live on."""
        return self.exit is None and self.stream.ended

    @property
    def torn(self) -> bool:
        """Whether a message to the process was cut in two."""
        return self.exit is None and self.stream.torn

    # ---------------------------------------------------------------------------------- receiving

    def _on_death(self, fd: int, events: int) -> None:  # noqa: ARG002 - what a channel calls
        self.ended = True

    def _on_stream(self, fd: int, events: int) -> None:
        if events & select.POLLOUT and self.stream.full and self.stream.flush():
            self._channel.watch(fd, self._on_stream)
        self.read()
        if self.stream.ended:  # that would be news indefinitely
            self._channel.forget(fd)

    def read(self) -> bool:
        """Take in the items that have arrived; return whether there were any."""
        items = self.stream.read()
        found = bool(items)
        while items:
            token, status, data = items[0]
            i = token & ID_MASK
            if status == GARBLED:
                self.kill(reason=_UNREADABLE)
            elif status == HELLO:
                self._greet(i, data)
            elif status == CLOSE_FAILURE:
                if (error := self._error_in(i, data)) is not None:
                    self.close_errors.append(error)
            elif status == FAILURE and not self.started:
                self.start_error = self._error_in(i, data)
            else:
                self.items[token & _PLACE] = token & ~RESET, (status, data)
            items.popleft()
        return found

    def _greet(self, i: int, data: bytes) -> None:
        """An env was made, or the first is begun."""
        self.made += 1
        if not data:
            return
        try:
            self.spaces[i] = pickle.loads(data)  # noqa: S301 - from our own worker process
        except Exception as error:  # unpickling a space runs the user's code
            if from_signal_handler(error):
                raise
            self.start_error = env_error(error, i, "env_fn")
        self.started = len(self.spaces) == len(self.ids)

    def take_item(self, token: int, kind: str) -> Any:
        """What the process sent beside a row, or in place of one: a dict or an EnvError.

        Args:
            token: of the request, which has been answered.
            kind: of the request, for messages.
        """
        i, place = token & ID_MASK, token & _PLACE
        while self.items.get(place, (-1,))[0] != token:
            # It was sent before its token, and may still be on the way.
            if not self.read() and (self.disconnected or self.exit is not None):
                return self.death_of(i)
            if self.exit is None and not self.stream.ended:
                poll = select.poll()
                poll.register(self.stream.fd, select.POLLIN)
                poll.poll(10)
        status, data = self.items.pop(place)[1]
        if status == FAILURE:
            return self._error_in(i, data) or self.death_of(i)
        try:
            return pickle.loads(data)  # noqa: S301 - from our own worker process
        except Exception as error:  # unpickling runs the user's code
            if from_signal_handler(error):
                raise
            return env_error(error, i, kind)

    def _error_in(self, i: int, data: bytes) -> EnvError | None:
        """The error that env ``i`` sent; None, and the end of its process, if it is none."""
        try:
            kind, failure = pickle.loads(data)  # noqa: S301 - from our own worker process
            return unpack_failure(failure, i, kind)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.kill(reason=_UNREADABLE)
            return None


def _assure_descriptors() -> None:
    """Raise now if a process cannot be started: multiprocessing leaks pipes where it gets no more.

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


@contextlib.contextmanager
def starting(*, warn: bool = True) -> Iterator[None]:
    """Defer Ctrl-C while processes start, and condense what Python warns of each fork.

    An interrupt within a fork is swallowed in callbacks, or reaches a child that has no group of
    its own yet. Python 3.12 warns of every fork in a program with threads.

    Args:
        warn: whether to warn of forks, once.
    """
    noted: list[Any] = []
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is not None:
        signal.signal(signal.SIGINT, lambda *args: noted.append(args))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
            if noted:
                signal.raise_signal(signal.SIGINT)
    said = not warn
    for warning in caught:
        if "multi-threaded, use of fork" not in str(warning.message):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif not said:
            said = True
            hint = f'{warning.message}; pass context="forkserver"'
            warnings.warn(hint, DeprecationWarning, stacklevel=4)
