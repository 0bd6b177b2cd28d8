"""What one env has been through: enough to bring another, made by the same ``env_fn``, to its step.

It holds the requests since the env was made, or since its last seeded reset where that says all
that comes after, and a digest of each row that came of them. The actions of a fixed action space
lie one after another in a ``bytearray``, so that a step takes the size of its action and 8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from envpool_py import digest, spaces
from envpool_py.worker.base import Request

#: The steps that are kept of one env; one that goes on for longer can't be brought back.
LONGEST = 100_000


class Layouts(NamedTuple):
    """How to read actions and rows: of the block's observations and actions."""

    obs: Any
    action: Any


class Past:
    """The requests on one env, in their order.

    Args:
        first: carried out before all others, without a look at what comes of them.
    """

    def __init__(self, first: list[Request]) -> None:
        self.first = first
        #: What is no step with an action of fixed size, by its number.
        self.others: dict[int, Request] = {}
        self._actions = bytearray()
        self._expected = array("Q")

    def __len__(self) -> int:
        return len(self._expected)

    def add(self, request: Request | bytes, expected: int) -> None:
        """Note a request, a step by the bytes of its action, and the digest of its row."""
        if isinstance(request, bytes):
            self._actions += request
        else:
            self.others[len(self._expected)] = request
        self._expected.append(expected)

    def requests(self, layouts: Layouts) -> Iterator[tuple[Request, int]]:
        """Each request, with the digest of its row."""
        size = action_size(layouts.action)
        at = 0
        for number, expected in enumerate(self._expected):
            request = self.others.get(number)
            if request is None:
                request = step_of(layouts.action, bytes(self._actions[at : at + size]))
                at += size
            yield request, expected


def action_size(layout: Any) -> int:
    """The bytes of one action of a layout; those of its fixed leaves."""
    return sum(
        leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
        for leaf in spaces.leaves(layout)
        if leaf.dtype is not None
    )


def step_of(layout: Any, data: bytes) -> Request:
    """The step whose action, of a fixed layout, has these bytes."""
    parts = []
    at = 0
    for leaf in spaces.leaves(layout):
        assert leaf.dtype is not None  # noqa: S101 - fixed, for the type checker
        count = int(np.prod(leaf.shape, dtype=np.int64))
        column = np.frombuffer(data, leaf.dtype, count, at).reshape(1, *leaf.shape).copy()
        parts.append(leaf.one(column, 0))
        at += column.nbytes
    return Request("step", (spaces.join(layout, parts),))


def play(past: Past, layouts: Layouts, carry_out: Callable[[Request], Any]) -> str | None:
    """Carry out everything that an env has been through.

    Args:
        past: of the env.
        layouts: of its rows and actions.
        carry_out: returns the reply to a request.

    Returns:
        None where every row was as it had been, else which was not.
    """
    for request in past.first:
        carry_out(request)
    steps = 0
    for request, expected in past.requests(layouts):
        reply = carry_out(request)
        if request.kind == "reset":
            steps = 0
            row = (reply[0], 0.0, False, False)
        elif request.kind == "step":
            steps += 1
            row = reply[:4]
        else:
            continue
        if digest.of_row(layouts.obs, row) != expected:
            what = f"step {steps}" if request.kind == "step" else "the reset"
            return f"{what} since its last reset by the pool gave another row than before"
    return None
