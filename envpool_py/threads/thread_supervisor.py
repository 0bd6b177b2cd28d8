"""Start, watch, restart and end the threads of a pool, which it has in place of worker processes.

For the engine a thread is a process: the same messages, deadlines and restarts. A thread whose
process would be killed is abandoned: it may run on, but its results are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from envpool_py import coroutines, errors
from envpool_py.env.block import Block, Spec
from envpool_py.env.request import Request
from envpool_py.threads.env_thread import EnvThread, ThreadEnd, main
from envpool_py.worker import messages, process_host
from envpool_py.worker.host import Send
from envpool_py.worker.poller import QueuePoller
from envpool_py.worker.supervisor import GRACE, Supervisor
from envpool_py.worker.watchdog import Watchdog


class ThreadHost(process_host.ProcessHost):
    """Some envs in a thread; ``process`` is the thread."""

    kind, killed = "thread", "was abandoned"
    block: Block
    stream: Any
    _poller: Any
    _shared: Any

    def start(self, *, again: bool = False) -> None:
        self._reset()
        self.name, claimed = self.kind, self._shared.claimed
        for key, i in claimed.copy().items():  # other threads change it meanwhile
            if i in self.ids:  # of the thread before
                del claimed[key]
        self.stream = end = ThreadEnd(self._poller.note, self._look)
        loop = EnvThread(self.ids, end, lambda block: block, claimed)
        name = f"envpool_py {self.ids[0]}-{self.ids[-1]}"
        args = loop, end, self.env_fns
        self.process = threading.Thread(target=main, args=args, name=name, daemon=True)
        if again:
            self.restart_begun, self.deadline = True, time.monotonic() + process_host.SLOW_START
        self.exit = None
        try:
            self.process.start()
        except RuntimeError as error:
            self.exit = ""
            raise OSError(errno.EAGAIN, str(error)) from error

    def _look(self) -> bytes:
        """Handle what the thread has sent beside tokens."""
        self.ended |= self.exit is None and self.stream.is_over
        self.read()
        return b""

    def write(self, data: bytes) -> None:
        if self.exit is None:
            kind, body = messages.HEADER.unpack_from(data)[0], data[messages.HEADER.size :]
            self.stream.put(kind, self.block if kind == messages.ATTACH else body)

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        own = [(token, request.with_own_arguments()) for token, request in pairs]
        return partial(self.stream.put, messages.REQUESTS, own)

    def stack_of(self, thread: int) -> tuple[str, str]:
        thread = thread or self.process.ident
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - just for this
        stack = traceback.walk_stack(frame or sys._getframe())  # noqa: SLF001
        lines = [
            f'  File "{each.f_code.co_filename}", line {line} in {each.f_code.co_name}'
            for each, line in [*coroutines.frames_of(thread), *stack]
        ]
        return errors.stack_of("\n".join(["Thread (most recent call first):", *lines]))

    def terminate(self) -> None:
        """A thread takes no signal."""

    def kill(self, signum: int = 0, reason: str | None = None) -> None:  # noqa: ARG002 - as ProcessHost
        """Abandon the thread."""
        if reason is not None and self.kill_reason is None:
            self.kill_reason = f"{self.killed}: {reason}"
        if self.exit is not None:
            return
        self._look()
        if not self.ended:
            self.stream.abandon(self.process.ident)
            self.ended = True
            if self.kill_reason is None:
                text = f"its thread has not ended after {GRACE:g} seconds and was abandoned"
                message = f"{errors.name_ids(self.ids)}: {text}"
                self.close_errors.append(errors.EnvError(message, self.ids, "close"))

    def end(self, reason: str | None = None) -> None:
        """Abandon the thread, unless it ends by itself."""
        if reason is None:
            self.process.join(GRACE)
        self.kill(reason=reason)

    def reap(self) -> None:
        if self.exit is not None:
            return
        while self.read():
            pass
        self.deadline = math.inf
        if self.stream.is_over:
            self.process.join()
        self.exit = self.kill_reason or "has ended"

    def _loaded(self, data: Any, i: int, kind: str) -> Any:  # noqa: ARG002 - as ProcessHost
        return data

    def _error_in(self, i: int, data: Any) -> errors.EnvError:
        return errors.env_error(data[0], i, data[1])


class ThreadSupervisor(Supervisor):
    """Starts, watches and abandons the threads of these envs."""

    counted, make_poller = "num_threads", QueuePoller

    def starting(self, **_: Any) -> Any:
        return contextlib.nullcontext()

    def _check_context(self, context: Any) -> Any:
        return context

    def _packed(self, env_fn: Callable[[], Any], i: int) -> Any:  # noqa: ARG002 - as Supervisor
        return env_fn

    def _open(self) -> None:
        self._add_hosts(ThreadHost, None, SimpleNamespace(options=self._options, claimed={}))

    def make_block(self, spec: Spec) -> Block:
        block = Block(spec._replace(timed=True))
        if self._options.step_timeout is not None:
            self.watchdog = Watchdog(self._options.step_timeout, block.heartbeats)
        self._attach_message = messages.pack(messages.ATTACH, b"")
        for host in self.hosts:
            host.block = block  # type: ignore[attr-defined]
            host.write(self._attach_message)
        return block

    def describe(self) -> str:
        return f", num_threads={len(self.hosts)}"
