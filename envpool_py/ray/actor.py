"""The code of an actor: the envs of a worker process, with calls of Ray in place of its pipes.

An actor gets a message (``envpool_py.worker.messages``) and the actions. It returns a list: the
tokens, the groups of fields that follow, the rows of the tokens' envs, and items.
"""

from __future__ import annotations

import faulthandler
import pickle
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import ray
from numpy.typing import NDArray

from envpool_py.env.block import FINAL, FORM, Block
from envpool_py.env.heartbeat import CLOSING, REQUEST
from envpool_py.env.request import ASK, ID_MASK
from envpool_py.env.spaces import Array
from envpool_py.worker import messages
from envpool_py.worker.messages import HEADER
from envpool_py.worker.supervisor import MAKES_WITHIN
from envpool_py.worker.watchdog import Watchdog, stack_of_thread
from envpool_py.worker.worker_loop import EnvLoop

ACTIONS, POSITIONS, ROWS, FINALS, INFOS, TABLES = (1 << n for n in range(6))
# By the first word of a field's name, or by all of it.
_GROUPS = {"action": ACTIONS, "positions": POSITIONS, "times": POSITIONS, "results": ROWS}
_GROUPS |= {"obs": ROWS, "final": FINALS, "info rows": INFOS, "info tables": TABLES}

#: An env that has been closed, or is being closed or made: its id, the phase, and items.
Event: TypeAlias = "tuple[int, int, list[Any]]"


class Rows:
    """The rows of a block as bytes, on their way between the driver's block and an actor's."""

    def __init__(self, block: Block) -> None:
        self._fields: list[tuple[int, NDArray[np.uint8]]] = []
        for name, array in block.fields.items():
            group = _GROUPS.get(name) or _GROUPS.get(name.split()[0], 0)
            if group and array.nbytes:
                rows = array.reshape(-1).view(np.uint8).reshape(block.spec.num_envs, -1)
                self._fields.append((group, rows))

    def read(self, groups: int, tokens: Array) -> bytes:
        """Return the rows of these envs, field by field; ``groups``: the bits of these fields."""
        ids = tokens & ID_MASK
        return b"".join([field[ids].tobytes() for group, field in self._fields if group & groups])

    def write(self, groups: int, tokens: Array, data: Any) -> None:
        """Write the rows of these envs."""
        ids, start = tokens & ID_MASK, 0
        for group, field in self._fields:
            if group & groups:
                size = len(ids) * field.shape[1]
                field[ids] = np.frombuffer(data, np.uint8, size, start).reshape(len(ids), -1)
                start += size


