"""The results that have arrived: a result counts only if its token is current.

Reading the same results twice changes nothing, so an interrupted read may be repeated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envpool_py.engine.env_states import States
from envpool_py.env.request import ASK, ID_MASK, RESET, TOKEN_BYTES
from envpool_py.env_ids import IdArray
from envpool_py.interrupts import ordinary

_ID_MASK = np.int64(ID_MASK)  # faster than an int


class Arrivals:
    """The results that are not yet returned; ``token_chunks``: their tokens, oldest first."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.token_chunks: list[bytes] = []

    def tokens(self) -> NDArray[np.int64]:
        data = b"".join(self.token_chunks)
        return np.frombuffer(data, np.int64, len(data) // TOKEN_BYTES)

    def ids(self) -> IdArray:
        """Drop stale results; return the envs whose rows have arrived, in this order."""
        self.drop_stale()
        tokens = self.tokens()
        rows: NDArray[np.int64] = tokens[tokens & ASK == 0]
        return rows & ID_MASK

    def ids_if_valid(self) -> IdArray | None:
        """Return the same as ``ids``, or None if anything but current results has arrived."""
        data = b"".join(self.token_chunks)
        try:
            tokens = np.frombuffer(data, np.int64)
            ids = tokens & _ID_MASK
            expected = self._states.tokens[ids].tobytes()  # bytes compare faster than arrays
        except ordinary(IndexError, ValueError):
            return None
        if expected != data and expected != (tokens & ~RESET).tobytes():
            return None
        return ids

    def drop_stale(self) -> bool:
        """Drop the results of cancelled requests, which have an older generation, and repetitions.

        Data that is no result (a newer generation, another id, a part of a token) is kept. Return
        whether anything was dropped.
        """
        if sum(map(len, self.token_chunks)) % TOKEN_BYTES:
            return False
        tokens = self.tokens()
        ids = tokens & ID_MASK
        known = (tokens >= 0) & (ids < len(self._states.tokens))
        current = self._states.tokens.take(ids, mode="clip")
        kept = tokens[~known | (current <= tokens & ~(RESET | ASK))].tolist()
        listed = list(dict.fromkeys(kept))
        self.token_chunks[:] = [np.array(listed, np.int64).tobytes()]
        return len(listed) < len(tokens)

    def remove(self, ids: IdArray | list[int]) -> None:
        """Remove the results of these envs, which have all arrived."""
        if sum(map(len, self.token_chunks)) == len(ids) * TOKEN_BYTES:
            self.token_chunks.clear()
            return
        tokens = self.tokens()
        self.token_chunks[:] = [tokens[~np.isin(tokens & ID_MASK, ids)].tobytes()]
