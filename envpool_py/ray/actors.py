"""``Actors`` and ``ActorHost``: envs in actors of Ray, in the places of worker processes.

Only the way to an actor differs from that to a worker process: a frame is the argument of a remote
call, whose reply brings tokens, rows and what lies beside them. The block is the driver's own, and
the caller copies rows into it. Threads of Ray only note that a call has ended (``ActorChannel``). A
second call, ``watch``, goes on as long as the actor: it tells its end, or that an env is stuck.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray

from envpool_py.block import Block, Spec
from envpool_py.errors import EnvError, WorkerDiedError, name_ids
from envpool_py.ray.actor import EnvActor
from envpool_py.ray.messages import ACTIONS, HEAD, PLACES, Item, Rows
from envpool_py.watchdog import Overdue
from envpool_py.worker import channel, process
from envpool_py.worker.channel import HEADER, KIND_BITS, RESET, TOKEN_BYTES, Channel
from envpool_py.worker.process import ProcessHost
from envpool_py.worker.processes import Processes

_LONGEST = 1e6  # seconds

#: Called with a list for tokens, takes in how a call has ended; true if that is more than results.
Take = Callable[[list[bytes]], bool]


class ActorChannel(Channel):
    """Replies of all actors of a pool, and the ends of actors."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived: deque[Take] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._noticed = False

    def note(self, take: Take) -> None:
        """Have the caller call ``take``; in a thread of Ray."""
        self._arrived.append(take)
        self._bell.put(None)

    def fetch(self, chunks: list[bytes], look_for: float, timeout: float | None) -> bool:  # noqa: ARG002
        """Wait for replies, or for anything else; see ``Channel``."""
        if not self._noticed and not self._arrived:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=_LONGEST if timeout is None else min(timeout, _LONGEST))
        self.collect(chunks)
        noticed, self._noticed = self._noticed, False
        return noticed

    def collect(self, chunks: list[bytes]) -> bool:
        """Take what is there; return whether there were any results."""
        count = len(chunks)
        while not self._bell.empty():
            self._bell.get()
        while self._arrived:
            self._noticed |= self._arrived[0](chunks)
            self._arrived.popleft()  # last: should an interrupt come before, it is taken once more
        return len(chunks) > count

    def wake(self) -> None:
        """End a sleep that is under way in another thread."""
        self._bell.put(None)


class ActorHost(ProcessHost):
    """Some envs in one actor; ``process`` is its handle, ``pid`` its process on ``node``."""

    _shared: Any
    _channel: Any
    stream: Any
    rows: Rows
    #: The env that has not ended its request in time, and its stack.
    stuck: tuple[int, str] | None

    def start(self, *, again: bool = False) -> None:
        """Have Ray start an actor, which makes its envs meanwhile."""
        self._reset()
        items: deque[Item] = deque()
        self.stream = SimpleNamespace(torn=False, garbled=False, ended=False, sent=0, items=items)
        self.stream.read = lambda: items
        self.stuck, self.node, self.pid, self._cause = None, "", 0, ""
        self.process = self._shared.actor_class.remote(self.ids, self._shared.step_timeout)
        self._handle = self.process.handle
        self._call(self.process.build, self._greeted, self._env_fns)
        self._call(self.process.watch.options(concurrency_group="watch"), self._found)
        if again:
            self.restarting, self.deadline = True, time.monotonic() + process.SLOW_START
        self.exit = None

    def _call(self, method: Any, took: Callable[[Any, list[bytes]], bool], *args: Any) -> None:
        """Call a method of the actor; ``took`` is to take what it returns."""
        take = partial(self._take, self.process, took)
        future = method.remote(*args).future()
        future.add_done_callback(lambda done: self._channel.note(partial(take, done)))

    def _take(self, actor: Any, took: Any, done: Any, chunks: list[bytes]) -> bool:
        """Take in the end of a call, or of the actor; what an earlier actor says is dropped."""
        if actor is not self.process or self.exit:
            return False
        error = done.exception()
        if error is None:
            return bool(took(done.result(), chunks))
        # The last line says why; what follows is advice.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = (lines or [type(error).__name__])[-1].partition(" Some common causes")[0]
        self._cause, self.ended = self._cause or cause, True
        return True

    def _greeted(self, reply: tuple[str, int, list[Item]], _: list[bytes]) -> bool:
        self.node, self.pid, items = reply
        self.stream.items.extend(items)
        return self.read()

    def _found(self, stuck: tuple[int, str], _: list[bytes]) -> bool:
        self.stuck = stuck
        return True

    def _answered(self, reply: Any, chunks: list[bytes]) -> bool:
        data = memoryview(reply)
        count, groups = HEAD.unpack_from(data)
        end = HEAD.size + count * TOKEN_BYTES
        tokens, data = bytes(data[HEAD.size : end]), data[end:]
        if groups:
            data = self.rows.put(groups, np.frombuffer(tokens, np.int64), data)
        if len(data):
            self.stream.items.extend(pickle.loads(data))  # noqa: S301 - from our own actor
            self.read()
        if tokens:
            chunks.append(tokens)
        return False

    def _closed(self, reply: Any, chunks: list[bytes]) -> bool:
        self._answered(reply, chunks)
        self.kill()
        return False

    def write(self, data: bytes) -> None:
        """Send a frame, with what it needs of the block."""
        if self.exit is not None:
            return
        kind = HEADER.unpack_from(data)[0] & ((1 << KIND_BITS) - 1)
        if kind == channel.CLOSE:
            if self.started and ray.is_initialized():
                self._call(self._handle, self._closed, data)
            else:
                self.kill()
            return
        if kind <= channel.TOKENS_PROMPT:
            tokens = np.frombuffer(data, np.int64, offset=HEADER.size)
            data += b"" if tokens[0] & RESET else self.rows.take(ACTIONS, tokens)
        elif kind == channel.ATTACH:  # restarted, it goes on counting
            data += self.rows.take(PLACES, np.array(self.ids))
        self.stream.sent += 1
        self._call(self._handle, self._answered, data)

    def kill(self, signum: int = signal.SIGKILL, reason: str | None = None) -> None:
        """End the actor; of signals there is this one."""
        self.kill_reason = self.kill_reason or reason
        if self.exit is None and signum == signal.SIGKILL:
            self.ended |= not ray.is_initialized()  # it has ended with Ray
            if not self.ended:
                ray.kill(self.process)

    def end(self, reason: str | None = None) -> None:
        """End the actor; nothing that it still says counts."""
        self.kill(reason=reason)
        self.ended = True

    def reap(self) -> None:
        """The actor has ended, or is not needed any more."""
        if self.exit is None:
            self.kill()
            self.deadline = math.inf
            self.exit = self.kill_reason or f"died: {self._cause}"

    def death_of(self, i: int) -> WorkerDiedError:
        """A new error that says how env ``i``'s actor ended, and where."""
        others = [other for other in self.ids if other != i]
        shared = f"; it was also that of {name_ids(others)}" if others else ""
        where = f" on node {self.node}" if self.node else ""
        text = f"{self.exit or self.kill_reason}{'' if self.started else ' while starting'}"
        return WorkerDiedError(f"env {i}: the actor{where} {text}{shared}", (i, *others))