class _Outbox:
    """Collects the data that a worker process would send, as a ``ConnectionToParent``."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, bytes]] = []  # token, status, data
        self._tokens: list[bytes] = []
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.known = threading.Semaphore(0)  # released for each event that the driver has

    def add(self, token: int, status: int, data: bytes) -> None:
        if status == messages.CLOSED:
            self.tell(token, CLOSING, [(token, status, data)])
        else:
            self._items.append((token, status, data))

    def tell(self, env_id: int, phase: int, items: list[Any]) -> None:
        """Tell the driver before code of an env may end the process: no reply comes then."""
        self.events.put((env_id, phase, items))
        self.known.acquire(timeout=1)

    def send(self) -> None:
        """Wait for the reply."""

    def publish(self, tokens: bytes) -> None:
        self._tokens.append(tokens)

    def take(self) -> tuple[bytes, list[Any]]:
        """Return the tokens and items since the last call."""
        tokens, items = b"".join(self._tokens), self._items
        self._tokens, self._items = [], []
        return tokens, items


class EnvActor:
    """The envs ``ids``, stepped one by one.

    Its block has rows for all envs of the pool, of which only theirs take memory.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._outbox = ids, _Outbox()
        self._loop = EnvLoop(ids, self._outbox, {})
        self._attached = threading.Event()

    def greet(self) -> str:
        """Return what an error calls the actor."""
        node = ray.get_runtime_context().get_node_id()[:8]
        return f"actor on node {ray.util.get_node_ip_address()} ({node})"

    def build(self, env_fns: Sequence[bytes]) -> list[Any]:
        """Make the envs; return the reply, with their spaces or an error."""
        self._loop.make_envs(env_fns)
        return self._reply()

    def handle(self, message: bytes) -> list[Any]:
        """Carry out the requests of a message; return the reply."""
        kind, length = HEADER.unpack_from(message)
        end = HEADER.size + length
        body, rest = message[HEADER.size : end], message[end:]
        if kind == messages.ATTACH:
            self._attach(Block(pickle.loads(body)), rest)  # noqa: S301 - from our own driver
        else:
            if rest:
                self._rows.write(ACTIONS, np.frombuffer(body, np.int64), rest)
            if not self._loop.handle_message(kind, body):
                self._loop.close()
        return self._reply()

    def next_event(self, *, known: bool) -> Event:
        """Wait for the next event; ``known``: the driver has the one before."""
        if known:
            self._outbox.known.release()
        return self._outbox.events.get()

    def _tell_phase(self) -> None:
        beat = self._block.heartbeats[self._ids[0]]
        if beat["phase"] != REQUEST:
            self._outbox.tell(int(beat["env"]) - 1, int(beat["phase"]), [])

    def _reply(self) -> list[Any]:
        tokens, items = self._outbox.take()
        done, groups, rows = np.frombuffer(tokens, np.int64), 0, b""
        if self._attached.is_set() and len(done):
            groups = self._groups_of(done)
            rows = self._rows.read(groups, done)
        large = len(rows) >= 100_000  # then the driver reads them where Ray keeps them, as an array
        return [tokens, groups, np.frombuffer(rows, "u1") if large else rows, items]

    def _attach(self, block: Block, positions: bytes) -> None:
        self._loop.handle_message(messages.ATTACH, block)
        self._block, self._rows = block, Rows(block)
        assert self._loop.heartbeat is not None  # noqa: S101 - for the type checker
        self._loop.heartbeat.enter = self._tell_phase
        self._rows.write(POSITIONS, np.array(self._ids), positions)
        self._known = np.zeros(block.spec.num_envs, np.int64)  # the forms that the driver knows
        self._attached.set()

    def _groups_of(self, tokens: Array) -> int:
        """Return the bits of the groups of fields that have changed."""
        if (tokens & ASK).any():  # the row of such an env may not have been returned yet
            return POSITIONS
        ids = tokens & ID_MASK
        marks = self._block.mark[ids].astype(np.int64)
        forms, known = marks // FORM, self._known[ids]
        self._known[ids] = np.maximum(forms, known)
        groups = POSITIONS | ROWS | FINALS * bool((marks & FINAL).any())
        return groups | INFOS * bool(forms.any()) | TABLES * bool((forms > known).any())

    def watch(self, limit: float | None) -> tuple[int, int, tuple[str, str]]:
        """Wait until an env is stuck; return its id, the phase of its request, and where it is.

        Else run as long as the actor. With ``limit`` None, only recreating an env is limited.
        """
        self._attached.wait()
        watchdog = Watchdog(limit or MAKES_WITHIN, self._block.heartbeats)
        while True:
            if limit is not None:
                # While an env holds the GIL this loop stands still: then C code ends the process.
                faulthandler.dump_traceback_later(2 * limit + 5, exit=True)
            for number, env_id in watchdog.find_overdue(lambda: {self._ids[0]: 0}):
                faulthandler.cancel_dump_traceback_later()
                beat = self._block.heartbeats[number]
                return env_id or 0, int(beat["phase"]), stack_of_thread(int(beat["thread"]))
            time.sleep(max(watchdog.next_check - time.monotonic(), 0.0))
