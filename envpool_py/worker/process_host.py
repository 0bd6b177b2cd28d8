"""``ProcessHost``: a worker process with some envs; start it, exchange messages with it, end it.

Invariants, whatever the envs do:

* the parent notices the end of a process by its pidfd or sentinel, not by its socket, which a
  process forked by an env may keep open;
* a worker process has its own process group: a kill of the group ends the processes that its envs
  have started, and Ctrl-C in a terminal reaches only the parent;
* the parent never blocks in a write: data that a process does not accept at once is kept, and the
  parent goes on reading, so two full pipes cannot block each other;
* after a signal handler has raised, the rest of a message is sent before the next one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

from envpool_py import errors, interrupts
from envpool_py.env import shared_memory
from envpool_py.worker import file_descriptors, messages, watchdog, worker_loop
from envpool_py.worker.host import ENDS_WITHIN, Exit, Life, RemoteHost

#: The signal that kills. Windows has no SIGKILL, and this package has no worker processes there.
_KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
# Windows has no SIGCONT.
_CONTINUE: int = getattr(signal, "SIGCONT", 0)


def forks(context: BaseContext | None) -> bool:
    """Whether processes of this context are copies of the program; None: of threads and actors."""
    return context is not None and context.get_start_method() == "fork"


@dataclass(eq=False, repr=False)
class ProcessHost(RemoteHost):
    """Some envs in a worker process."""

    context: BaseContext
    shared: worker_loop.Shared

    name = "worker process"
    _death_fd = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stream: Any = None
        self._stacks = watchdog.Stacks(self.shared.stacks, self.number)

    def _launch(self, env_fns: list[Any]) -> None:
        self.process, method = None, self.context.get_start_method()
        if method != "fork":
            self.hint = f'; under {method!r} the program needs `if __name__ == "__main__":`'
        ours, theirs = socket.socketpair()
        self.stream = messages.Stream(ours, self.ids)
        try:
            with contextlib.ExitStack() as spare:  # a start that runs out of descriptors leaks some
                for _ in range(6):
                    spare.callback(os.close, os.dup(self.stream.fd))
            if self.shared.stacks < 0:
                self._stacks.fd = shared_memory.create()
            self._stacks.erase()
            shared = self.shared._replace(stacks=self._stacks.fd)
            self.process = self.context.Process(  # type: ignore[attr-defined]
                target=worker_loop.main,
                args=(self.number, self.ids, env_fns, theirs, shared),
                name=f"envpool_py {self.ids[0]}-{self.ids[-1]}",
                daemon=False,
            )
            with interrupts.kept_from_children(method):
                self.process.start()
            if self.shared.stacks < 0:
                file_descriptors.claim(self._stacks.fd)
            try:
                fd = os.pidfd_open(self.process.pid)
            except (AttributeError, OSError):  # not Linux, old or forbidden, or already reaped
                fd = os.dup(self.process.sentinel)
            else:
                # A forkserver reports the exit code through its sentinel.
                if method in ("fork", "spawn"):
                    popen = self.process._popen  # noqa: SLF001 - its two pipes are not needed
                    popen.finalizer()
                    popen.sentinel = self.process._sentinel = fd  # noqa: SLF001
            self._death_fd = file_descriptors.claim(fd)
            self.poller.watch(self.stream.fd, self._on_event)
            self.poller.watch(fd, self._on_event)
        except BaseException:
            if self.process is not None and self.process.pid is not None:
                self.process.kill()
                self.process.join()
            self._close_descriptors()
            raise
        finally:
            theirs.close()
        # In any case, a worker process must not keep the interpreter from exiting.
        self._finalizer = Finalize(None, self.kill, exitpriority=5)

    def write(self, data: bytes) -> None:
        """Send a message; bytes that the process does not accept at once are sent later."""
        stream = self.stream
        if stream is None or stream.fd < 0:  # it was not started, or has ended
            return
        waiting, sent = stream.outbox
        if len(data) <= messages.ATOMIC_BYTES and not waiting:  # the system does not split it
            try:
                data = data[stream.send(data, messages.NO_SIGNAL) :]
            except (BlockingIOError, ConnectionError):
                pass  # as in ``flush``
            else:
                if not data:
                    self.num_sent += 1  # not before: an interrupt may come before it is sent
                    return
        stream.outbox = memoryview(bytes(waiting[sum(sent) :]) + data), []
        self.num_sent += 1
        if not stream.flush():
            self.poller.watch(stream.fd, self._on_event, write=True)

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self._death_fd:
            self.poller.end_noticed = True
            return
        if events & select.POLLOUT and self.stream.flush():
            self.poller.watch(fd, self._on_event)
        # No later event would repeat a reading of the spaces that was interrupted.
        with contextlib.nullcontext() if self.life is Life.RUNNING else interrupts.deferred():
            self.read()
        if self.stream.ended:
            self.poller.end_noticed = True
            self.set_deadline(ENDS_WITHIN, "it closed its connection to the pool")
            self.poller.forget(fd)  # else every poll would report it

    def _received(self) -> deque[Any]:
        return self.stream.read()  # type: ignore[no-any-return]

    def terminate(self) -> None:
        """Ask the process to end."""
        self._signal(signal.SIGTERM)
        self._signal(_CONTINUE)  # it may be stopped

    def _kill(self) -> None:
        self._signal(_KILL)

    def await_end(self) -> None:
        super().await_end()
        if self._death_fd >= 0:
            file_descriptors.is_readable(self._death_fd, 5)

    def _signal(self, signum: int) -> None:
        """Send a signal to the process and to all processes that it has started."""
        for send in (os.killpg, os.kill) if self._is_alive() else ():  # it may have no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.process.pid, signum)

    def request_stacks(
        self, hosts: Sequence[ProcessHost], quiet: float = watchdog.STACK_QUIET
    ) -> None:
        found = [(host._stacks, host.process.pid) for host in hosts]  # noqa: SLF001
        watchdog.Stacks.request(found, quiet)

    def stack_of(self, thread: int) -> tuple[str, str]:
        return self._stacks.read(thread)

    def has_ended(self) -> bool:
        if self._death_fd < 0 or file_descriptors.is_readable(self._death_fd, 0):
            return True
        # A process that an env has forked keeps the sentinel open, but not the socket.
        return bool(self.stream.ended and self.process.exitcode is not None)

    def _free(self) -> Exit:
        line, stack = self._stacks.read()
        self._kill()  # its children, before the join lets the system reuse the pid
        self.process.join(ENDS_WITHIN)
        if self.process.exitcode is None and hasattr(self.context, "stop"):
            self.context.stop()  # the fork server, which reports the exit code, does not answer
        self._close_descriptors()
        self._finalizer.cancel()
        how = errors.name_exit(self.process.exitcode)
        if self.process.exitcode == 255 and self.context.get_start_method() == "forkserver":
            how += ", or has ended with its fork server"  # for which multiprocessing gives 255
        with contextlib.suppress(ValueError):  # it has not ended after SIGKILL
            self.process.close()
        return Exit(how + line, stack=stack)

    def _close_descriptors(self) -> None:
        own = [(self._stacks, "fd")] if self.shared.stacks < 0 else []
        for owner, name in ((self.stream, "fd"), (self, "_death_fd"), *own):
            fd: int = getattr(owner, name)
            self.poller.forget(fd)
            setattr(owner, name, -1)
            file_descriptors.release(fd)
