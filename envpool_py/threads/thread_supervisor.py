"""Start, watch, restart and end the threads of a pool, which it has in place of worker processes.

For the engine a thread is a process: the same messages, deadlines and restarts. A thread whose
process would be killed is abandoned: it may run on, but its results are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from envpool_py import errors
from envpool_py.env.block import Block, Spec
from envpool_py.env.request import Request
from envpool_py.threads.env_thread import EnvThread, ThreadEnd, main
from envpool_py.worker import messages, process_host
from envpool_py.worker.env_workers import SubprocEnvWorker
from envpool_py.worker.host import Send
from envpool_py.worker.poller import QueuePoller
from envpool_py.worker.supervisor import GRACE, Supervisor
from envpool_py.worker.watchdog import stack_of_thread


class ThreadHost(process_host.ProcessHost):
    """Some envs in a thread; ``process`` is the thread."""

    name, killed = "thread", "was abandoned"
    _poller: Any
    _shared: Any

    def _launch(self) -> None:
        claimed = self._shared.claimed
        for key, i in claimed.copy().items():  # other threads change it meanwhile
            if i in self.ids:  # of the thread before
                del claimed[key]
        self.stream = end = ThreadEnd(self._poller.note, self._look)
        args = EnvThread(self.ids, end, lambda block: block, claimed), end, self.env_fns
        name = f"envpool_py {self.ids[0]}-{self.ids[-1]}"
        self.process = threading.Thread(target=main, args=args, name=name, daemon=True)
        self.exit = None  # first, so that ``close`` ends it after an interrupt
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

    def _put(self, kind: int, body: Any) -> None:
        if self.exit is None:
            self.sent += 1
            self.stream.inbox.put((kind, body))

    def attach(self, block: Block) -> None:
        self._put(messages.ATTACH, block)

    def write(self, data: bytes) -> None:
        kind, _ = messages.HEADER.unpack_from(data)
        self._put(kind, data[messages.HEADER.size :])

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        own = [(token, request.with_own_arguments()) for token, request in pairs]
        return partial(self._put, messages.REQUESTS, own)

    def _stack_of(self, thread: int) -> tuple[str, str]:
        return stack_of_thread(thread or self.process.ident)

    def signal(self, signum: int) -> None:
        """Abandon the thread; other signals have no effect."""
        if self.exit is not None or signum != process_host.KILL:
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
        self.kill(reason)

    def _free(self) -> str:
        if self.stream.is_over:
            self.process.join()
        return "has ended"

    def _unpack(self, i: int, status: int, data: Any, kind: str = "") -> Any:  # noqa: ARG002
        is_error = status in (messages.FAILURE, messages.CLOSE_FAILURE)
        return errors.env_error(data[0], i, data[1]) if is_error else data


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

    def _new_block(self, spec: Spec) -> Block:
        return Block(spec._replace(timed=True))

    def describe(self) -> str:
        return f", num_threads={len(self.hosts)}"


class ThreadEnvWorker(SubprocEnvWorker):
    """A worker whose env is in a thread of this process, which starts with the first request.

    Args:
        env_fn: makes the env; called once, in the thread.
    """

    make_supervisor = ThreadSupervisor

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
