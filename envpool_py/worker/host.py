"""The interface of a host: where some envs of a pool are."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from envpool_py.env.block import Beside
from envpool_py.env.request import Request
from envpool_py.errors import EnvError

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
    the block cannot hold, and errors, are kept in the host, see ``item``. A new backend has these
    methods and extends ``ProcessHost`` if its envs are elsewhere and can end, or ``InlineHost`` if
    this process runs them.

    Attributes:
        ids: the envs of this host.
        life: its life; always RUNNING for envs in this process.
    """

    ids: list[int]
    life: Life

    def prepare_tokens(self, data: bytes, *, publish_early: bool) -> Send:
        """Prepare to send steps and plain resets, whose tokens are the int64 in ``data``.

        ``publish_early``: report finished requests while others are carried out.
        """

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        """Prepare to send requests with arguments, each with its token.

        Raises:
            TypeError: a request cannot be pickled.
        """

    def item(self, token: int, kind: str) -> Beside | EnvError:
        """Return the values beside a row, or the reply or error in place of one; keep them."""

    def forget_item(self, token: int) -> None:
        """Drop them, before the env gets another request with this token."""

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return the envs whose request is carried out anyway."""
