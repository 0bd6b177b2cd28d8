"""Lives of which something is noted: what is asked of the envs, and what comes of it.

``JournaledLives`` stands between ``EnvLives``, which it extends, and ``RestartingLives``, which is
put on top of it: so it sees what the envs are really asked, the resets of a restart included, and
no pool without a journal pays for it.

What a ``Journal`` is told, for each env in the order in which it happened:

* ``steps`` and ``resets`` before the requests are sent; what they return is called once nothing
  can be wrong with the requests any more, and takes them down;
* then just one of ``rows`` (the row is handed out), ``raised`` (the error is raised), ``taken``
  (the error is taken out by a policy) and ``cancelled``, unless the env ``made`` is a new one;
* ``asks`` for requests that bring no row: what it returns is called with the envs that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py import digest, spaces
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.life import EnvLives, StepResult
from envpool_py.restarts import RestartingLives
from envpool_py.rows import Batch
from envpool_py.spaces import Array
from envpool_py.worker.base import Request
from envpool_py.worker.execute import ASKED

#: What is told of a row that is truncated by a policy, beside what goes into its info.
LOST_EPISODE = "truncated"


class Steps(NamedTuple):
    """The actions of a batch: an array ``(k, ...)`` per leaf, or one by one where that can't be."""

    columns: list[Array] | None
    actions: list[Any]


class Rows(NamedTuple):
    """The rows of a batch.

    ``digests``: of the observations, uint64 ``(k,)``. ``marked``: whether the infos of resets say
    ``is_reset``. ``lost``: the envs whose row stands for a lost step. ``told``: what a policy adds
    to the infos of an env. ``asked``: for an env, what ``reset_fn`` has returned since its last
    reset was told.
    """

    digests: NDArray[np.uint64]
    reward: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Array
    marked: bool
    lost: set[int]
    told: Mapping[int, dict[str, Any]]
    asked: Mapping[int, list[tuple[int, int | None, Any]]]


class Journal:
    """Takes nothing down; a journal overrides what it wants to know."""

    def steps(self, ids: IdArray, steps: Steps) -> Callable[[], object]:
        """These envs are to be stepped."""
        raise NotImplementedError

    def resets(self, ids: list[int], requests: Sequence[Request]) -> Callable[[], object]:
        """These envs are to be reset."""
        raise NotImplementedError

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """The rows of these envs are handed out."""

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """The errors of these envs are raised."""

    def taken(self, i: int, error: EnvError) -> None:
        """The error of env ``i`` is not raised; its request will not be answered."""

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """What these envs were asked is given up; of some it is carried out all the same."""

    def made(self, ids: Sequence[int]) -> None:
        """These envs are new ones."""

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object]:
        """Something that brings no row is to be asked of these envs."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing comes any more."""


