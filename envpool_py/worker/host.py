"""Hosts: where some envs of a pool are. The interface, and the base of those that may end."""

from __future__ import annotations

import enum
import math
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from envpool_py import errors, interrupts
from envpool_py.env import failures
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces, Recreated
from envpool_py.env.heartbeat import HEARTBEAT, begun_env
from envpool_py.env.request import ASK, ID_MASK, RESET, Request
from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.interrupts import ordinary
from envpool_py.worker import messages, watchdog
from envpool_py.worker.poller import Poller

#: Seconds that a host may take to end, once its connection is closed or an env_fn has raised.
ENDS_WITHIN = 1.0

# The bits of a token that are the key of an item: an env has one item of a row, one of a reply.
_KEY_MASK = ID_MASK | ASK
_UNREADABLE = "it sent what cannot be read"
_SLOW_CLOSE = "close has not ended in time"

#: Sends a message that was prepared before.
Send: TypeAlias = "Callable[[], object]"


class Life(enum.Enum):
    """The life of a host: NEW, STARTING, RUNNING, ENDED, and after a restart STARTING again."""

    NEW = "it was not started yet"
    STARTING = "its process was started and makes the envs"
    RUNNING = "its envs are made"
    ENDED = "its process has ended, and has nothing left to read or to free"


