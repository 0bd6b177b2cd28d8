"""Rows as bytes, on their way between the driver's block and that of an actor.

To an actor goes a frame of ``envpool_py.worker.channel``, then the actions. Back come ``HEAD`` (the
number of tokens, and which groups of fields), the tokens, the rows and, if any, pickled items.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from envpool_py.block import Block
from envpool_py.spaces import Array
from envpool_py.worker.channel import ID_MASK

#: What an actor sends beside rows: token, status, data.
Item = tuple[int, int, bytes]

HEAD = struct.Struct("=qq")
ACTIONS, PLACES, ROWS, FINALS, INFOS, TABLES = (1 << n for n in range(6))
# The first words of the names of their fields.
_GROUPS = {
    ACTIONS: ("action",),
    PLACES: ("places", "seeds", "times"),
    ROWS: ("ends", "obs"),
    FINALS: ("final",),
    INFOS: ("info rows",),
    TABLES: ("info tables",),
}


class Rows:
    """The rows of ``count`` envs of a block, from ``first`` on; ``ends`` are rewards and marks."""

    def __init__(self, block: Block, first: int, count: int) -> None:
        self._first = first
        self.ends = block.ends[first : first + count]
        self._groups: dict[int, list[NDArray[np.uint8]]] = {bit: [] for bit in _GROUPS}
        for name, array in block.fields.items():
            written = array.nbytes and (block.spec.scheduled or name not in ("places", "seeds"))
            for bit in [
                bit for bit, names in _GROUPS.items() if written and name.startswith(names)
            ]:
                rows = array.reshape(-1).view(np.uint8).reshape(block.spec.num_envs, -1)
                self._groups[bit].append(rows[first : first + count])

    def _fields(self, groups: int) -> list[NDArray[np.uint8]]:
        return [field for bit, own in self._groups.items() if groups & bit for field in own]

    def take(self, groups: int, tokens: Array) -> bytes:
        """The rows of these envs, an array for each field."""
        places = (tokens & ID_MASK) - self._first
        return b"".join([field[places].tobytes() for field in self._fields(groups)])

    def put(self, groups: int, tokens: Array, data: memoryview) -> memoryview:
        """Write the rows of these envs; return what follows them."""
        places = (tokens & ID_MASK) - self._first
        for field in self._fields(groups):
            size = len(places) * field.shape[1]
            field[places] = np.frombuffer(data, np.uint8, size).reshape(len(places), -1)
            data = data[size:]
        return data
