"""What an actor runs: the envs of a worker process, with calls of Ray in place of its pipes."""

from __future__ import annotations

import faulthandler
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from envpool_py.block import FINAL, FORM, Block, Spec
from envpool_py.ray.messages import ACTIONS, FINALS, HEAD, INFOS, PLACES, ROWS, TABLES, Item, Rows
from envpool_py.spaces import Array
from envpool_py.watchdog import Watchdog
from envpool_py.worker import channel
from envpool_py.worker.channel import ASK, HEADER, KIND_BITS
from envpool_py.worker.child import EnvProcess

# Bytes from which a reply is an array, which the driver reads where Ray keeps it.
_LARGE = 100_000
# Seconds that an env may hold the GIL after its timeout before the whole process is ended.
_GIL_GRACE = 5.0


class _Outbox:
    """Keeps what a worker process would send until it goes out in a reply; see ``ProcessEnd``."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.tokens = b""

    def add(self, token: int, status: int, data: bytes) -> None:
        self.items.append((token, status, data))

    def send(self) -> None:
        """Wait for the reply."""

    def publish(self, tokens: bytes) -> None:
        self.tokens += tokens


class EnvActor(EnvProcess):
    """The envs ``ids``, in a row; here they are numbered from 0, as are the rows of its block."""

    def __init__(self, ids: Sequence[int], step_timeout: float | None) -> None:
        super().__init__(0, ids, _Outbox())
        self._first, self._limit = ids[0], step_timeout
        self._attached = threading.Event()

    def build(self, env_fns: Sequence[bytes]) -> tuple[str, int, list[Item]]:
        """Make the envs; return the node, the process, and the envs' spaces or an error."""
        self._thread = threading.get_ident()
        self._build(env_fns)
        self._executors = {i - self._first: own for i, own in self._executors.items()}
        items, self._end = self._end.items, _Outbox()
        node = ray.get_runtime_context().get_node_id()[:8]
        return f"{ray.util.get_node_ip_address()} ({node})", threading.get_native_id(), items

    def handle(self, message: bytes) -> Any:
        """Carry out what a frame asks; return the reply."""
        data = memoryview(message)
        (head,) = HEADER.unpack_from(data)
        end = HEADER.size + (head >> KIND_BITS)
        kind, body, rest = head & ((1 << KIND_BITS) - 1), data[HEADER.size : end], data[end:]
        if kind <= channel.TOKENS_PROMPT:
            tokens = np.frombuffer(body, np.int64) - self._first
            if len(rest):
                self._rows.put(ACTIONS, tokens, rest)
            self._carry_out(tokens.tobytes(), 0)
        elif kind == channel.REQUESTS:
            pairs = pickle.loads(body)  # noqa: S301 - from our own driver
            self._answer([(token - self._first, request) for token, request in pairs])
        elif kind == channel.ATTACH:
            self._make_block(pickle.loads(body), rest)  # noqa: S301 - likewise
        else:
            self._close()
        outbox, self._end = self._end, _Outbox()
        done = np.frombuffer(outbox.tokens, np.int64)
        groups = self._groups_of(done) if self._writer is not None and len(done) else 0
        parts = [HEAD.pack(len(done), groups), (done + self._first).tobytes()]
        if groups:
            parts.append(self._rows.take(groups, done))
        if outbox.items:
            items = [(token + self._first, *item) for token, *item in outbox.items]
            parts.append(pickle.dumps(items, protocol=5))
        reply = b"".join(parts)
        return reply if len(reply) < _LARGE else np.frombuffer(reply, np.uint8)

    def _make_block(self, spec: Spec, counted: memoryview) -> None:
        count, watched = len(self._ids), int(self._limit is not None)
        block = Block(spec._replace(num_envs=count, num_processes=watched))
        self._attach(block)
        self._rows = Rows(block, 0, count)
        self._rows.put(PLACES, np.arange(count), counted)
        self._forms = np.zeros(count, np.int64)  # those that the driver knows
        self._heartbeats = block.heartbeats
        self._attached.set()

    def _groups_of(self, tokens: Array) -> int:
        """The groups of fields that have changed."""
        if (tokens & ASK).any():  # the row of such an env may not have been returned yet
            return PLACES
        places = tokens & channel.ID_MASK
        marks = self._rows.ends["mark"][places].astype(np.int64)
        forms, known = marks // FORM, self._forms[places]
        self._forms[places] = np.maximum(forms, known)
        groups = PLACES | ROWS | FINALS * bool((marks & FINAL).any())
        return groups | INFOS * bool(forms.any()) | TABLES * bool((forms > known).any())

    def watch(self) -> tuple[int, str]:
        """Return as soon as an env is stuck: its id and stack. Else it goes on with the actor."""
        self._attached.wait()
        while self._limit is None:
            time.sleep(1e6)
        watchdog = Watchdog(self._limit)
        watchdog.attach(self._heartbeats)
        while True:
            # While an env holds the GIL this loop stands still: then C code ends the process.
            faulthandler.dump_traceback_later(2 * self._limit + _GIL_GRACE, exit=True)
            for overdue in watchdog.look(lambda: [0]):
                faulthandler.cancel_dump_traceback_later()
                frame = sys._current_frames()[self._thread]  # noqa: SLF001 - just for this
                return (overdue.env_id or 0) + self._first, "".join(traceback.format_stack(frame))
            time.sleep(watchdog.wait(self._limit))
