"""Threads with envs, in place of worker processes: start them, exchange messages, end them.

For the engine a thread is a process: the same messages, deadlines and restarts. It runs the loop of
a worker process, with queues in place of its connection.

A thread cannot be killed, only abandoned: it may run on, but its results are dropped, and it must
not write rows of the env that was recreated in its place. So a thread holds a lock, except while
code of its env runs and while it waits for requests. To abandon the thread, the caller takes this
lock and keeps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from envpool_py import interrupts
from envpool_py.env import coroutine_envs, failures
from envpool_py.env.block import Block, Spec
from envpool_py.env.executor import Abandoned, Executor
from envpool_py.env.request import Request
from envpool_py.env.spaces import snapshot
from envpool_py.errors import name_ids
from envpool_py.worker import messages
from envpool_py.worker.builtin_env_workers import RemoteEnvWorker
from envpool_py.worker.host import Exit, Life, RemoteHost, Send
from envpool_py.worker.poller import QueuePoller
from envpool_py.worker.supervisor import Supervisor
from envpool_py.worker.watchdog import stack_of_thread
from envpool_py.worker.worker_loop import EnvLoop, run_envs

#: Seconds for which the caller waits until a thread has finished the row that it writes.
_ROW_ENDS_WITHIN = 1.0


class ThreadConnection:
    """Both ends of the connection to a thread.

    ``note`` takes tokens, or ``look``, which then handles the ``items``: token, status and value of
    what the block cannot hold. ``is_over``: whether the thread has nothing left to do.
    ``inbox``: the messages that are not handled yet, the first of which the thread carries out; at
    first it makes its envs, for which there is None. ``bell``: has an item after each message.
    ``cancelled``: for each env the last message whose requests are cancelled; -1: of its making.
    """

    def __init__(self, note: Callable[[Any], None], look: Callable[[], bytes]) -> None:
        self.inbox = deque[Any]([None])
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.items: deque[Any] = deque()
        self.is_over = self.is_abandoned = False
        self.publish, self.send = note, partial(note, look)
        self.add: Callable[..., None] = lambda *item: self.items.append(item)
        self.cancelled: dict[int | None, Any] = {}
        self.runner: coroutine_envs.Runner | None = None  # if the envs are in the event loop
        self._use = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._holds_lock = False

    # ------------------------------------------------------------------------------ in the thread

    def enter(self) -> None:
        """Release the lock: the thread may be abandoned from now on."""
        if self._holds_lock:
            self._holds_lock = False
            self._lock.release()

    def leave(self) -> None:
        """Take the lock; Abandoned if the caller has taken it."""
        if not self._holds_lock:
            if not self._lock.acquire(blocking=False):
                raise Abandoned
            self._holds_lock = True

    def receive(self) -> Any:
        self.enter()
        self.inbox.popleft()
        while not self.inbox:
            self.bell.get() if self.runner is None else self.runner.wait_for(self.inbox)
        self.leave()
        return self.inbox[0]

    def move_to_loop(self, *runner: Any) -> None:
        """Go on in the event loop, in a ``Runner`` with these arguments."""
        self.leave()  # raises if the caller has abandoned the thread
        loop = self._use.enter_context(coroutine_envs.running_loop())
        self.runner = coroutine_envs.Runner(loop, *runner)
        self.enter()  # not in the loop: while code blocks that, ``abandon`` would wait
        self.runner.start()

    def finish(self) -> None:
        self._use.close()
        self.is_over = True
        self.send()

    # ------------------------------------------------------------------------------ in the caller

    def post(self, *message: Any) -> None:
        self.inbox.append(message)  # an interrupt below is followed by another ``notify``
        self.notify()

    def notify(self) -> None:
        self.bell.put(None)
        if self.runner is not None:
            self.runner.notify()

    def abandon(self, thread: int) -> None:
        """Let the thread write no more; an exception ends it when it next runs Python code."""
        self.is_abandoned = True
        self._lock.acquire(timeout=_ROW_ENDS_WITHIN)
        self.post(messages.CLOSE, None)
        if self.runner is None:
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(thread), ctypes.py_object(Abandoned))
            coroutine_envs.cancel_coroutine_of(thread)
        else:
            self.runner.cancel(any_request=True)


class EnvThread(EnvLoop):
    """The envs ``ids`` in a thread; nothing is pickled, values are copied."""

    _load = staticmethod(lambda value: value)
    _dump = staticmethod(lambda value, _: value if "reply" in value else snapshot(value))
    _dump_error = staticmethod(lambda error, kind: (error, kind))

    def _attach(self, block: Block, *_: Any) -> None:
        super()._attach(block, self._connection.enter, self._connection.leave)

    def belongs_in_loop(self) -> bool:
        envs = [executor.env for executor in self._executors.values()]
        return all(map(coroutine_envs.belongs_in_loop, envs))

    def is_cancelled(self) -> bool:
        """Whether the request is cancelled that the thread carries out."""
        env = self.heartbeat.env if self._connection.cancelled and self.heartbeat else -1
        last = self._connection.cancelled.get(env, self)
        return any(message is last for message in [*self._connection.inbox])

    def close(self) -> None:
        self._connection.enter()  # code of the envs runs, so the thread may be abandoned
        super().close()


def main(loop: EnvThread, end: ThreadConnection, env_fns: Sequence[Any] | None) -> None:
    """Carry out the caller's requests until the caller ends or abandons the thread.

    The thread ends earlier if its envs need none: then this goes on in the event loop, with
    ``env_fns`` None.
    """
    coroutine_envs.thread_local.is_cancelled = loop.is_cancelled
    try:
        with contextlib.suppress(Abandoned):
            try:
                made = env_fns is None or loop.make_envs(env_fns)
                if made and env_fns is not None and loop.belongs_in_loop():
                    go_on = partial(main, loop, end, None)
                    end.move_to_loop(go_on, loop.is_cancelled, name_ids(loop.ids))
                else:
                    run_envs(loop, end.receive, made=made)
            except Abandoned:
                loop.close()
    finally:
        if end.runner is None or env_fns is None:
            end.finish()


@dataclass(eq=False, repr=False)
class ThreadHost(RemoteHost):
    """Some envs in a thread; the threads of a pool share ``claimed``, see ``claim_instance``.

    ``runs_cancelled``: whether the thread carries out a request that was cancelled.
    """

    poller: QueuePoller
    claimed: dict[int, tuple[int, Executor]]

    name, how_killed = "thread", "was abandoned"

    def _launch(self, env_fns: list[Any]) -> None:
        if self.life is Life.ENDED:
            for key, (i, _) in self.claimed.copy().items():  # other threads change it meanwhile
                if i in self.ids:  # of the thread before
                    del self.claimed[key]
        self._end = end = ThreadConnection(self.poller.put, self._handle_items)
        self.received = end.items
        loop = EnvThread(self.ids, end, self.claimed)
        args, self.runs_cancelled = (loop, end, env_fns), loop.is_cancelled
        self.name, self.how_killed = type(self).name, type(self).how_killed
        name = f"envpool_py {self.ids[0]}-{self.ids[-1]}"
        self.process = threading.Thread(None, main, name, args, daemon=True)
        try:
            self.process.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def _handle_items(self) -> bytes:
        """Handle what the thread has sent beside tokens."""
        self.poller.end_noticed |= self._end.is_over
        self.read()
        return b""

    def _post(self, kind: int, body: Any) -> None:
        self._end.post(kind, body)  # after the end of the thread nobody reads its messages
        self.num_sent += 1

    def attach(self, block: Block) -> None:
        self._post(messages.ATTACH, block)

    def write(self, data: bytes) -> None:
        if self._is_alive():
            kind, _ = messages.HEADER.unpack_from(data)
            if kind == messages.CLOSE:
                self._cancel([-1, *self.ids])
            self._post(kind, data[messages.HEADER.size :])

    def prepare_plain_requests(self, data: bytes, *, publish_early: bool) -> Send:
        kind = messages.TOKENS_EARLY if publish_early else messages.TOKENS
        return partial(self._post, kind, data)

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        own = [(token, request.with_own_arguments()) for token, request in pairs]
        return partial(self._post, messages.REQUESTS, own)

    def cancel(self, ids: set[int]) -> set[int]:
        self._cancel(ids)
        return ids if self.runner is None else set()  # a coroutine is cancelled where it waits

    def _cancel(self, ids: Iterable[int]) -> None:
        """Cancel the coroutines of what has been sent to these envs so far; -1: of their making."""
        if self._is_alive():
            if sent := [*self._end.inbox]:
                self._end.cancelled.update(dict.fromkeys(ids, sent[-1]))
                self._end.notify()
            if (runner := self.runner) is not None:
                runner.cancel()

    def drops_cancelled(self) -> bool:
        """Whether no code of an env goes on, or begins, for a request that is cancelled."""
        return not self._end.inbox or self.runner is not None

    @property
    def runner(self) -> coroutine_envs.Runner | None:
        """The runner of the envs, or of the coroutine for which their thread waits."""
        return self._end.runner or coroutine_envs.runner_of(self.process.ident)

    def stack_of(self, thread: int) -> tuple[str, str]:
        """Return as ``Stacks.read`` where the envs are now, or what blocks their event loop.

        From then on errors name a coroutine, if it is one that runs.
        """
        thread = thread or self.process.ident
        if (runner := self.runner) is None:
            return stack_of_thread(thread)
        self.name, self.how_killed = "coroutine", "was cancelled"
        name, coroutine = runner.blocked_by(), runner.coroutine
        if name == runner.name:
            return stack_of_thread(runner.loop.ident or 0)
        line, stack = stack_of_thread(thread, coroutine) if coroutine or not name else ("", "")
        if name:  # maybe only in this moment
            other, stack = stack_of_thread(runner.loop.ident or 0)
            line += f"; the event loop runs {name}{other}"
        return line, stack

    def _kill(self) -> None:
        """Abandon the thread."""
        self._handle_items()
        self._end.abandon(self.process.ident)

    def note_slow_close(self, seconds: float) -> None:
        if self._is_alive() and self.runner is not None:
            self.name = "coroutine"
        super().note_slow_close(seconds)

    def has_ended(self) -> bool:
        return bool(self._end.is_over or self._end.is_abandoned)

    def _free(self) -> Exit:
        if self._end.is_over:
            self.process.join()
            if self._end.runner is not None and not self._end.runner.loop.users:
                self._end.runner.loop.join(1)
        return Exit("has ended")

    def _unpack(self, i: int, status: int, data: Any, kind: str = "") -> Any:  # noqa: ARG002
        is_error = status in (messages.FAILURE, messages.CLOSED)
        return failures.env_error(data[0], i, data[1]) if is_error else data


class ThreadSupervisor(Supervisor):
    """Starts, watches and abandons the threads of these envs."""

    counted_by, make_poller = "num_threads", QueuePoller

    def starting(self, **_: Any) -> Any:
        return interrupts.deferred()

    def _adopt_context(self, context: Any) -> Any:
        return context

    def _open(self) -> None:
        if self._options.fresh_process:
            raise ValueError("fresh_process: threads are in one process; use ShmemVectorEnv")
        self._add_hosts(partial(ThreadHost, claimed={}))

    def _new_block(self, spec: Spec) -> Block:
        return Block(spec._replace(local=True))


class ThreadEnvWorker(RemoteEnvWorker):
    """A worker whose env is in a thread of this process, which starts with the first request.

    Args:
        env_fn: makes the env; called once, in the thread.
    """

    make_supervisor = ThreadSupervisor