class JournaledLives(EnvLives):
    """As ``EnvLives``; every journal in ``journals`` is told."""

    #: Replaced by the pool.
    journals: Sequence[Journal] = ()
    #: Whether infos tell what ``reset_fn`` returned.
    tells_asked = False
    _notes: Sequence[Callable[[], object]] = ()

    def send_steps(self, ids: IdArray, actions: Any) -> None:
        """As ``EnvLives``."""
        block = self._group.block
        layout = block.shape.action
        listed = ids.tolist()
        columns = spaces.batch_actions(layout, actions, listed) if block.fixed_actions else None
        if columns is None:
            steps = Steps(None, spaces.list_actions(layout, actions, listed))
        else:
            steps = Steps(columns, [])
            if spaces.is_leaf(layout):
                actions = columns[0]  # so that they are not looked at twice
        self._notes = [journal.steps(ids, steps) for journal in self.journals]
        super().send_steps(ids, actions)

    def _step_all(self, actions: Any) -> StepResult:
        # What is sent is noted on the way.
        return self._blocking(self.send_steps, self.everything, actions)

    def send_resets(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """As ``EnvLives``."""
        self._notes = [journal.resets(ids.tolist(), requests) for journal in self.journals]
        super().send_resets(ids, requests)

    def _send(self, ids: IdArray, state: int, post: Callable[[], None]) -> None:
        for note in self._notes:
            note()
        super()._send(ids, state, post)

    def _cancel(self, ids: list[int]) -> None:
        left = {*self._finished, *self._group.errors}
        carried_out = [i in left or self._group.will_run(i) for i in ids]
        super()._cancel(ids)
        for journal in self.journals:
            journal.cancelled(ids, carried_out)

    def _gather(self, ids: IdArray) -> Batch:
        batch = super()._gather(ids)
        leaves = spaces.leaves(self._group.block.shape.obs)
        self._digests = digest.of_observations(leaves, batch.parts, len(ids))
        return batch

    def _hand_out(self, ids: IdArray, *, mark: bool) -> StepResult:
        batch = super()._hand_out(ids, mark=mark)
        try:
            asked = {}
            if self.tells_asked:
                infos = [info for info in batch[4].tolist() if ASKED in info]
                asked = {info["env_id"]: info.pop(ASKED) for info in infos}
            told = {i: self._told_of(i) for i in ids.tolist()} if self._is_telling() else {}
            lost = self._lost_rows()
            rows = Rows(self._digests, *batch[1:], mark, lost, told, asked)
            for journal in self.journals:
                journal.rows(ids, rows)
            if lost:
                lost.difference_update(ids.tolist())
        except BaseException:
            self.give_up(ids, landed=True)
            raise
        return batch

    def _is_telling(self) -> bool:
        return False

    def _told_of(self, i: int) -> dict[str, Any]:  # noqa: ARG002 - no policy, nothing to tell
        return {}

    def _lost_rows(self) -> set[int]:
        return set()

    def _raise_errors(self, ids: IdArray) -> None:
        errors = self._group.errors
        found = {i: errors[i] for i in ids.tolist() if i in errors}
        if found:
            for journal in self.journals:
                journal.raised(found)
        super()._raise_errors(ids)

    def _make_anew(self, ids: list[int]) -> list[int]:
        made = super()._make_anew(ids)
        self._note_made(made)
        return made

    def _note_made(self, made: Sequence[int]) -> None:
        for journal in self.journals:
            journal.made(made)

    def ask(self, ids: IdArray, requests: Sequence[Request]) -> list[Any]:
        """As ``EnvLives``."""
        notes = [journal.asks(ids.tolist(), requests) for journal in self.journals]
        failed: Sequence[int] = ()
        sent = True
        try:
            return super().ask(ids, requests)
        except EnvError as error:
            failed = error.env_ids
            raise
        except Exception:
            sent = False
            raise
        finally:
            if sent:
                for note in notes:
                    note(failed)


class JournaledRestartingLives(RestartingLives, JournaledLives):
    """As ``RestartingLives``; every journal in ``journals`` is told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows_lost: set[int] = set()

    def _send_now(self, i: int, request: Request) -> None:
        for journal in self.journals:
            journal.resets([i], [request])()
        super()._send_now(i, request)

    def _take_out(self, i: int, error: EnvError, *, brought_back: bool) -> None:
        if not brought_back:
            for journal in self.journals:
                journal.taken(i, error)
        super()._take_out(i, error, brought_back=brought_back)

    def _put_lost(self, i: int) -> None:
        super()._put_lost(i)
        self._rows_lost.add(i)

    def _cancel(self, ids: list[int]) -> None:
        super()._cancel(ids)
        self._rows_lost.difference_update(ids)

    def _is_telling(self) -> bool:
        return bool(self._told)

    def _told_of(self, i: int) -> dict[str, Any]:
        told = self._told.get(i, {})
        if i in self._lost:
            return {**told, LOST_EPISODE: True}
        return told

    def _lost_rows(self) -> set[int]:
        return self._rows_lost
