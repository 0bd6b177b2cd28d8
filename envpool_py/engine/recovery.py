"""``on_error="restart"``: envs that fail are recreated, and the run goes on.

The parent process applies all rules of recovery, for every kind of host, because a process that
has died cannot apply any. Invariants:

* every env that fails, or whose process ends, is reported once: with a truncated row, or with the
  info of its next reset if the caller resets it first;
* an env that waits for its back-off is in flight or idle like any other, and delays no other env;
* a failed env has one record, a ``Failed``; a healthy env has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envpool_py.engine import restart
from envpool_py.engine.engine import Engine
from envpool_py.engine.states import LOST, READY, RESETTING, STEPPING
from envpool_py.env import spaces
from envpool_py.env.options import NEXT_STEP, SAME_STEP, RecoveryOptions
from envpool_py.env.request import Request
from envpool_py.errors import EnvError, env_error
from envpool_py.ids import IdArray, Selection
from envpool_py.record.observers import LOST_EPISODE

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 30.0

_RESET = Request("reset")


@dataclass
class Failed:
    """The record of an env that failed.

    Attributes:
        error: the error of the env.
        due: the time at which it may be recreated, of ``time.monotonic``.
        broken: the env must be recreated before its next request.
        job: the request to send when it is due; the env is in flight meanwhile.
        note: keys and values to add to the info of its next row.
        lost_row: the next row replaces the row of a lost step.
        lost_episode: in same_step mode the next row, of a reset, also ends the lost episode.
        unreported: the env was lost while idle; its next step reports the error.
        reset_next: the error was reported, and in next_step mode the next step is a reset.
    """

    error: EnvError
    due: float
    broken: bool = True
    job: Request | None = None
    note: dict[str, Any] = field(default_factory=dict)
    lost_row: bool = False
    lost_episode: bool = False
    unreported: bool = False
    reset_next: bool = False


class Recovery:
    """Handles the errors of envs.

    Attributes:
        failed: the records of failed envs, until they are recreated and reported.
        by_hand: whether ``pool.restart`` is under way.
    """

    def __init__(self, engine: Engine, options: RecoveryOptions, autoreset: Any) -> None:
        self._engine = engine
        self._options = options
        self._autoreset = autoreset
        self._restarts = [0] * len(engine.all.ids)
        # The resets in flight, which are tried again if they fail.
        self._resets: dict[int, Request] = {}
        self.failed: dict[int, Failed] = {}
        self.by_hand = False
        engine.batches.keep_last()

    # --------------------------------------------------------------------- requests of the caller

    def take_steps(self, envs: Selection, actions: Any) -> tuple[Selection, Any]:
        """Handle the steps of envs lost while idle; return the other envs and their actions."""
        ids, listed = envs.ids, envs.ids.tolist()
        lost = [
            i
            for i in listed
            if i in self.failed and (self.failed[i].unreported or self.failed[i].reset_next)
        ]
        if not lost:
            return envs, actions
        rows = spaces.list_actions(self._engine.block.spec.action, actions, listed)
        action_of = dict(zip(listed, rows, strict=True))
        self._engine.states.mark_sent(Selection(np.array(lost)), STEPPING)
        for i in lost:
            failed = self.failed[i]
            reset_next, failed.reset_next, failed.unreported = failed.reset_next, False, False
            if reset_next:
                failed.note["is_reset"] = True
                self._try_reset(i, _RESET)
            else:
                self._go_on(i, failed)
        rest = ids[~np.isin(ids, lost)]
        return Selection(rest), [action_of[i] for i in rest.tolist()]

    def take_resets(
        self, envs: Selection, requests: Sequence[Request]
    ) -> tuple[Selection, Sequence[Request]]:
        """Handle the resets of envs that must be recreated first; return the other ones."""
        ids = envs.ids
        request_of = dict(zip(ids.tolist(), requests, strict=True))
        self._resets.update(request_of)
        self.drop_reports(request_of)
        broken = [i for i in request_of if i in self.failed and self.failed[i].broken]
        if not broken:
            return envs, requests
        self._engine.states.mark_sent(Selection(np.array(broken)), RESETTING)
        for i in broken:
            self.failed[i].job = request_of[i]
        rest = ids[~np.isin(ids, broken)]
        return Selection(rest), [request_of[i] for i in rest.tolist()]

    def drop_reports(self, ids: Iterable[int]) -> None:
        """Report pending errors in the infos of the resets that the caller has asked for."""
        for i in ids:
            failed = self.failed.get(i)
            if failed is None:
                continue
            if failed.unreported:
                failed.note["env_error"] = str(failed.error)
            failed.unreported = failed.reset_next = False

    def _try_reset(self, i: int, request: Request) -> None:
        self._resets[i] = self.failed[i].job = request

    def cancelled(self, ids: Sequence[int]) -> None:
        """Drop the jobs of these envs."""
        for i in ids:
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None:
                failed.job = None
                failed.lost_row = failed.lost_episode = False
                failed.note = {k: text for k, text in failed.note.items() if k == "env_error"}

    # ------------------------------------------------------------------------------------- failures

    def handle(self, i: int, error: EnvError) -> bool:
        """Handle the error of env ``i``, which is in flight; False if it must be raised."""
        engine = self._engine
        failed = self._charge(i, error)
        if failed is None:
            if engine.hosts.is_dead(i):
                engine.states.mark_dead(i, error)
            return False
        engine.flight.forget_result(i)
        failed.unreported = False
        for observer in engine.observers:
            observer.failed({i: error}, raised=False)
        self._go_on(i, failed)
        return True

    def _go_on(self, i: int, failed: Failed) -> None:
        """Report the error in the next row of env ``i``, in flight: of a reset, or a lost row."""
        failed.note["env_error"] = str(failed.error)
        reset = self._resets.get(i)
        # In next_step mode after the end of an episode, no episode is lost.
        over = self._autoreset == NEXT_STEP and self._engine.flight.positions.of(i)[2]
        if reset is None and (over or failed.error.request == "reset"):  # an automatic reset
            reset = _RESET
            failed.note["is_reset"] = True
        if reset is not None:
            self._try_reset(i, reset)
        else:
            self._lose_episode(i, failed)

    def _lose_episode(self, i: int, failed: Failed) -> None:
        """Report the lost step of env ``i`` in the way of the pool's ``autoreset_mode``."""
        final: dict[str, Any] = {"env_error": str(failed.error)}
        if self._engine.env_spaces[i].turn_based:
            final["env_done"] = True
        if self._autoreset == SAME_STEP:
            failed.note.update(final_obs=self._engine.batches.last_obs(i), final_info=final)
            failed.lost_episode = True
            self._try_reset(i, _RESET)
            return
        failed.reset_next = self._autoreset == NEXT_STEP
        failed.note.update(final)
        failed.lost_row = True
        self._engine.put_lost(i)

    def handle_death(self, i: int, error: EnvError) -> bool:
        """Handle the end of the process of env ``i``; False if the error must be raised."""
        known = self.failed.get(i)
        if known is not None and known.broken:
            return True
        if isinstance(self._engine.flight.beside.get(i), EnvError):
            return True  # ``handle`` gets this error soon
        failed = self._charge(i, error)
        if failed is None:
            return False
        failed.unreported = self._engine.states.state[i] in (READY, STEPPING, RESETTING)
        return True

    def _charge(self, i: int, error: EnvError) -> Failed | None:
        """Schedule the recreation of env ``i``; None if it has used all its restarts."""
        used, limit = self._restarts[i], self._options.max_restarts
        if limit is not None and used >= limit:
            self.failed.pop(i, None)
            return None
        self._restarts[i] = used + 1
        delay = self._options.restart_backoff * 2.0 ** min(used - 1, 60) if used else 0.0
        due = time.monotonic() + min(delay, LONGEST_BACKOFF)
        failed = self.failed.get(i)
        if failed is None:
            failed = self.failed[i] = Failed(error, due)
        failed.error, failed.due, failed.broken = error, due, True
        return failed

    # -------------------------------------------------------------------------------------- restart

    def has_jobs(self) -> bool:
        """Whether there is a request to send when it is due."""
        return any(failed.job is not None for failed in self.failed.values())

    def run_jobs(self, left: float | None) -> float | None:
        """Send the jobs that are due; return the seconds until the next one, at most ``left``."""
        hosts = self._engine.hosts
        now = time.monotonic()
        for i, failed in list(self.failed.items()):
            if failed.job is None or failed.due > now or hosts.is_restarting(i):
                continue
            try:
                if failed.broken and not self._recreate(i):
                    continue
            except EnvError as error:
                failed.job = None
                self._engine.flight.fail(i, error)
                continue
            if failed.job is not None:
                job, failed.job = failed.job, None
                for observer in self._engine.observers:
                    observer.resets([i], [job])
                self._engine.flight.send_again(i, job)
        for i, failed in self.failed.items():
            if failed.job is not None and not hosts.is_restarting(i):
                wait = max(failed.due - time.monotonic(), 0.0)
                left = wait if left is None else min(left, wait)
        return left

    def _recreate(self, i: int) -> bool:
        """Recreate env ``i``; if its process has ended, also the other envs of that process.

        Returns:
            False if the env is still being recreated, or if that failed and is tried again.

        Raises:
            EnvError: recreating the env failed, and it has used all its restarts.
        """
        engine = self._engine
        try:
            if engine.hosts.is_dead(i):
                self._handle_mates(i)
                engine.hosts.begin_restart(i)
                if engine.hosts.is_restarting(i):
                    return False
                made = restart.finish_restart(engine, engine.hosts.of(i))
            else:
                restart.rebuild(engine, np.array([i], dtype=np.intp))
                made = [i]
        except (EnvError, OSError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            if self._charge(i, failure) is not None:
                return False
            if engine.hosts.is_dead(i):
                engine.states.mark_dead(i, failure)
            raise failure from error
        for j in made:
            if self._options.on_restart is not None and j in self.failed:
                self._options.on_restart(j, self.failed[j].error)
        return True

    def _handle_mates(self, i: int) -> None:
        """Handle the errors of the other envs in the process of env ``i`` before it restarts."""
        for j in self._engine.hosts.of(i).ids:
            error = self._engine.flight.beside.get(j)
            failed = self.failed.get(j)
            if isinstance(error, EnvError) and (failed is None or not failed.broken):
                self.handle(j, error)

    def recreated(self, ids: Iterable[int]) -> None:
        for i in ids:
            if i in self.failed:
                self.failed[i].broken = False

    def restart_by_hand(self, restart: Callable[[], Sequence[int]]) -> None:
        """Recreate envs for ``pool.restart``, and set their numbers of restarts to 0."""
        self.by_hand = True
        try:
            made = restart()
        finally:
            self.by_hand = False
        for i in made:
            self._restarts[i] = 0
        self.drop_reports(made)

    def mend(self, ids: IdArray) -> None:
        """Recreate those of these envs that need it, and wait for the end of that.

        Raises:
            EnvError: recreating an env failed, and it has used all its restarts.
        """
        for i in ids.tolist():
            while (failed := self.failed.get(i)) and failed.broken:
                self._engine.hosts.closing.wait(max(failed.due - time.monotonic(), 0.0))
                self._engine.flight.refuse_if_closed()
                if not self._recreate(i) and self._engine.hosts.is_restarting(i):
                    restart.advance_restart(self._engine)

    # -------------------------------------------------------------------------- returning rows

    def annotate(self, ids: IdArray, truncated: Any, infos: Any) -> None:
        """Add the notes on faults to the rows that are being returned."""
        if not (self._resets or self.failed):
            return
        for k, i in enumerate(ids.tolist()):
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is None:
                continue
            infos[k].update(failed.note)
            failed.note = {}
            if failed.lost_episode:
                truncated[k] = True
                infos[k].pop("is_reset", None)  # the row also belongs to the lost step

    def notes_of(self, ids: IdArray) -> tuple[set[int], dict[int, dict[str, Any]]]:
        """Return the envs with lost rows and the note of each env, for observers."""
        failed = {i: self.failed[i] for i in ids.tolist() if i in self.failed}
        notes = {
            i: {**one.note, LOST_EPISODE: True} if one.lost_episode else dict(one.note)
            for i, one in failed.items()
        }
        return {i for i, one in failed.items() if one.lost_row}, notes

    def returned(self, ids: IdArray) -> None:
        """Update the records of these envs after their rows were returned."""
        for i in ids.tolist() if self.failed else ():
            failed = self.failed.get(i)
            if failed is None:
                continue
            if failed.lost_row and self._autoreset is None:
                self._engine.states.state[i] = LOST
            failed.lost_row = failed.lost_episode = False
            if not (failed.broken or failed.unreported or failed.reset_next):
                del self.failed[i]
