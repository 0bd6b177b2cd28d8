"""``ActorSupervisor`` and ``ActorHost``: envs in actors of Ray, in the places of worker processes.

A message is the argument of a remote call; the reply has tokens, rows and the values beside them.
The block is the driver's own; the caller copies rows into it. A second call, ``watch``, goes on as
long as the actor: it tells its end, or that an env is stuck. The driver finds actors that are
stopped or frozen, which cannot tell anything.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from envpool_py.env.block import Block, Spec
from envpool_py.env.request import RESET
from envpool_py.errors import EnvTimeoutError
from envpool_py.ray.actor import ACTIONS, POSITIONS, EnvActor, Event, Rows
from envpool_py.worker import messages
from envpool_py.worker.host import Exit, Life, RemoteHost
from envpool_py.worker.messages import HEADER
from envpool_py.worker.poller import QueuePoller
from envpool_py.worker.supervisor import UNDONE_IN, Supervisor

#: Seconds beyond ``step_timeout`` for each env, after which a silent actor is killed: more than one
#: needs to end itself while an env holds the GIL.
SILENT_FOR = 10.0

# Functions that run at exit, such as ``Supervisor.close``, must run before Ray ends.
atexit.register(util._run_finalizers, 0)  # type: ignore[attr-defined]  # noqa: SLF001


def _driver() -> str:
    """The id of this driver, another one in each session; empty where Ray was shut down."""
    context = ray.get_runtime_context() if ray.is_initialized() else None
    return f"{context.get_job_id()} {context.get_node_id()}" if context else ""


@dataclass(eq=False, repr=False)
class ActorHost(RemoteHost):
    """Some envs in one actor, which ``make`` starts."""

    poller: QueuePoller
    make: Callable[[list[int]], Any]
    step_timeout: float | None

    def _launch(self, env_fns: list[Any]) -> None:
        self.received = deque()
        # The env that has not ended its request in time, the phase of the request, and where it
        # was: line and stack.
        self.stuck: tuple[int, int, tuple[str, str]] | None = None
        # For each call without a reply, when it was sent or came first; the first is under way.
        self.since: deque[float] = deque()
        self.name, self._is_gone = "actor", False
        self.process, self._driver = self.make(self.ids), _driver()
        self._ask(self.process.greet, self._take_name)
        self._ask(self.process.build, self._take_reply, env_fns)
        watch = self.process.watch.options(concurrency_group="watch")
        self._call(watch, self._take_stuck, self.step_timeout)
        self._ask_for_event(known=False)

    def _ask(self, method: Any, handler: Callable[[Any], bytes], *args: Any) -> None:
        """Call a method that is to return soon, after those that were called before."""
        since = self.since  # that of this actor, not of the next one

        def note_reply(_: Any) -> None:  # in a thread of Ray
            since.popleft()
            if since:
                since[0] = time.monotonic()

        since.append(time.monotonic())
        self._call(method, handler, *args).add_done_callback(note_reply)

    def _call(self, method: Any, handler: Callable[[Any], bytes], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the actor; ``handler`` gets what it returns."""
        take = partial(self._take, self.process, handler)
        future: Any = Future()
        if self._driver == _driver():
            future = method.remote(*args, **kwargs).future()
        else:  # that would start another Ray, or raise there
            future.set_exception(RayError("Ray was shut down"))
        future.add_done_callback(lambda done: self.poller.put(partial(take, done)))
        return future

    def _take(self, actor: Any, handler: Callable[[Any], bytes], done: Any) -> bytes:
        """Take in the end of a call, or of the actor; what an earlier actor says is dropped."""
        if actor is not self.process or self.life is Life.ENDED:
            return b""
        error = done.exception()
        if error is None:
            return handler(done.result())
        # The last line says why; what follows is advice.
        cause = str(error).strip().rpartition("\n")[2].partition(" Some common causes")[0]
        self._note_exit("died: " + cause.strip(" .\t"))
        self.kill()  # it may run on, and only not be available
        return b""

    def _take_name(self, name: str) -> bytes:
        self.name = name
        return self._take_reply([b"", 0, b"", [(self.ids[0], messages.MADE, b"")]])

    def _take_stuck(self, stuck: tuple[int, int, tuple[str, str]]) -> bytes:
        self.stuck = stuck
        self.poller.end_noticed = True
        return b""

    def _take_reply(self, reply: list[Any]) -> bytes:
        tokens, groups, rows, items = reply
        self.heartbeat["env"] = 0  # the request whose phase was told has ended
        if groups:
            self.rows.write(groups, np.frombuffer(tokens, np.int64), rows)
        self.received.extend(items)
        self.read()
        return bytes(tokens)

    def _ask_for_event(self, *, known: bool) -> None:
        """Wait for the next event; in a thread of Ray, so that the actor can go on at once."""
        actor = self.process

        def go_on(event: Any) -> None:
            if event.exception() is None and self.process is actor:
                self._ask_for_event(known=True)

        method = actor.next_event.options(concurrency_group="events")
        self._call(method, self._take_event, known=known).add_done_callback(go_on)

    def _take_event(self, event: Event) -> bytes:
        i, phase, items = event
        self._take_reply([b"", 0, b"", items])
        self.heartbeat["env"], self.heartbeat["phase"] = ~i, phase  # as a process would
        if len(self.closed_envs) == len(self.ids):
            self.kill()
        return b""

    def attach(self, block: Block) -> None:
        """Let the actor return rows for this block, and continue at its positions."""
        self.rows = Rows(block)
        super().attach(block)

    def write(self, data: bytes) -> None:
        """Send a message, with what it needs of the block."""
        if not self._is_alive():
            return
        kind, _ = HEADER.unpack_from(data)
        if kind == messages.CLOSE and self.life is Life.STARTING:
            self.kill()
            return
        if kind <= messages.TOKENS_EARLY:
            tokens = np.frombuffer(data, np.int64, offset=HEADER.size)
            data += b"" if tokens[0] & RESET else self.rows.read(ACTIONS, tokens)
        elif kind == messages.ATTACH:  # restarted, it goes on counting
            data += self.rows.read(POSITIONS, np.array(self.ids))
        self._ask(self.process.handle, self._take_reply, data)

    def _kill(self) -> None:
        """Kill the actor and ignore its later replies."""
        self._is_gone = True
        if self._driver == _driver():  # else it has ended with Ray itself
            ray.kill(self.process)

    def stack_of(self, thread: int) -> tuple[str, str]:  # noqa: ARG002
        """Return the line and the frames of the env that is stuck."""
        return self.stuck[2] if self.stuck else ("", "")

    def has_ended(self) -> bool:
        """Whether the actor has ended or was killed."""
        return self._is_gone

    def _free(self) -> Exit:
        return Exit("has ended")


