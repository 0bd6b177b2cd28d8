"""All worker processes of a pool: started together, watched together, ended together.

What holds:

* all processes start at once, and no env is built in the parent;
* a process that closes its stream, writes what cannot be read, or steps an env for longer than
  ``step_timeout``, is killed, and its envs are told why;
* ``close`` takes ``GRACE`` seconds and a little, however many envs hang.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np

from envpool_py import shm
from envpool_py.block import Spec, nbytes
from envpool_py.errors import EnvError, EnvTimeoutError, combine, name_ids
from envpool_py.watchdog import Overdue, Watchdog
from envpool_py.worker import child
from envpool_py.worker.channel import Channel
from envpool_py.worker.executor import EnvSpaces
from envpool_py.worker.limits import usable_cores
from envpool_py.worker.options import check_context
from envpool_py.worker.pickling import pickled_fn
from envpool_py.worker.process import ProcessHost, Settings, starting
from envpool_py.worker.stream import claim, disown, release

#: Seconds that ``close`` gives all processes together to end by themselves.
GRACE = 5.0
#: Seconds that a process may live on once its stream is closed: one that ends has closed it too.
DISCONNECTED_FOR = 1.0
#: Seconds after which a pool says for which ``env_fn`` it is waiting, and after which a process
#: that is restarted is killed.
SLOW_START = 60.0


class ProcessOptions(NamedTuple):
    """How the processes of a pool are made.

    ``context``: the start method. ``num_processes``: over how many the envs are spread.
    ``num_threads``: to compute with in each; None is no limit. ``affinity``: keep each on one core.
    ``step_timeout``: seconds that a request may take; None for no limit.
    """

    context: Any
    num_processes: int
    num_threads: int | None = 1
    affinity: bool = False
    step_timeout: float | None = None


class Processes:
    """The processes.

    Args:
        env_fns: of the envs that live in processes, the first ones of the pool.
        options: how to make them.
        shared_memory: whether there is to be a block.

    Attributes:
        hosts: one for each process.
        channel: brings their results.
        home: for each env the number of its process.
        watchdog: None without ``step_timeout``.
        timed: whether there is something to look at when a time has passed.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: ProcessOptions,
        *,
        shared_memory: bool = True,
    ) -> None:
        self.options = options
        self.context = check_context(options.context)
        self.pid = os.getpid()
        self.hosts: list[ProcessHost] = []
        self._spec: Spec | None = None
        self._fds: list[int] = []
        self._disconnected: dict[ProcessHost, float] = {}
        # Of processes that are started again: how many envs are made (-1: none is begun), and when
        # that was seen.
        self._begun: dict[ProcessHost, tuple[int, float]] = {}
        self._closed = False
        self._alive = -1
        self._memory: int | None = None
        self.watchdog: Watchdog | None = None
        self.timed = False
        method = self.context.get_start_method()
        sent = env_fns if method == "fork" else [pickled_fn(fn, i) for i, fn in enumerate(env_fns)]
        self.channel = Channel()
        self._finalizer = Finalize(None, self.close, exitpriority=10)
        try:
            self._open(len(env_fns), sent, shared_memory=shared_memory)
        except BaseException:
            self.close()
            raise
        self.timed = self.watchdog is not None

    def _open(self, num_envs: int, env_fns: Sequence[Any], *, shared_memory: bool) -> None:
        options = self.options
        claim(self.channel.results)
        theirs, ours = os.pipe()
        self._fds.append(theirs)
        self._alive = claim(ours)
        if shared_memory:
            self._memory = shm.create()
            self._fds.append(self._memory)
        if options.step_timeout is not None:
            self.watchdog = Watchdog(options.step_timeout)
        shared = child.Shared(
            child.Descriptor(self.channel.theirs),
            None if self._memory is None else child.Descriptor(self._memory),
            child.Descriptor(theirs),
            None if self.watchdog is None else child.Descriptor(self.watchdog.stacks),
        )
        cores = usable_cores()
        settings = Settings(
            self.context,
            env_fns,
            shared,
            options.num_threads,
            cores if options.affinity else (),
            options.num_processes <= len(cores),
        )
        shares = np.array_split(np.arange(num_envs), options.num_processes)
        self.home = np.repeat(np.arange(len(shares)), [len(share) for share in shares])
        self.hosts = [
            ProcessHost(number, share.tolist(), settings, self.channel)
            for number, share in enumerate(shares)
        ]

    # ------------------------------------------------------------------------------------- start

    def start(self) -> None:
        """Start all processes at once; their envs are made meanwhile.

        Raises:
            OSError: one cannot be started.
        """
        number = 0
        try:
            with starting():
                for number, host in enumerate(self.hosts):  # noqa: B007 - for the message
                    host.start()
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: cannot start worker process {number} of"
                f" {len(self.hosts)}; fewer are needed with num_processes=",
            ) from error

    def await_started(self, chunks: list[bytes], check: Callable[[], object]) -> None:
        """Wait until the envs of all processes are made.

        Args:
            chunks: where results go.
            check: called every now and then; may raise.

        Raises:
            EnvError: an env_fn raised.
            WorkerDiedError: a process ended meanwhile.
        """
        warn_at = time.monotonic() + SLOW_START
        while True:
            errors = [host.start_error for host in self.hosts if host.start_error is not None]
            if errors:
                raise combine(errors)
            for host in self.ended():
                host.reap()
                host.ended = False
                raise host.start_error or host.death_of(host.ids[0])
            late = [host for host in self.hosts if not host.started]
            if not late:
                return
            left = warn_at - time.monotonic()
            if left <= 0:
                ids = [i for host in late for i in host.ids]
                warnings.warn(
                    f"{name_ids(ids)}: env_fn has not returned after {SLOW_START:g} seconds;"
                    " still waiting",
                    UserWarning,
                    stacklevel=2,
                )
                warn_at = math.inf
            self.channel.fetch(chunks, 0, left if 0 < left < math.inf else None)
            check()

    def spaces(self) -> dict[int, EnvSpaces]:
        """The spaces of all envs, by id."""
        return {i: own for host in self.hosts for i, own in host.spaces.items()}

    def allocate(self, spec: Spec) -> mmap.mmap:
        """Memory for a block, which all processes attach to.

        Raises:
            MemoryError: the system refuses that much.
        """
        assert self._memory is not None  # noqa: S101 - for the type checker
        memory = shm.allocate(self._memory, nbytes(spec), "observations and actions")
        self._spec = spec
        for host in self.hosts:
            host.attach(spec)
        return memory

    def restart(self, host: ProcessHost) -> None:
        """Start a process that has ended once more; its envs are made meanwhile.

        Raises:
            OSError: it cannot be started.
        """
        if self.watchdog is not None:
            self.watchdog.forget(host.number)
        with starting(warn=False):
            host.start(self._spec)
        self._begun[host] = -1, time.monotonic()
        self.timed = True

    # ----------------------------------------------------------------------------------- watching

    def ended(self) -> list[ProcessHost]:
        """The processes that have ended, and whose end nobody has handled."""
        return [host for host in self.hosts if host.ended]

    def timeout(self, timeout: float | None) -> float | None:
        """How long a sleep may be, until there is something to look at; ``timeout`` at the most."""
        now = time.monotonic()
        dues = [*self._disconnected.values()]
        dues += [
            begun + (SLOW_START if made < 0 else self._start_limit())
            for made, begun in self._begun.values()
        ]
        for due in dues:
            left = max(due - now, 0.0)
            timeout = left if timeout is None else min(left, timeout)
        return timeout if self.watchdog is None else self.watchdog.wait(timeout)

    def _start_limit(self) -> float:
        """Seconds that an env_fn may take in a process that is started again."""
        return self.options.step_timeout or SLOW_START

    def look(self) -> list[tuple[ProcessHost, Overdue]]:
        """End what must not go on; return the processes that are stuck in a request.

        These are not killed yet.
        """
        now = time.monotonic()
        for host in self.hosts:
            if host.disconnected:
                due = self._disconnected.setdefault(host, now + DISCONNECTED_FOR)
                if due <= now:
                    host.kill(reason="was killed: it closed its connection to the pool")
                    host.ended |= host.ends(5)
            else:
                self._disconnected.pop(host, None)
        for host, (made, begun) in list(self._begun.items()):
            if host.started or host.exit is not None:
                del self._begun[host]
            elif made != host.made:  # the next env_fn has its own time
                self._begun[host] = host.made, now
            elif begun + (SLOW_START if made < 0 else self._start_limit()) <= now:
                self._end_slow_start(host)
        self.timed = bool(self.watchdog or self._disconnected or self._begun)
        if self.watchdog is None:
            return []
        found = self.watchdog.look(lambda: [host.sent for host in self.hosts])
        return [(self.hosts[overdue.number], overdue) for overdue in found]

    def _end_slow_start(self, host: ProcessHost) -> None:
        """An env_fn has not returned for too long: its process is killed."""
        i = next(i for i in host.ids if i not in host.spaces)
        text = f"env_fn did not return within {self._start_limit():g} seconds"
        shown = self._kill_showing_stack(host, f"was killed: env {i}: {text}")
        host.start_error = EnvTimeoutError(f"env {i}: {text}; its process was killed{shown}", (i,))

    def end_stuck(self, host: ProcessHost, overdue: Overdue) -> tuple[list[int], str]:
        """Kill a stuck process; return the envs that are to blame, and what to tell of them."""
        assert self.watchdog is not None  # noqa: S101 - it found this
        named = host.ids if overdue.env_id is None else [overdue.env_id]
        did = "begin" if overdue.env_id is None else "end"
        fact = f"did not {did} its request within step_timeout={self.watchdog.limit} seconds"
        shown = self._kill_showing_stack(host, f"was killed: {name_ids(named)} {fact}")
        return list(named), f"{fact}; its process was killed{shown}"

    def _kill_showing_stack(self, host: ProcessHost, reason: str) -> str:
        """Kill a process that is stuck; return where it was, for a message."""
        host.kill_reason = reason
        stack = ""
        try:
            if self.watchdog is not None:
                stack = self.watchdog.stack_of(host.kill)
        finally:
            host.kill()
        host.ended |= host.ends(5)
        return f" here:\n\n{stack.rstrip()}" if stack else "; it did not show its Python stack"

    # --------------------------------------------------------------------------------------- end

    def close(self) -> list[EnvError]:
        """End all processes: ask, and after ``GRACE`` seconds kill.

        Returns:
            What closing the envs raised.
        """
        if self._closed or os.getpid() != self.pid:
            return []
        self._closed = True
        try:
            for host in self._living():
                host.ask_to_close()
            self._await_exits(GRACE)
            for host in self._living():
                host.kill(signal.SIGTERM)
                host.kill(signal.SIGCONT)
            self._await_exits(min(0.2, GRACE))
        finally:  # a second Ctrl-C is not patient
            for host in self._living():
                host.kill()
            self._await_exits(5)
            self._free()
        return [error for host in self.hosts for error in host.close_errors]

    def _living(self) -> list[ProcessHost]:
        return [host for host in self.hosts if host.exit is None]

    def _await_exits(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            for host in self.ended():
                host.reap()
                host.ended = False
            left = deadline - time.monotonic()
            if left <= 0 or not self._living():
                return
            self.channel.fetch([], 0, left)

    def _free(self) -> None:
        """Free what the processes shared, once they have ended."""
        self._finalizer.cancel()
        if self._alive >= 0:  # should a process have survived all this, the kernel has it now
            release(self._alive)
            self._alive = -1
        if self.channel.results >= 0:
            disown(self.channel.results)
            self.channel.close()
        while self._fds:
            os.close(self._fds.pop())
        if self.watchdog is not None:
            self.watchdog.close()

    def describe(self) -> str:
        """The number of processes and the start method, for a ``repr``."""
        return f", num_processes={len(self.hosts)}, context={self.context.get_start_method()!r}"
