"""A thread with some envs: the loop of a worker process, with queues in place of its connection.

A thread cannot be killed, only abandoned. If an abandoned thread goes on, it must not write rows of
the env that was recreated in its place. So a thread holds a lock, except while code of its env runs
and while it waits for requests. To abandon the thread, the caller takes this lock and keeps it.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from envpool_py import coroutines
from envpool_py.env.block import Block
from envpool_py.env.executor import Abandoned
from envpool_py.env.heartbeat import Heartbeat
from envpool_py.env.spaces import snapshot
from envpool_py.worker import messages
from envpool_py.worker.child import EnvLoop, run_envs

#: Seconds for which the caller waits until a thread has finished the row that it writes.
_WRITES_FOR = 1.0


class ThreadEnd:
    """Both ends of the connection to a thread.

    ``note`` takes tokens, or ``look``, which then handles the items.

    Attributes:
        inbox: the messages for the thread.
        items: token, status and value of what the block cannot hold.
        is_over: whether the thread has nothing left to do.
    """

    def __init__(self, note: Callable[[Any], None], look: Callable[[], bytes]) -> None:
        self.inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.items: deque[tuple[int, int, Any]] = deque()
        self.is_over = False
        self.publish, self.send = note, partial(note, look)
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

    def receive(self) -> tuple[int, Any]:
        self.enter()
        message = self.inbox.get()
        self.leave()
        return message

    def add(self, token: int, status: int, value: Any) -> None:
        self.items.append((token, status, value))

    # ------------------------------------------------------------------------------ in the caller

    def read(self) -> deque[tuple[int, int, Any]]:
        return self.items

    def abandon(self, thread: int) -> None:
        """Let the thread write no more; an exception ends it when it next runs Python code."""
        self._lock.acquire(timeout=_WRITES_FOR)
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        raise_in(ctypes.c_ulong(thread), ctypes.py_object(Abandoned))
        coroutines.cancel(thread)
        self.inbox.put((messages.CLOSE, None))


class EnvThread(EnvLoop):
    """The envs ``ids`` in a thread; nothing is pickled, values are copied."""

    _load = staticmethod(lambda value: value)
    _dump = staticmethod(
        lambda values, _: values if "reply" in values else snapshot(values)  # as an ``InlineHost``
    )
    _dump_error = staticmethod(lambda error, kind: (error, kind))

    def _attach(self, block: Block) -> None:
        end = self._end
        self.heartbeat = Heartbeat(block.heartbeats[self._ids[0]], end.enter, end.leave)
        self._make_loop(block, block.keep_info)

    def close(self) -> None:
        self._end.enter()  # code of the envs runs, so the thread may be abandoned
        super().close()


def main(loop: EnvThread, end: ThreadEnd, env_fns: Sequence[Any]) -> None:
    """Carry out the caller's requests until the caller ends or abandons the thread."""
    try:
        try:
            run_envs(loop, end.receive, env_fns)
        except Abandoned:
            loop.close()
    except Abandoned:
        pass
    finally:
        end.is_over = True
        end.send()