class Actors(Processes):
    """The actors over which the envs of ``env_fns`` are spread; ``options`` are Ray's."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: Mapping[str, Any],
        count: int,
        *,
        step_timeout: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(env_fns, "spawn", count, step_timeout=step_timeout)  # pickles env_fns
        self.channel, self.timed, self._limit = ActorChannel(), False, step_timeout
        self._remote_options = options
        atexit.register(self.close)  # before Ray's own end

    def _open(self) -> None:
        if not ray.is_initialized():
            ray.init()
        remote = ray.remote(concurrency_groups={"watch": 1}, **self._remote_options)
        shared: Any = SimpleNamespace(step_timeout=self._limit, actor_class=remote(EnvActor))
        context: Any = None
        for number, share in enumerate(self._shares):
            ids = share.tolist()
            own = [self._fns[i] for i in ids]
            self.hosts.append(ActorHost(number, ids, own, context, shared, self.channel))

    def make_block(self, spec: Spec) -> Block:
        """A block in the driver's own memory; each actor has another, for its own envs."""
        block = Block(spec)
        self._attach_message = channel.frame(channel.ATTACH, pickle.dumps(spec))
        for host in self.hosts:
            host.rows = Rows(block, host.ids[0], len(host.ids))  # type: ignore[attr-defined]
            host.write(self._attach_message)
        return block

    def describe(self) -> str:
        """What a pool's ``repr`` says of its actors."""
        return f", num_actors={len(self.hosts)}"

    def look(self) -> list[tuple[ProcessHost, Overdue]]:
        """End what must not go on; return the actors of which an env is stuck."""
        super().look()
        stuck = [(host, getattr(host, "stuck", None)) for host in self.hosts if host.exit is None]
        return [(host, Overdue(host.number, found[0])) for host, found in stuck if found]

    def end_stuck(self, host: ProcessHost, overdue: Overdue) -> tuple[list[int], str]:
        """End the actor of a stuck env; return the env, and what to tell of it."""
        fact = f"did not end its request within step_timeout={self._limit} seconds"
        host.end(f"was killed: env {overdue.env_id} {fact}")
        stack = host.stuck[1].rstrip()  # type: ignore[attr-defined]
        return host.ids if overdue.env_id is None else [overdue.env_id], (
            f"{fact}; its actor was killed here:\n\n{stack}"
        )

    def close(self) -> list[EnvError]:
        """Close the envs and end the actors; return what closing the envs raised."""
        if os.getpid() == self._pid:
            atexit.unregister(self.close)
        return super().close()
