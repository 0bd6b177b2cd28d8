"""Tokens: what requests and answers are known by. An env id in the low bits, a generation above.

A process gives back the token that it was sent; the parent raises the generation to give a request
up, and drops answers to older ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.ids import IdArray

#: The bits of the id.
ID_BITS = 20
ID_MASK = (1 << ID_BITS) - 1
#: How many there are before they begin anew.
GENERATIONS = 1 << (31 - ID_BITS)

#: What wakes the parent, to an answer in the bells or by itself; no token: those are not negative.
WAKE = -1
WAKE_UP = struct.pack("=i", WAKE)


class Tokens:
    """Those of the requests of a pool: one for each env, and what was given up.

    Args:
        num_envs: how many envs there are.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._now: NDArray[np.int32] = np.arange(num_envs, dtype=np.int32)
        self._are_ids = True
        #: By env: the token of the last request that was given up, and is not answered.
        self.given_up: dict[int, int] = {}
        # Answers that often come just so, and the ids that they name.
        self._known: dict[bytes, list[int]] = {}

    def of(self, i: int) -> int:
        """The token of a request of env ``i``."""
        return int(self._now[i])

    def pack(self, ids: IdArray) -> bytes:
        """The tokens of requests of these envs, as they travel."""
        return self._now[ids].tobytes()

    def know(self, data: bytes, ids: Sequence[int]) -> None:
        """Have ``data``, the tokens of these envs as they are now, be known at sight."""
        self._known[data] = list(ids)

    def ids_in(self, data: bytes) -> list[int] | None:
        """The envs whose requests these tokens answer; None where there are none such.

        Takes note of what was given up, and is answered by this.
        """
        if not self.given_up and (known := self._known.get(data)) is not None:
            return known
        if len(data) % 4:
            return None
        named: list[int] = memoryview(data).cast("i").tolist()
        if WAKE in named:
            named = [token for token in named if token != WAKE]
        if self._are_ids:
            wrong = bool(named) and (max(named) >= self._num_envs or min(named) < 0)
            return None if wrong else named
        tokens: NDArray[Any] = np.array(named, dtype=np.int32)
        ids = tokens & ID_MASK
        if ids.max(initial=0) >= self._num_envs:
            return None
        current: list[int] = ids[self._now[ids] == tokens].tolist()
        if self.given_up:
            for token in named:
                self.note_answer(token)
        return current

    def note_answer(self, token: int) -> None:
        """Take note that a request has ended which was given up, or one after it."""
        i = token & ID_MASK
        if token in (self.given_up.get(i), self.of(i)):
            self.given_up.pop(i, None)

    def give_up(self, i: int, *, answered: bool) -> None:
        """What env ``i`` was asked for last is no longer wanted.

        Args:
            i: the env.
            answered: there is no answer to come.
        """
        if not answered:
            self.given_up[i] = self.of(i)
        generation = (self.of(i) >> ID_BITS) + 1
        self._now[i] = (generation % GENERATIONS) << ID_BITS | i
        self._are_ids = False
        self._known.clear()
