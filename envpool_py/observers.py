"""Observers of what an engine asks of its envs and what comes of it: none, unless it records.

For each env an observer hears, in the order in which it happens: ``steps`` or ``resets`` when a
request is sent; then just one of ``rows`` (the row is returned), ``raised`` (the error is raised),
``recovered`` (recovery handles the error) and ``cancelled``, unless the env is ``recreated``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.spaces import Array
from envpool_py.worker.base import Request

#: The key of a note on a row that recovery has truncated in the step that also began an episode.
LOST_EPISODE = "truncated"


class Steps(NamedTuple):
    """The actions of a batch: an array ``(k, ...)`` per leaf, or one by one where there is none."""

    columns: list[Array] | None
    actions: list[Any]


class Rows(NamedTuple):
    """The rows of a batch.

    ``parts``: the observations leaf by leaf. ``marked``: whether the infos of resets say
    ``is_reset``. ``lost``: the envs whose row stands for a lost step. ``notes``: what recovery adds
    to the infos of an env. ``asked``: for an env, what ``reset_fn`` has returned since the last
    row.
    """

    parts: list[Any]
    reward: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Array
    marked: bool
    lost: set[int]
    notes: Mapping[int, dict[str, Any]]
    asked: Mapping[int, list[tuple[int, int | None, Any]]]


class Observer:
    """Does nothing; an observer overrides what it wants to hear of."""

    def steps(self, ids: IdArray, steps: Steps) -> None:
        """These envs are to be stepped; a TypeError raised here refuses that."""

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """These envs are to be reset; a TypeError raised here refuses that."""

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """The rows of these envs are being returned."""

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """The errors of these envs are being raised."""

    def recovered(self, i: int, error: EnvError) -> None:
        """The error of env ``i`` is not raised; its request is not answered."""

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """The requests of these envs are cancelled; some are carried out all the same."""

    def recreated(self, ids: Sequence[int]) -> None:
        """These envs are new."""

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """A request without a row is to be sent; the result is called with the envs that failed."""

    def close(self) -> None:
        """Nothing more comes."""
