"""``recv_async``: ``recv`` for programs with an asyncio event loop, which it does not block.

The event loop waits for a descriptor, or for the bell that threads ring for each result. Custom
workers and systems without epoll have neither: the loop then looks every few milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gymnasium.error import AlreadyPendingCallError

from envpool_py.engine.flight import NotYet
from envpool_py.env.block import StepResult
from envpool_py.worker.host_group import HostGroup

if TYPE_CHECKING:
    import asyncio

# Seconds between two looks where nothing says that a result has arrived.
_LOOK_EVERY = 2e-3


async def recv_async(self: Any) -> StepResult:
    """Return the next batch as ``recv`` does, while other coroutines of the event loop run.

    If nothing is in flight, the call waits until another coroutine sends something. All other calls
    of the pool are allowed meanwhile, but one coroutine at a time awaits this one. If it is
    cancelled, the results are kept for the next call. Envs in this process are stepped one by one.

    Raises:
        EnvError: as ``recv``.
        AlreadyPendingCallError: another coroutine awaits the next batch, or sessions are open.
        ClosedEnvironmentError: the pool is closed, or was closed meanwhile.
    """
    import asyncio  # noqa: PLC0415 - takes 30 ms, and few programs need it

    self._assert_open()
    flight, loop, event = self.engine.flight, asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()
    if flight.waiter is not None and flight.waiter is not task and not flight.waiter.done():
        text = "recv_async: another coroutine or session already awaits the results of this pool"
        raise AlreadyPendingCallError(text, "recv_async")
    begun: float | None = None
    flight.waiter = task
    try:
        with listening(flight.hosts, loop, event.set) as longest:
            await asyncio.sleep(0)  # even if a batch is there: other coroutines must run
            while True:
                event.clear()
                self._assert_open()
                seconds = longest
                if flight.states.num_in_flight:
                    begun = begun or time.monotonic()
                    try:
                        flight.polls_since = begun
                        return self.recv()  # type: ignore[no-any-return]
                    except NotYet as not_yet:
                        seconds = min(not_yet.seconds, longest)
                    finally:
                        flight.polls_since = None
                timer = loop.call_later(seconds, event.set)
                await event.wait()
                timer.cancel()
    finally:
        flight.polls_since = flight.waiter = None  # again: it may have been interrupted


@contextlib.contextmanager
def listening(
    hosts: HostGroup, loop: asyncio.AbstractEventLoop, look: Callable[[], object]
) -> Iterator[float]:
    """Call ``look`` when results arrive or the pool is closed; the value: how often it looks."""
    if hosts.supervisor is None:
        yield _LOOK_EVERY
        return
    poller, called_at = hosts.supervisor.poller, [0.0]

    def answer() -> None:
        called_at[0] = 0.0  # first: a result that arrives from now on calls again
        look()

    def ring() -> None:  # one call for all results before it, or each second: one may be lost
        if (now := time.monotonic()) > called_at[0] + 1.0:
            called_at[0] = now
            loop.call_soon_threadsafe(answer)

    poller.listener = ring
    fd = poller.duplicate()
    if fd >= 0:
        loop.add_reader(fd, look)
    try:
        yield 1.0 if (poller.rings or fd >= 0) and not hosts.local else _LOOK_EVERY
    finally:
        poller.listener = None
        if fd >= 0:
            loop.remove_reader(fd)