class ActorSupervisor(Supervisor):
    """Starts, watches and ends the actors of these envs; ``context``: their options for Ray."""

    make_poller = QueuePoller
    hosts: list[Any]  # of ActorHost

    def _adopt_context(self, context: Any) -> Any:
        self._remote_options = context
        return multiprocessing.get_context("spawn")  # pickles env_fns

    def _open(self) -> None:
        remote = ray.remote(concurrency_groups={"watch": 1, "events": 1}, **self._remote_options)
        make, limit = remote(EnvActor).remote, self._options.step_timeout
        self._add_hosts(partial(ActorHost, make=make, step_timeout=limit))

    def _new_block(self, spec: Spec) -> Block:
        return Block(spec)  # in the driver's own memory; each actor has another, for its own envs

    def describe(self) -> str:
        """What a pool's ``repr`` says of its actors."""
        return f", num_actors={len(self.hosts)}"

    def begun(self, ids: set[int]) -> set[int]:
        """Return all of them: an actor does not tell the driver which request it has begun."""
        return ids

    def enforce_deadlines(self) -> list[EnvTimeoutError]:
        """Kill late and silent actors, and those with a stuck env; return the errors of envs."""
        errors = super().enforce_deadlines()
        limit, now = self._options.step_timeout, time.monotonic()
        for host in self.hosts:
            if host.life is not Life.RUNNING or host.has_ended():
                continue
            if host.stuck:
                i, phase, _ = host.stuck
                host.heartbeat["env"], host.heartbeat["phase"] = i + 1, phase  # as a process would
                errors += host.kill_slow([i], 0, self.overdue_text(UNDONE_IN[phase]))
                continue
            longest = math.inf if limit is None else (len(host.ids) + 1) * limit + SILENT_FOR
            if now > min(host.since.copy(), default=now) + longest:
                fact = f"has not answered for {longest:g} seconds, with step_timeout={limit}"
                errors += host.kill_slow(host.ids, 0, fact)
        return errors
