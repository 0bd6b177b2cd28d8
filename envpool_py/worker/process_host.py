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
import hashlib
import math
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from envpool_py import errors, interrupts
from envpool_py.env import failures, shared_memory
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces
from envpool_py.env.request import ASK, ID_MASK, RESET, Request
from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.interrupts import ordinary
from envpool_py.worker import file_descriptors, messages, watchdog, worker_loop
from envpool_py.worker.host import Life, Send
from envpool_py.worker.poller import Poller

#: Seconds that a process may take to end, once its socket is closed or an env_fn has raised.
ENDS_WITHIN = 1.0
#: Seconds after which a pool warns of a slow ``env_fn``, and kills a process that it restarts.
SLOW_START = 60.0

# The bits of a token that are the key of an item: an env has one item of a row, one of a reply.
_KEY = ID_MASK | ASK
_UNREADABLE = "it sent what cannot be read"
#: The signal that kills. Windows has no SIGKILL, and this package has no worker processes there.
KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)


class Exit(NamedTuple):
    """Why a process has ended, or is about to end.

    ``reason``: what the pool killed it for, else its signal or exit code. ``error``: the error of
    an env_fn, which it has reported. ``line``, ``stack``: the user's line and the env's frames at
    which it has ended.
    """

    reason: str
    error: EnvError | None = None
    line: str = ""
    stack: str = ""


def forks(context: BaseContext | None) -> bool:
    """Whether processes of this context are copies of the program; None: of threads and actors."""
    return context is not None and context.get_start_method() == "fork"