class Host(Protocol):
    """Some envs of a pool, in this process, in a worker process or on another machine.

    A host gets requests with their tokens, carries them out (those of one env in the order in which
    they came), writes rows into the block, and reports the tokens of finished requests. Values that
    the block cannot hold, and errors, are kept in the host, see ``values_or_error``. A new backend
    has these methods and extends ``RemoteHost`` if its envs can hang or end, or ``InlineHost`` if
    the caller steps them.

    Attributes:
        ids: the envs of this host.
        life: its life; always RUNNING for envs in this process.
    """

    ids: list[int]
    life: Life

    def prepare_plain_requests(self, data: bytes, *, publish_early: bool) -> Send:
        """Prepare to send steps and plain resets, whose tokens are the int64 in ``data``.

        ``publish_early``: report finished requests while others are carried out.
        """

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        """Prepare to send requests with arguments, each with its token.

        Raises:
            TypeError: a request cannot be pickled.
        """

    def values_or_error(self, token: int, kind: str) -> Beside | EnvError:
        """Return the values beside a row, or the reply or error in place of one; keep them."""

    def forget_item(self, token: int) -> None:
        """Drop them, before the env gets another request with this token."""

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return the envs whose request is carried out anyway."""


class Exit(NamedTuple):
    """How a host has ended, or is about to end.

    ``reason``: what the pool killed it for, else how it has ended, such as its signal, and the
    user's line; empty while it still ends by itself. ``error``: the error of an env_fn, which it
    has reported. ``stack``: the env's frames at which it has ended.
    """

    reason: str = ""
    error: EnvError | None = None
    stack: str = ""


@dataclass(eq=False, repr=False)
class RemoteHost(ABC):
    """Host ``number`` of a pool, outside the caller's thread: it may hang, and it may end.

    ``start``, ``read``, ``reap`` and ``error_of`` are its life, in this order. Its end is noticed
    by the poller, and handled by ``reap``.

    Attributes:
        env_fns: what makes its envs.
        makes_within: seconds that it may take to make an env.
        kept_spaces: by the digest of what an env sent, its observation space, which all envs with
            equal spaces share, because it may be large, and its other spaces, pickled.
        process: where its envs are: the process, the thread, or the handle of the actor.
        exit: how it has ended, or why it is about to end; None before that. ``last_exit``: the one
            before its last start, for envs that a restart did not bring back.
        name: what errors call it.
        how_killed: what errors say if the pool has ended it.
        received: the items that have arrived, and are not handled yet.
        heartbeat: what it does, in the block; zeros before there is one.
        items: the data that it sent beside rows, each with the token of its request.
        num_sent: the number of messages that were sent, or wait to be sent; of an actor 0.
        spaces: those that its envs had at first, and must have after a restart.
        unmade: the envs that it has still to make.
        closed_envs: the envs whose ``close`` has ended, and its error.
    """

    number: int
    ids: list[int]
    env_fns: list[Any]
    makes_within: float
    kept_spaces: dict[bytes, tuple[Any, bytes]]
    poller: Poller

    name, how_killed = "host", "was killed"
    #: What a death while it starts may come from.
    hint = ""
    last_exit = Exit("has ended")

    def __post_init__(self) -> None:
        # Kept over a restart, because rows that had arrived are still returned.
        self.items: dict[int, tuple[int, Any]] = {}
        self.received: deque[tuple[int, int, Any]] = deque()
        self.spaces: dict[int, EnvSpaces] = {}
        self.heartbeat = np.zeros(1, HEARTBEAT)[0]
        self.life = Life.NEW
        self.process: Any = None
        self.exit: Exit | None = None

    # --------------------------------------------------------------------------- of each kind

    @abstractmethod
    def _launch(self, env_fns: list[Any]) -> None:
        """Start it, to make these envs; OSError if that fails."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send a message of ``messages.pack``, without waiting for its end."""

    def request_stacks(  # noqa: B027 - not for all kinds
        self, hosts: Sequence[Any], quiet: float = watchdog.STACK_QUIET
    ) -> None:
        """Let these hosts, all of this kind, write their stacks for ``kill_slow``."""

    @abstractmethod
    def stack_of(self, thread: int) -> tuple[str, str]:
        """Return the user's line and the env's frames at which this thread is now, or was."""

    @abstractmethod
    def _kill(self) -> None:
        """Let it, which runs, end at once, and do not wait for that."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it has ended, be that handled or not."""

    @abstractmethod
    def _free(self) -> Exit:
        """Free what is left of it after its end; return how it ended."""

    # ------------------------------------------------------------------------------ of all kinds

    def _received(self) -> deque[tuple[int, int, Any]]:
        """Return the queue of the items that have arrived: token, status and data."""
        return self.received

    def start(self, limit: float) -> None:
        """Start it, with ``limit`` seconds to make its first env; OSError if it fails."""
        again = self.life is Life.ENDED
        # If it fails, ``exit`` says as before why it has ended.
        self._launch([Recreated(fn) for fn in self.env_fns] if again else self.env_fns)
        self.last_exit = self.exit or self.last_exit
        self.exit, self.num_sent, self.unmade = None, 0, set(self.ids)
        self.closed_envs: dict[int, EnvError | None] = {}
        self.life = Life.STARTING  # NEW | ENDED -> STARTING
        self.set_deadline(limit)

    @property
    def begun_env(self) -> int | None:
        """The env whose request it carries out, or carried out when it ended."""
        return begun_env(int(self.heartbeat["env"]))

    def attach(self, block: Block) -> None:
        """Let it write rows into the block from now on."""
        self.write(messages.pack(messages.ATTACH, pickle.dumps(block.spec)))

    def prepare_plain_requests(self, data: bytes, *, publish_early: bool) -> Send:
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

    def read(self) -> bool:
        """Handle the items that have arrived; return whether there were any."""
        items = self._received()
        found = bool(items)
        while items:
            token, status, data = items[0]
            i = token & ID_MASK
            if status == messages.MADE:
                if data:  # else it has just started
                    self._note_made(i, data)
                if self.life is Life.STARTING and not self.unmade:
                    self.life = Life.RUNNING  # STARTING -> RUNNING
                    self.poller.deadlines.pop(self.number, None)
                elif self.exit is None and self.poller.deadlines.pop(self.number, None) is not None:
                    self.set_deadline(self.makes_within)
            elif status == messages.CLOSED:
                self.closed_envs[i] = self._unpack(i, status, data) if data else None
            elif status == messages.ENDED:
                text = data.decode(errors="replace")
                self._note_exit(f"ended by an exception between requests: {text}")
            elif status == messages.UNREADABLE:
                self.kill(_UNREADABLE)
            elif status == messages.FAILURE and self.life is Life.STARTING:
                self._fail_start(self._unpack(i, status, data))
            else:
                self.items[token & _KEY_MASK] = token & ~RESET, (status, data)
            items.popleft()
        return found

    def _note_made(self, i: int, data: Any) -> None:
        """Note the spaces of env ``i``, which was made."""
        digest = b""
        if isinstance(data, bytes):  # a copy of the env's own spaces, or its digest
            digest = data if len(data) == messages.DIGEST_BYTES else messages.digest(data)
        kept = self.kept_spaces.get(digest)
        made = self._unpack(i, messages.MADE, kept[1] if kept else data, "env_fn")
        if kept and not isinstance(made, EnvError):
            made = EnvSpaces(kept[0], *made)
        if not isinstance(made, EnvError) and made != (old := self.spaces.get(i, made)):
            text = f"its spaces are {made[:2]}, but the env in its place has {old[:2]}"
            made = failures.env_error(ValueError(text), i, "env_fn")
        if isinstance(made, EnvError):
            self._fail_start(made)
            self.kill()
            return
        if digest and not kept:
            self.kept_spaces[digest] = made[0], messages.dumps(made[1:], "the spaces")
        self.spaces[i] = made
        self.unmade.discard(i)

    def _note_exit(self, reason: str = "", error: EnvError | None = None, stack: str = "") -> None:
        """Note that it ends, or has ended; an earlier reason or error stays."""
        known = self.exit or Exit(reason, error)
        self.exit = known._replace(reason=known.reason or reason, stack=known.stack or stack)

    def _fail_start(self, error: EnvError | None) -> None:
        """Note the error of an env_fn, after which it ends by itself; None: unreadable."""
        self._note_exit(error=error)
        self.poller.end_noticed = True
        self.set_deadline(ENDS_WITHIN, _SLOW_CLOSE)

    def values_or_error(self, token: int, kind: str) -> Beside | EnvError:
        i, key = token & ID_MASK, token & _KEY_MASK
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
        self.items[token & _KEY_MASK] = token, (messages.FAILURE, error)

    def forget_item(self, token: int) -> None:
        self.items.pop(token & _KEY_MASK, None)

    def _unpack(self, i: int, status: int, data: Any, kind: str = "") -> Any:
        """Return the value, or the EnvError, in an item of env ``i``.

        If an error cannot be unpickled, its host is killed and the result is None. A value runs
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

    @interrupts.deferred()
    def kill(self, reason: str | None = None) -> None:
        """Kill it, without waiting for its end."""
        if reason is not None:
            self._note_exit(f"{self.how_killed}: {reason}")
        if self._is_alive() and not self.has_ended():
            self._kill()
            self.poller.end_noticed = True

    def end(self, reason: str) -> None:
        """Kill it and wait for its end, a few seconds at the most."""
        self.kill(reason)
        self.await_end()

    def await_end(self) -> None:
        """Wait a few seconds for its end, if it was killed."""
        self.poller.end_noticed = True

    def close_env(self, limit: float) -> None:
        """Let it close its env and end; it is killed after ``limit`` seconds."""
        if self.exit is None:
            self._note_exit()
            self.write(messages.pack(messages.CLOSE, b""))
            self.set_deadline(limit, _SLOW_CLOSE)

    def set_deadline(self, seconds: float, reason: str = "") -> None:
        """Have it killed for this reason unless it ends within these seconds.

        An earlier deadline, or reason, stays. Without a reason, it has to make an env by then.
        """
        due, known = self.poller.deadlines.get(self.number, (math.inf, ""))
        if seconds < math.inf:
            due = min(due, time.monotonic() + seconds)
            self.poller.deadlines[self.number] = due, known or reason

    def kill_late(self, reason: str) -> None:
        """Kill it after its deadline, which was set for this reason."""
        if reason:
            self.kill(reason)
        else:
            i = next(i for i in self.ids if i in self.unmade)
            fact = f"did not return from env_fn within {self.makes_within:g} seconds"
            (error,) = self.kill_slow([i], 0, fact)
            self.exit = Exit(error=error)

    def kill_slow(self, ids: Sequence[int], thread: int, fact: str) -> list[EnvTimeoutError]:
        """Kill it because of these envs; return an error for each, with the stack of a thread.

        ``request_stacks`` comes before, ``await_end`` may follow.
        """
        try:
            line, stack = self.stack_of(thread)
        finally:
            self.kill(f"{errors.name_ids(ids)} {fact}")
        text = f"{fact}{line}; its {self.name} {self.how_killed}"
        return [EnvTimeoutError(f"env {i}: {text}", (i,), details=stack) for i in ids]

    def _is_alive(self) -> bool:
        return self.life in (Life.STARTING, Life.RUNNING)

    def reap(self) -> bool:
        """Whether it has ended; if so, read its last items, and free what it has left."""
        with interrupts.deferred():
            if self._is_alive() and self.has_ended():
                while self.read():
                    pass
                self._note_exit(*self._free())
                self.life = Life.ENDED  # STARTING | RUNNING -> ENDED
                self.poller.deadlines.pop(self.number, None)
        return self.life is Life.ENDED

    def note_slow_close(self, seconds: float) -> None:
        """Note that it is killed because it was not closed within ``seconds``."""
        if self._is_alive() and not self.has_ended():
            self._note_exit(f"{self.how_killed}: it has not ended after {seconds:g} seconds")

    def errors_of_close(self) -> list[EnvError]:
        """Return the errors of ``close``; of the others ``begun_env``, or the first, has hung."""
        found = [error for error in self.closed_envs.values() if error is not None]
        if not (unclosed := [i for i in self.ids if i not in self.closed_envs]):
            return found
        first, *rest = sorted(unclosed, key=lambda i: i != self.begun_env)
        how = self.exit or Exit()
        text = f"env {first}: could not be closed"
        if self.exit is not None:
            text += f": the {self.name} {how.reason}"
        if rest:
            text += f"; nor could {errors.name_ids(rest)}, of the same {self.name}"
        return [*found, EnvError(text, (first, *rest), "close", how.stack)]

    def error_of(self, i: int) -> EnvError:
        """Return the error of an env_fn, or that of ``death_of``."""
        found = None if self.exit is None else self.exit.error
        return self.death_of(i) if found is None else found

    def death_of(self, i: int) -> WorkerDiedError:
        """Return a new error that says how the host of env ``i`` ended."""
        found = self.exit or self.last_exit
        text = f"the {self.name} {found.reason}"
        if found.error is not None:
            text += " while starting; " + found.error.message.partition("\n")[0]
        elif self.exit is not None and self.unmade:
            text += f" while starting{self.hint}"
        if found.reason.startswith("was killed by SIGKILL") and found.error is None:  # by others
            text += "; perhaps the system was out of memory"
        others = [j for j in self.ids if j != i]
        shared = f"; it was also that of {errors.name_ids(others)}" if others else ""
        return WorkerDiedError(f"env {i}: {text}{shared}", (i, *others), details=found.stack)
