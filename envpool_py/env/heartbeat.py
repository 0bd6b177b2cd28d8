"""The heartbeat of a thread that steps envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from envpool_py.env.spaces import Array

#: A heartbeat, of numbers of 8 bytes; ``worker.watchdog`` says what they are.
NAMES = ("env", "since", "handled", "thread", "phase")
HEARTBEAT = np.dtype([(name, "f8" if name == "since" else "i8") for name in NAMES])
#: What the env is doing: a request, or in it its ``close`` or its ``env_fn``, to be recreated.
REQUEST, CLOSING, MAKING = range(3)


def begun_env(number: int) -> int | None:
    """Return the env that carries out a request, by ``env`` of its heartbeat; None: none."""
    return abs(number) - 1 if number else None  # ``~i`` is ``-(i + 1)``


class Heartbeat:
    """Writes the heartbeat of the thread that makes it.

    ``row``, an array of one ``HEARTBEAT``, is None if nobody reads it. ``enter`` is called when
    code of the env is about to run, ``leave`` when it has returned. ``limited``: requests have a
    timeout; else only recreating an env has one.

    Attributes:
        is_read: whether each step is to ``begin`` and ``leave``.
        env_cell: to write the env of a step that does not ``begin`` (``~env_id``) to its item 0;
            None: nobody reads it.
    """

    def __init__(
        self,
        row: Array | None = None,
        enter: Callable[[], object] | None = None,
        leave: Callable[[], object] | None = None,
        *,
        limited: bool = False,
    ) -> None:
        self.is_read = limited or enter is not None
        self._has_limit = limited
        is_ours, row = row is None, np.zeros(1, HEARTBEAT) if row is None else row
        cells: list[Any] = [row[name].data for name in NAMES]  # faster to index than arrays
        self._env, self._since, self._handled, thread, self._phase = cells
        self.env_cell = None if is_ours else self._env
        thread[0] = threading.get_ident()
        self.enter, self.leave = enter or (lambda: None), leave or (lambda: None)

    @property
    def env(self) -> int | None:
        """The env that carries out a request."""
        return begun_env(self._env[0])

    def begin(self, i: int, phase: int = REQUEST, *, sets_up: bool = False) -> None:
        """Note that a request to env ``i``, or a phase of it, begins; ``sets_up``: no limit."""
        self.leave()
        # In this order, so that the parent may read a time that is too late, but never too early.
        self._since[0] = time.monotonic()
        self._phase[0] = phase
        self._env[0] = i + 1 if phase or (self._has_limit and not sets_up) else ~i
        self.enter()

    def end(self) -> None:
        self.leave()
        self._env[0] = 0

    def count(self, messages: int) -> None:
        self._handled[0] = messages
