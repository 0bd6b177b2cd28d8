"""The observer of an engine, which is called for every request and every result.

The calls for each env are in the order of events: ``steps`` or ``resets`` when a request is sent;
then exactly one of ``rows``, ``failed`` and ``cancelled``, unless the env is ``recreated``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envpool_py.env.request import Request
from envpool_py.env.spaces import Array
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray


class Observer:
    """Does nothing; an observer overrides the methods that it needs.

    ``watches``: whether to call ``steps`` and ``rows``, which are on the path of each step.
    """

    watches = False

    def steps(self, ids: IdArray, actions: Any, *, stored: bool) -> None:
        """Called before these envs are stepped; a TypeError raised here refuses the steps.

        ``actions``: as the caller passed them if they are ``stored`` in the block, else a list.
        """

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """Called before these envs are reset; a TypeError raised here refuses the resets."""

    def retried(self, i: int, request: Request) -> None:
        """Called before recovery sends this request to env ``i`` in place of one that failed."""

    def rows(
        self, ids: IdArray, obs: Sequence[Any], reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Called before rows are returned; ``obs``: an array ``(k, ...)`` for each leaf."""

    def failed(self, errors: Mapping[int, EnvError], *, raised: bool) -> None:
        """Called before the errors of these envs are raised, or when recovery handles them."""

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Called when requests are cancelled; some are carried out anyway."""

    def recreated(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Called when envs were recreated and configured by these requests."""

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """Called before requests without a row; the result is called with the envs that failed.

        A request that timed out in the caller has not failed if a process still carries it out. A
        request that was interrupted has failed.
        """

    def close(self) -> None:
        """Called when the pool is closed."""