@dataclass(eq=False, repr=False)
class ProcessHost:
    """Process ``number`` of a pool, with the envs ``ids``, which these ``env_fns`` make.

    ``start``, ``read``, ``reap`` and ``error_of`` are its life, in this order. Threads and actors
    replace ``_launch``, ``has_ended``, ``signal``, ``_free`` and the ways in which data comes and
    goes.

    Attributes:
        life: its life; the end of a process is noticed by the poller, and handled by ``reap``.
        exit: why it has ended, or was killed; None before that.
        deadline: when it is killed if it still makes an env, or cannot go on; infinity: never.
        name: what errors call the process.
        quiet: see ``watchdog.QUIET``.
        items: the data that the process sent beside rows, each with the token of its request.
        sent: the number of messages written, or waiting to be written.
        kept_spaces: observation spaces, one for all hosts whose envs sent equal spaces.
        unclosed: the envs whose ``close`` has not ended.
    """

    name, killed, quiet = "worker process", "was killed", watchdog.QUIET

    number: int
    ids: list[int]
    env_fns: list[Any]
    context: BaseContext
    _shared: worker_loop.Shared
    _poller: Poller

    def __post_init__(self) -> None:
        # Kept over a restart, because rows that had arrived are still returned.
        self.items: dict[int, tuple[int, Any]] = {}
        self.life = Life.NEW
        self.spaces: dict[int, EnvSpaces] = {}
        self._old_spaces: dict[int, EnvSpaces] = {}
        self.kept_spaces: dict[bytes, Any] = {}
        self.exit: Exit | None = None
        self.process: Any = None
        self.stream: Any = None
        self._death_fd = self._own_stacks = -1

    def start(self) -> None:
        """Start the process and return while it makes its envs; OSError if that fails."""
        again = self.life is Life.ENDED
        if again:  # the envs must have the spaces that they had at first
            self._old_spaces = self._old_spaces or self.spaces
        self.spaces, self.exit, self.sent = {}, None, 0
        self.unclosed, self.close_errors = set(self.ids), list[EnvError]()
        self._launch()
        self.deadline = time.monotonic() + SLOW_START if again else math.inf
        self.life = Life.STARTING  # NEW | ENDED -> STARTING

    def _launch(self) -> None:
        self.process = None
        ours, theirs = socket.socketpair()
        self.stream = messages.Stream(ours, self.ids)
        try:
            with contextlib.ExitStack() as spare:  # a start that runs out of descriptors leaks some
                for _ in range(6):
                    spare.callback(os.close, os.dup(self.stream.fd))
            shared = self._shared
            if shared.stacks < 0:
                self._own_stacks = shared_memory.create()
                shared = shared._replace(stacks=self._own_stacks)
            self._stacks = watchdog.Stacks(shared.stacks, self.number)
            self._stacks.erase()
            self.process = self.context.Process(  # type: ignore[attr-defined]
                target=worker_loop.main,
                args=(self.number, self.ids, self.env_fns, theirs, shared),
                name=f"envpool_py {self.ids[0]}-{self.ids[-1]}",
                daemon=False,
            )
            self.process.start()
            file_descriptors.claim(self._own_stacks)
            try:
                fd = os.pidfd_open(self.process.pid)
            except (AttributeError, OSError):  # not Linux, old or forbidden, or already reaped
                fd = os.dup(self.process.sentinel)
            else:
                # A forkserver reports the exit code through its sentinel.
                if self.context.get_start_method() in ("fork", "spawn"):
                    popen = self.process._popen  # noqa: SLF001 - its two pipes are not needed
                    popen.finalizer()
                    popen.sentinel = self.process._sentinel = fd  # noqa: SLF001
            self._death_fd = file_descriptors.claim(fd)
            self._poller.watch(self.stream.fd, self._on_event)
            self._poller.watch(fd, self._on_event)
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

    def start_by(self, context: BaseContext, pickled: Callable[[Any, int], bytes]) -> None:
        """Start the process by another method from now on; EnvError: an env_fn is not picklable."""
        pairs = zip(self.env_fns, self.ids, strict=True)
        self.env_fns = [fn if isinstance(fn, bytes) else pickled(fn, i) for fn, i in pairs]
        self.context = context

    def attach(self, block: Block) -> None:
        """Let the process write rows into the block from now on."""
        self.write(messages.pack(messages.ATTACH, pickle.dumps(block.spec)))

    def prepare_tokens(self, data: bytes, *, publish_early: bool) -> Send:
        kind = messages.TOKENS_EARLY if publish_early else messages.TOKENS
        return partial(self.write, messages.pack(kind, data))

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        # A request that several envs share is pickled once, but unpickled once per env: each env
        # has its own arguments.
        bodies: dict[int, bytes] = {}
        message = []
        for token, request in pairs:
            if id(request) not in bodies:
                what = f"env {token & ID_MASK}: the arguments of {request.kind}"
                bodies[id(request)] = messages.dumps(request, what)
            message.append((token, bodies[id(request)]))
        return partial(self.write, messages.pack(messages.REQUESTS, pickle.dumps(message)))

    def cancel(self, ids: set[int]) -> set[int]:
        return ids

    def write(self, data: bytes) -> None:
        """Send a message; bytes that the process does not accept at once are sent later."""
        if self.stream is None or self.stream.fd < 0:  # it was not started, or has ended
            return
        stream = self.stream
        self.sent += 1
        waiting, sent = stream.outbox
        if len(data) <= messages.ATOMIC and not waiting:  # the system does not split it
            try:
                data = data[stream.send(data, messages.NO_SIGNAL) :]
            except (BlockingIOError, ConnectionError):
                pass  # as in ``flush``
            else:
                if not data:
                    return
        stream.outbox = memoryview(bytes(waiting[sum(sent) :]) + data), []
        if not stream.flush():
            self._poller.watch(stream.fd, self._on_event, write=True)

    def _on_event(self, fd: int, events: int) -> None:
        if fd == self._death_fd:
            self._poller.noticed = True
            return
        if events & select.POLLOUT and self.stream.flush():
            self._poller.watch(fd, self._on_event)
        # No later event would repeat a reading of the spaces that was interrupted.
        with contextlib.nullcontext() if self.life is Life.RUNNING else interrupts.deferred():
            self.read()
        if self.stream.ended:
            self._poller.noticed = True
            self.deadline = min(self.deadline, time.monotonic() + ENDS_WITHIN)
            self._poller.forget(fd)  # else every poll would report it

    def read(self) -> bool:
        """Handle the items that have arrived; return whether there were any."""
        items = self.stream.read()
        found = bool(items)
        while items:
            token, status, data = items[0]
            i = token & ID_MASK
            if status == messages.HELLO:
                if data:  # else the process has just started
                    made = self._unpack(i, status, data, "env_fn")
                    old = self._old_spaces.get(i, made)
                    if not isinstance(made, EnvError) and made != old:
                        text = f"its spaces are {made[:2]}, but the env in its place has {old[:2]}"
                        made = failures.env_error(ValueError(text), i, "env_fn")
                    if isinstance(made, EnvError):
                        self._fail_start(made)
                        self.kill()
                    else:
                        if isinstance(data, bytes):  # a copy of the env's own spaces
                            digest = hashlib.sha256(data).digest()
                            kept = self.kept_spaces.setdefault(digest, made.observation_space)
                            made = made._replace(observation_space=kept)
                        self.spaces[i] = made
                if self.life is Life.STARTING and len(self.spaces) == len(self.ids):
                    self.life, self.deadline = Life.RUNNING, math.inf  # STARTING -> RUNNING
                elif self.deadline < math.inf and self.exit is None:
                    limit = self._shared.options.step_timeout or SLOW_START
                    self.deadline = time.monotonic() + limit
            elif status == messages.CLOSED:
                self.unclosed.discard(i)
                if data and (error := self._unpack(i, status, data)) is not None:
                    self.close_errors.append(error)
            elif status == messages.ENDED:
                text = f"ended by an exception between requests: {data.decode(errors='replace')}"
                self.exit = self.exit or Exit(text)
            elif status == messages.INVALID:
                self.kill(_UNREADABLE)
            elif status == messages.FAILURE and self.life is Life.STARTING:
                self._fail_start(self._unpack(i, status, data))
            else:
                self.items[token & _KEY] = token & ~RESET, (status, data)
            items.popleft()
        return found

    def _fail_start(self, error: EnvError | None) -> None:
        """Note the error of an env_fn, after which the process ends by itself; None: unreadable."""
        if self.exit is None:
            self.exit = Exit("", error)
        self._poller.noticed = True
        self.deadline = min(self.deadline, time.monotonic() + ENDS_WITHIN)

    def item(self, token: int, kind: str) -> Beside | EnvError:
        i, key = token & ID_MASK, token & _KEY
        while self.items.get(key, (-1,))[0] != token:
            if not self.read():  # an item arrives before its token, so it must be there
                self.kill(_UNREADABLE)
                return self.error_of(i)
        status, data = self.items[key][1]
        if isinstance(data, EnvError):
            return data
        found: Beside | EnvError | None = self._unpack(i, status, data, kind)
        return self.error_of(i) if found is None else found  # an error may be false: `__len__`

    def put_error(self, token: int, error: EnvError) -> None:
        self.items[token & _KEY] = token, (messages.FAILURE, error)

    def forget_item(self, token: int) -> None:
        self.items.pop(token & _KEY, None)

    def _unpack(self, i: int, status: int, data: Any, kind: str = "") -> Any:
        """Return the value, or the EnvError, in an item of env ``i``.

        If an error cannot be unpickled, the process is killed and the result is None. A value runs
        code of users, so its error is that of a request of this ``kind``.
        """
        is_error = status in (messages.FAILURE, messages.CLOSED)
        try:
            return failures.unpack_failure(data, i) if is_error else pickle.loads(data)  # noqa: S301 - from our own worker process
        except ordinary() as error:
            if not is_error:
                return failures.env_error(error, i, kind)
            self.kill(_UNREADABLE)
            return None

    def signal(self, signum: int) -> None:
        """Send a signal to the process and to all processes that it has started."""
        for send in (os.killpg, os.kill) if self._is_alive() else ():  # it may have no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.process.pid, signum)

    def kill(self, reason: str | None = None) -> None:
        """Kill the process, without waiting for its end."""
        if reason is not None and self.exit is None:
            self.exit = Exit(f"{self.killed}: {reason}")
        self.signal(KILL)

    def end(self, reason: str | None = None) -> None:
        """Kill the process and wait for its end, at most 5 seconds."""
        self.kill(reason)
        if self._death_fd >= 0:
            file_descriptors.is_readable(self._death_fd, 5)
        self._poller.noticed = True

    def close_env(self, limit: float) -> None:
        """Let the process close its env and end; it is killed after ``limit`` seconds."""
        if self.exit is None:
            self.exit = Exit("")
            self.write(messages.pack(messages.CLOSE, b""))
            self.deadline = time.monotonic() + limit

    def kill_slow(self, ids: Sequence[int], thread: int, fact: str) -> list[EnvTimeoutError]:
        """Kill the process of these envs; return an error for each, with the stack of a thread."""
        line, stack = "", ""
        try:
            line, stack = self._stack_of(thread)
        finally:
            self.end(f"{errors.name_ids(ids)} {fact}")
        text = f"{fact}{line}; its {self.name} {self.killed}"
        return [EnvTimeoutError(f"env {i}: {text}", (i,), details=stack) for i in ids]

    def _stack_of(self, thread: int) -> tuple[str, str]:
        """Return the user's line and the env's frames at which this thread is now."""
        return self._stacks.request(self.process.pid, thread, self.quiet)

    def _is_alive(self) -> bool:
        return self.life in (Life.STARTING, Life.RUNNING)

    def has_ended(self) -> bool:
        """Whether the process has ended, be that handled or not."""
        if self._death_fd < 0 or file_descriptors.is_readable(self._death_fd, 0):
            return True
        # A process that an env has forked keeps the sentinel open, but not the socket.
        return self.stream.ended and self.process.exitcode is not None

    def reap(self) -> bool:
        """Whether the process has ended; if so, read its last items, and free what it has left."""
        with interrupts.deferred():
            if self._is_alive() and self.has_ended():
                while self.read():
                    pass
                found = self._free()
                known = self.exit or found
                reason = known.reason or found.reason
                self.exit = known._replace(reason=reason, stack=found.stack)
                self.deadline, self.life = math.inf, Life.ENDED  # STARTING | RUNNING -> ENDED
        return self.life is Life.ENDED

    def _free(self) -> Exit:
        """Kill the children of an ended process, close its descriptors; return how it ended."""
        line, stack = self._stacks.read()
        self.signal(KILL)  # before the join lets the system reuse the pid
        self.process.join(5)
        self._close_descriptors()
        self._finalizer.cancel()
        how = errors.name_exit(self.process.exitcode)
        with contextlib.suppress(ValueError):  # it has not ended after SIGKILL
            self.process.close()
        return Exit(how, None, line, stack)

    def _close_descriptors(self) -> None:
        for owner, name in ((self.stream, "fd"), (self, "_death_fd"), (self, "_own_stacks")):
            fd: int = getattr(owner, name)
            self._poller.forget(fd)
            setattr(owner, name, -1)
            file_descriptors.release(fd)

    def note_slow_close(self, seconds: float) -> None:
        """Note that the process is killed because it was not closed within ``seconds``."""
        known = self.exit or Exit("")  # which it has if it closes its env, to recreate it
        if self._is_alive() and not known.reason and not self.has_ended():
            reason = f"{self.killed}: it has not ended after {seconds:g} seconds"
            self.exit = known._replace(reason=reason)

    def errors_of_close(self) -> list[EnvError]:
        """Return the errors of ``close``; of those that have not ended the first hung, or died."""
        if not self.unclosed:
            return self.close_errors
        first, *rest = [i for i in self.ids if i in self.unclosed]
        how = "" if self.exit is None else f": the {self.name} {self.exit.reason}{self.exit.line}"
        text = f"env {first}: could not be closed{how}"
        if rest:
            text += f"; nor could {errors.name_ids(rest)}, of the same {self.name}"
        stack = "" if self.exit is None else self.exit.stack
        return [*self.close_errors, EnvError(text, (first, *rest), "close", stack)]

    def error_of(self, i: int) -> EnvError:
        """Return the error of an env_fn, or that of ``death_of``."""
        found = None if self.exit is None else self.exit.error
        return self.death_of(i) if found is None else found

    def death_of(self, i: int) -> WorkerDiedError:
        """Return a new error that says how the process of env ``i`` ended."""
        found = self.exit or Exit("has ended")
        text = f"the {self.name} {found.reason}{found.line}"
        if found.error is not None:
            text += " while starting; " + found.error.message.partition("\n")[0]
        elif len(self.spaces) < len(self.ids):
            text += " while starting"
            method = "fork" if self.context is None else self.context.get_start_method()
            if method != "fork":
                text += f'; under {method!r} the program needs `if __name__ == "__main__":`'
        if found.reason == "was killed by SIGKILL" and found.error is None:  # not by the pool
            text += "; perhaps the system was out of memory"
        others = self.ids.copy()
        others.remove(i)
        shared = f"; it was also that of {errors.name_ids(others)}" if others else ""
        return WorkerDiedError(f"env {i}: {text}{shared}", (i, *others), details=found.stack)
