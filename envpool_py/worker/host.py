"""The interface of a host: where some envs of a pool are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces
from envpool_py.env.request import Request
from envpool_py.errors import EnvError

#: Sends a message that was prepared before.
Send: TypeAlias = "Callable[[], object]"


class Host(Protocol):
    """Some envs of a pool, in this process, in a worker process or on another machine.

    A host gets requests with their tokens, carries them out in the order in which they came, writes
    rows into the block, and reports the tokens of finished requests. Values that the block cannot
    hold, and errors, wait in the host for ``take_item``. A new backend is a class with these
    methods; if its processes can end, see ``ProcessHost``.

    Attributes:
        ids: the envs of this host.
        is_dead: whether its process has ended, or is being restarted.
        is_restarting: whether its process was restarted and has not made its envs yet.
    """

    ids: list[int]

    @property
    def is_dead(self) -> bool: ...

    @property
    def is_restarting(self) -> bool: ...

    def prepare_tokens(self, data: bytes, *, publish_early: bool) -> Send:
        """Prepare to send steps and plain resets, whose tokens are the int64 in ``data``.

        ``publish_early``: report finished requests while others are carried out.
        """

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        """Prepare to send requests with arguments, each with its token.

        Raises:
            TypeError: a request cannot be pickled.
        """

    def take_item(self, token: int, kind: str) -> Beside | EnvError:
        """Return the values beside a row, or the reply or error in place of one."""

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return the envs whose request is carried out anyway."""


class LocalHost(Host, Protocol):
    """A host that carries out requests in ``run``, which the engine calls while it waits.

    Attributes:
        measures: whether steps can be timed.
    """

    measures: bool

    def spaces(self) -> dict[int, EnvSpaces]:
        """Return copies of the envs' spaces by id, so that sampling does not change the env's."""

    def attach(self, block: Block) -> None:
        """Write rows into this block from now on."""

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> bool:
        """Carry out requests, the oldest first; only those of the envs ``only`` unless None.

        The tokens of finished requests go to ``chunks``. Return after ``limit`` requests, or after
        ``seconds``; False if there were no requests.
        """

    def settle(self, chunks: list[bytes]) -> list[int]:
        """Report what an interrupted ``run`` has finished; return the env whose result is lost."""

    def close(self) -> list[EnvError]:
        """Close the envs; return the errors."""
