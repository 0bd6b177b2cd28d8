"""Start, watch, restart and end all worker processes of a pool.

Invariants:

* all processes start at once, and no env is made in the parent;
* a process is killed if it closes its socket, writes invalid data, or steps an env for longer than
  ``step_timeout``; the errors of its envs give the reason;
* ``close`` takes little more than ``GRACE`` seconds, however many envs hang.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import math
import multiprocessing
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py import env_by_name, interrupts
from envpool_py.env import shared_memory
from envpool_py.env.block import Block, Spec, block_bytes
from envpool_py.env.executor import EnvSpaces
from envpool_py.env.failures import dumps_by_value
from envpool_py.env.heartbeat import CLOSING, MAKING, REQUEST
from envpool_py.errors import EnvError, EnvTimeoutError, combine, name_ids, warn
from envpool_py.interrupts import ordinary
from envpool_py.options import ProcessOptions
from envpool_py.worker import file_descriptors, messages, worker_loop
from envpool_py.worker.cores_and_threads import ready_to_fork, usable_cores
from envpool_py.worker.host import Life, RemoteHost
from envpool_py.worker.poller import Poller
from envpool_py.worker.process_host import ProcessHost, forks
from envpool_py.worker.watchdog import SHARES_STACKS, Watchdog

if TYPE_CHECKING:
    from envpool_py.worker.fork_server import Context

_LOGGER = logging.getLogger("envpool_py")
#: Seconds after which a pool warns of a slow ``env_fn``.
SLOW_START = 30.0
#: Seconds that making an env may take; with ``step_timeout`` a recreated env has that limit.
MAKES_WITHIN = 60.0
#: Seconds for which ``close`` waits until all processes have ended by themselves.
GRACE = 5.0
#: What an env has not done that is stuck in this phase of its request.
UNDONE_IN = {REQUEST: "end its request", CLOSING: "return from close", MAKING: "return from env_fn"}


def obstacle() -> str:
    """Return why this program cannot have worker processes, or ""."""
    if multiprocessing.current_process().daemon:
        return "a daemonic process, such as a DataLoader worker, cannot have worker processes"
    needed = (os, "fork"), (os, "killpg"), (os, "sched_yield"), (select, "poll")
    lacks = [f"{module.__name__}.{name}" for module, name in needed if not hasattr(module, name)]
    text = f"worker processes need {', '.join(lacks)}, which this platform lacks"
    return text if lacks else ""  # no Unix lacks one


def _uses_cuda() -> bool:
    """Whether this program has initialised CUDA."""
    with contextlib.suppress(KeyError, AttributeError):  # torch is not imported, or in part
        return bool(sys.modules["torch"].cuda.is_initialized())
    return False


class Supervisor:
    """Starts, watches and ends the processes of these envs.

    ``timed``: true if requests have a limit, or a host a deadline. It is read in every step.
    """

    #: The option for the number of hosts.
    counted_by = "num_processes"
    make_poller: type[Poller] = Poller

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        context: str | BaseContext | None,
        num_processes: int,
        options: ProcessOptions = ProcessOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.context = self._adopt_context(context)
        self._servers: list[Context] = []
        # A user's own subclass of the context stays.
        if type(self.context).__name__ == "ForkServerContext":
            self.context = self._server()
        self._owner_pid = os.getpid()
        self.hosts: list[RemoteHost] = []
        self.watchdog: Watchdog | None = None
        self._options = options
        self._block: Any = None  # made when all envs are made
        self._fds: list[int] = []
        self._closed = False
        self._env_fns = [self._packed(fn, i) for i, fn in enumerate(env_fns)]
        self._shares = np.array_split(np.arange(len(env_fns)), num_processes)
        self.poller = self.make_poller()
        self.timed: Any = options.step_timeout is not None or self.poller.deadlines
        with interrupts.deferred():  # `close` needs it
            self._finalizer = Finalize(None, self.close, exitpriority=10)

    def _adopt_context(self, context: Any) -> Any:
        """Return the multiprocessing context of that name; None: multiprocessing's default."""
        if text := obstacle():
            raise NotImplementedError(f"{text}; use ThreadVectorEnv or DummyVectorEnv")
        names = multiprocessing.get_all_start_methods()
        if context is None or context in names:
            context = multiprocessing.get_context(context)
        elif isinstance(context, str):
            known = f"context, or start_method, must be one of {', '.join(names)}"
            raise ValueError(f"cannot find context for {context!r}: {known}")
        elif not isinstance(context, BaseContext):
            text = "context must be a start method or a multiprocessing context"
            raise TypeError(f"{text}, got {context!r}")
        if forks(context) and _uses_cuda():
            text = "worker processes are forked from a process that uses CUDA, which CUDA does"
            hint = 'not survive; pass context="spawn" or context="forkserver"'
            warn(f"{text} {hint}", RuntimeWarning)
        return context

    def _server(self) -> Context:
        if not self._servers:
            from envpool_py.worker import fork_server  # noqa: PLC0415 - not on Windows

            self._servers.append(fork_server.Context())
        return self._servers[0]

    @contextlib.contextmanager
    def starting(self, *, warn_of_forks: bool) -> Iterator[None]:
        """Defer signals while processes start; issue Python's warning about forks at most once.

        An interrupt during a fork would be lost in callbacks. Python 3.12 warns of every fork in a
        program with threads.
        """
        threads = self._options.threads_per_process
        with interrupts.deferred(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ready_to_fork(threads) if forks(self.context) else contextlib.nullcontext():
                yield
        for one in caught:
            if "multi-threaded, use of fork" not in str(one.message):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
            elif warn_of_forks:
                warn_of_forks = False
                warn(f'{one.message}; pass context="forkserver"', DeprecationWarning)

    def _open(self) -> None:
        """Create the descriptors that the processes share; OSError if that fails."""
        with interrupts.deferred():  # else a descriptor might have no owner
            self.poller.open()
            self._fds += os.pipe()
            self._fds.append(shared_memory.create())
            self._fds.append(shared_memory.create() if SHARES_STACKS else -1)
        theirs, ours, self._memory, stacks = self._fds
        file_descriptors.claim(ours)
        may_spin = len(self._shares) <= len(usable_cores())
        results = self.poller.write_end
        shared = worker_loop.Shared(may_spin, self._options, results, self._memory, theirs, stacks)
        self._add_hosts(partial(ProcessHost, context=self.context, shared=shared))

    def _add_hosts(self, make: Callable[..., RemoteHost]) -> None:
        kept_spaces: dict[bytes, tuple[Any, bytes]] = {}
        limit = max(self._options.step_timeout or 0.0, MAKES_WITHIN)  # until all envs are made
        for number, share in enumerate(self._shares):
            env_fns = [self._env_fns[i] for i in share]
            host = make(number, share.tolist(), env_fns, limit, kept_spaces, self.poller)
            self.hosts.append(host)

    def set_env_fn(self, i: int, env_fn: Callable[[], object]) -> None:
        """Make env ``i`` by this env_fn when its process is restarted."""
        for host in self.hosts:
            if i in host.ids:  # else this process steps the env
                k = host.ids.index(i)
                pack = self._pickled if isinstance(host.env_fns[k], bytes) else self._packed
                host.env_fns[k] = pack(env_fn, i)

    def _packed(self, env_fn: Callable[[], object], i: int) -> Any:
        """Pickle the ``env_fn`` of env ``i`` for another program; may raise EnvError."""
        return env_fn if self.context is None or forks(self.context) else self._pickled(env_fn, i)

    def _pickled(self, env_fn: Callable[[], object], i: int) -> bytes:
        try:
            return dumps_by_value(env_fn)
        except ordinary() as error:
            text = f"env_fn cannot be pickled: {type(error).__name__}: {error}"
            message = f"env {i}: {text}; create that object inside env_fn"
            raise EnvError(message, (i,), "env_fn") from error

    def start(self) -> None:
        """Start all processes and return while they make their envs; OSError if one fails."""
        this = multiprocessing.current_process()
        imports_main = this.name.startswith("envpool_py ") and getattr(this, "_inheriting", False)
        if imports_main and self.context is not None and not forks(self.context):
            # The program has no main guard, which the error of its pool says; the tracebacks of all
            # of its worker processes would hide that.
            raise SystemExit(1)
        self._open()
        host = self.hosts[0]
        limit = math.inf if self._options.step_timeout is None else host.makes_within
        try:
            if self._servers:
                threads = self._options.threads_per_process
                if not self._servers[0].prepare(self._env_fns, threads, SLOW_START, limit):
                    ids = [i for host in self.hosts for i in host.ids]
                    text = f"the fork server has not imported the modules within {limit:g} seconds"
                    raise EnvTimeoutError(f"{name_ids(ids)}: {text}", tuple(ids))
            elif forks(self.context):  # once here, rather than in each process
                for name in sorted(set[str]().union(*map(env_by_name.modules_of, self._env_fns))):
                    with interrupts.suppressed(Exception, SystemExit):  # the env raises it again
                        importlib.import_module(name)
            with self.starting(warn_of_forks=True):
                for host in self.hosts:
                    host.start(limit)
        except ordinary(OSError) as found:
            if isinstance(found, EnvTimeoutError):  # an OSError, too
                raise
            error: Any = found
            text = f"{error.strerror}: cannot start {host.name} {host.number} of {len(self.hosts)}"
            hint = "raise `ulimit -n`, or " if error.errno == errno.EMFILE else ""
            raise OSError(error.errno, f"{text}; {hint}pass a smaller {self.counted_by}") from error

    def await_started(
        self, token_chunks: list[bytes], check: Callable[[], object]
    ) -> dict[int, EnvSpaces]:
        """Wait until the envs of all processes are made; return their spaces.

        Results go into ``token_chunks``; ``check`` is called after each event and may raise.
        EnvError if an env_fn raised or, with ``step_timeout``, is late, or a process has ended.
        """
        warn_at = time.monotonic() + SLOW_START
        while True:
            failed = [host for host in self.hosts if host.exit is not None]
            if self.poller.end_noticed:
                failed += [host for host in self.hosts if host.reap() and host not in failed]
            if failed:
                raise combine([host.error_of(host.ids[0]) for host in failed])
            late = [i for host in self.hosts if host.life is not Life.RUNNING for i in host.ids]
            if not late:
                return {i: spaces for host in self.hosts for i, spaces in host.spaces.items()}
            left = warn_at - time.monotonic()
            if left <= 0:
                text = f"env_fn has not returned after {SLOW_START:g} seconds"
                warn(f"{name_ids(late)}: {text}; still waiting")
                warn_at = left = math.inf
            self.poller.fetch(token_chunks, 0, self.time_left(left))
            self.enforce_deadlines()
            check()

    def make_block(self, spec: Spec) -> Block:
        """Make the block in shared memory and attach all processes; may raise MemoryError."""
        limit = self._options.step_timeout
        self._block = block = self._new_block(spec._replace(timed=limit is not None))
        self.watchdog = Watchdog(limit or MAKES_WITHIN, block.heartbeats)
        for host in self.hosts:
            host.makes_within, host.heartbeat = self.watchdog.limit, block.heartbeats[host.ids[0]]
            host.attach(block)
        return block

    def _new_block(self, spec: Spec) -> Block:
        return Block(spec, shared_memory.allocate(self._memory, block_bytes(spec)))

    def restart(self, host: RemoteHost) -> None:
        """Restart an ended host and return while it makes its envs; OSError if that fails."""
        if self.watchdog is not None:
            self.watchdog.forget(host.ids)
        if isinstance(host, ProcessHost) and forks(host.context) and _uses_cuda():
            pairs = zip(host.env_fns, host.ids, strict=True)
            host.env_fns = [
                fn if isinstance(fn, bytes) else self._pickled(fn, i) for fn, i in pairs
            ]
            host.context = self._server()
            text = "%s: restarted by forkserver, because the program uses CUDA now"
            _LOGGER.warning(text, name_ids(host.ids))
        with self.starting(warn_of_forks=False):
            host.start(MAKES_WITHIN)
            host.attach(self._block)

    def describe(self) -> str:
        text = f", {self.counted_by}={len(self.hosts)}"
        if self.context is not None:
            text += f", context={self.context.get_start_method()!r}"
        return text

    def time_left(self, longest: float | None) -> float:
        """Return the seconds until ``enforce_deadlines`` is due, at most ``longest``; or inf."""
        due, _ = min(self.poller.deadlines.values(), default=(math.inf, ""))
        if self.watchdog is not None:
            due = min(due, self.watchdog.next_check)
        left = max(due - time.monotonic(), 0.0)
        return left if longest is None else min(left, longest)

    def enforce_deadlines(self) -> list[EnvTimeoutError]:
        """Kill processes past their deadline; return an error for each env stuck in a request."""
        overdue: dict[int, int | None] = {}
        if self.watchdog is not None:
            overdue = dict(self.watchdog.find_overdue(self._messages_sent))
        stuck = [host for host in self.hosts if host.ids[0] in overdue and host.exit is None]
        now, deadlines = time.monotonic(), self.poller.deadlines.copy()  # other threads change it
        due = {self.hosts[number]: why for number, (at, why) in deadlines.items() if at <= now}
        late = [host for host in dict.fromkeys([*due, *stuck]) if not host.has_ended()]
        if late:
            late[0].request_stacks(late)  # waits once for the stacks of all
        errors: list[EnvTimeoutError] = []
        for host in late:
            if host in due:
                host.kill_late(due[host])
                continue
            env_id, did = overdue[host.ids[0]], UNDONE_IN[int(host.heartbeat["phase"])]
            named, did = (host.ids, "begin its request") if env_id is None else ([env_id], did)
            errors += host.kill_slow(named, int(host.heartbeat["thread"]), self.overdue_text(did))
        for host in late:
            host.await_end()
        return errors

    def overdue_text(self, did: str) -> str:
        """Return the text for an env that did not do this within the limit of a request."""
        limit = self._options.step_timeout
        seconds = MAKES_WITHIN if limit is None else f"step_timeout={limit}"
        return f"did not {did} within {seconds} seconds"

    def _messages_sent(self) -> dict[int, int]:
        """Return for each process that runs, by its first env, the messages sent to it."""
        running = [host for host in self.hosts if host.life is Life.RUNNING]
        counts = self._options.step_timeout is not None
        for host in running:  # an interrupt may have come between a message and its count
            host.num_sent = max(host.num_sent, int(host.heartbeat["handled"]))
        return {host.ids[0]: host.num_sent * counts for host in running}

    def begun(self, ids: set[int]) -> set[int]:
        """Return those of these envs in flight that have begun their request, as far as known."""
        begun = [(host.begun_env, host.ids[0]) for host in self.hosts]
        return ids & {first if env is None else env for env, first in begun}

    def close(self) -> list[EnvError]:
        """Ask all processes to end, kill them after ``GRACE`` seconds; return errors of envs."""
        if self._closed or os.getpid() != self._owner_pid:
            return []
        # Of a process that has ended before, or was killed, the error was raised.
        running = [host for host in self.hosts if not host.reap() and host.life is Life.RUNNING]
        closing = [host for host in running if host.exit is None or not host.exit.reason]
        try:
            for host in self.hosts:
                host.write(messages.pack(messages.CLOSE, messages.PATIENCE.pack(GRACE / 2)))
            self._await_exits(GRACE)
            for host in self.hosts:
                host.note_slow_close(GRACE)
                if isinstance(host, ProcessHost):
                    host.terminate()
            self._await_exits(min(0.2, GRACE))
        finally:  # also after a second Ctrl-C
            for host in self.hosts:
                host.kill()
                host.heartbeat = host.heartbeat.copy()  # not in the block
            self._await_exits(5)
            with interrupts.deferred():
                self._finalizer.cancel()
                while self._servers:
                    self._servers.pop().close()
                self.poller.close()
                while self._fds:
                    file_descriptors.release(self._fds.pop())
                self.watchdog = self._block = None  # free the memory
                self._closed = True
        return [error for host in closing for error in host.errors_of_close()]

    def _await_exits(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        running = [host for host in self.hosts if host.life is not Life.NEW]
        while True:
            left = deadline - time.monotonic()
            with interrupts.deferred():  # once: it takes longer than all else in ``reap``
                running = [host for host in running if not host.reap()]
            if not running or left <= 0:
                return
            self.poller.fetch([], 0, left)
