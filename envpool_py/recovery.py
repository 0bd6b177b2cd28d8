"""``on_error="restart"`` and ``"replay"``: envs that fail are recreated, and the run goes on.

Two designs were weighed. In the processes, an executor would catch what its env raises and answer
with a row; but a process that dies cannot, so the parent would need the second half of the same
rules. Here the parent holds them all, for every kind of host alike. What holds:

* every env that fails, or whose process ends, is reported once: with a truncated row, or with the
  info of its next reset where the caller resets it first;
* an env that waits for its back-off is in flight or idle like any other, and blocks no other;
* all that is known about a failed env is one record; a healthy env has none.

With ``"replay"`` a recreated env is first restored to where the lost one was: one request carries
all that the lost env was asked (``envpool_py.record.history``), then the lost request is sent once
more. Where that fails, or the env's past is not known, it goes on as with ``"restart"``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from envpool_py import spaces
from envpool_py.block import WHOLE
from envpool_py.engine import Engine
from envpool_py.errors import EnvError, env_error
from envpool_py.ids import IdArray
from envpool_py.observers import LOST_EPISODE, Steps
from envpool_py.states import READY, RESETTING, RESTARTED, STEPPING
from envpool_py.worker.base import Request
from envpool_py.worker.executor import NEXT_STEP, SAME_STEP

#: Seconds that a back-off takes at the most.
LONGEST_BACKOFF = 30.0

_RESET = Request("reset")


class Policy(NamedTuple):
    """How envs are recreated.

    ``max_restarts``: how often each env may be; None is without limit. ``backoff``: seconds before
    the second time, doubled for each later one; the first is at once. ``on_restart``: called with
    the env's id and the error that ended it, once it has been recreated and before it is reset.
    """

    max_restarts: int | None
    backoff: float
    on_restart: Callable[[int, EnvError], object] | None


class History(Protocol):
    """What each env has been through; see ``envpool_py.record.history``."""

    def knows(self, i: int) -> bool:
        """Whether env ``i`` can be brought back."""

    def asked(self, i: int) -> Request | None:
        """What env ``i`` is asked for now."""

    def matters_for(self, i: int, request: Request) -> bool:
        """Whether the past of env ``i`` can be seen in the row of this request."""

    def replay_request(self, i: int) -> Request:
        """Brings env ``i`` back; answered by None, or by what came out differently."""

    def forget(self, i: int) -> None:
        """The past of env ``i`` is not known any more."""


@dataclass
class Failed:
    """All that is known about an env that failed.

    Attributes:
        error: why.
        due: when it may be recreated, a time of ``time.monotonic``.
        broken: it has to be recreated before it can be asked for anything.
        owed: it was idle when it was lost: its next step reports that.
        reset_next: it was reported, and in next_step mode its next step is a reset.
        lost_episode: in same_step mode the next row, of a reset, is also the last of the episode.
        stale: it was recreated, and not yet brought back.
        repeated: its job is the request that was lost, which observers have seen.
        restoring: what it is to be asked once it has been brought back.
        retrying: it was asked once more for what it was lost in.
        place: where it was in its schedule of seeds, see ``Block.schedule``.
    """

    error: EnvError
    due: float
    place: tuple[int | None, int, bool]
    broken: bool = True
    owed: bool = False
    reset_next: bool = False
    lost_episode: bool = False
    stale: bool = False
    repeated: bool = False
    restoring: Request | None = None
    retrying: bool = False


class Recovery:
    """Handles the errors of envs.

    Args:
        engine: carries requests out.
        policy: how envs are recreated.
        autoreset: None, ``"next_step"`` or ``"same_step"``.
        history: what each env has been through; None with ``"restart"``.
        raises: errors are raised as ever; envs that are recreated by hand follow their schedule.

    Attributes:
        jobs: by env in flight, what is to be sent when it is due, which may need a restart.
        reports: envs that are idle and whose next step is not carried out as such.
        by_hand: whether the caller recreates envs just now.
    """

    def __init__(
        self, engine: Engine, policy: Policy, autoreset: str | None, history: History | None
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._autoreset = autoreset
        self._history = history
        self._failed: dict[int, Failed] = {}
        self._restarts = [0] * len(engine.all_ids)
        # The resets under way, to be tried again should they fail.
        self._resets: dict[int, Request] = {}
        # What the info of the next row has to say.
        self._notes: dict[int, dict[str, Any]] = {}
        # The envs whose row stands for a lost step.
        self._lost_rows: set[int] = set()
        # Whose infos say whether an episode is over for all agents.
        self._turn_based: set[int] = set()
        self.by_hand = False
        self.jobs: dict[int, Request] = {}
        self.reports: set[int] = set()
        engine.batches.keep_last()

    def _note(self, i: int, **facts: Any) -> None:
        self._notes.setdefault(i, {}).update(facts)

    # ------------------------------------------------------------------------- what the caller asks

    def take_steps(self, ids: IdArray, actions: Any) -> tuple[IdArray, Any, Any]:
        """Take on the steps of envs that were lost while idle; return the others, and an index."""
        listed = ids.tolist()
        odd = [i for i in listed if i in self.reports]
        if not odd:
            return ids, WHOLE if ids is self._engine.all_ids else ids, actions
        rows = spaces.list_actions(self._engine.block.spec.action, actions, listed)
        action_of = dict(zip(listed, rows, strict=True))
        lost = np.array(odd, dtype=np.intp)
        self._engine.states.sent(lost, lost, STEPPING)
        for i in odd:
            self._step_of_lost(i, action_of[i])
        rest = np.array([i for i in listed if i not in odd], dtype=np.intp)
        return rest, rest, [action_of[i] for i in rest.tolist()]

    def _step_of_lost(self, i: int, action: Any) -> None:
        failed = self._failed[i]
        self.reports.discard(i)
        text = str(failed.error)
        if failed.reset_next:
            failed.reset_next = failed.owed = False
            self._note(i, is_reset=True)
            self._try_reset(i, _RESET)
        elif self._history is not None and self._history.knows(i):
            failed.owed = False
            self._note(i, env_replayed=text)
            columns = self._engine.block.action_columns(np.array([i]), [action])
            for observer in self._engine.observers:
                observer.steps(np.array([i], dtype=np.intp), Steps(columns, [action]))
            failed.repeated = True
            self.jobs[i] = Request("step", (action,))
        elif self._autoreset == NEXT_STEP and self._over(i):
            failed.owed = False
            self._note(i, is_reset=True, env_error=text)  # there was no episode to lose
            self._try_reset(i, _RESET)
        else:
            failed.owed = False
            self._lose_episode(i, text)

    def take_resets(
        self, ids: IdArray, requests: Sequence[Request]
    ) -> tuple[IdArray, Sequence[Request]]:
        """Take on the resets of envs that must be recreated first; return the others."""
        listed = ids.tolist()
        asked = dict(zip(listed, requests, strict=True))
        self._resets.update(asked)
        broken = [i for i in listed if i in self._failed and self._is_unfit(i)]
        for i in listed:
            self._drop_report(i)
        if not broken:
            return ids, requests
        sick = np.array(broken, dtype=np.intp)
        self._engine.states.sent(sick, sick, RESETTING)
        self.jobs.update((i, asked[i]) for i in broken)
        rest = [i for i in listed if i not in broken]
        return np.array(rest, dtype=np.intp), [asked[i] for i in rest]

    def _is_unfit(self, i: int) -> bool:
        failed = self._failed[i]
        return failed.broken or failed.stale

    def _drop_report(self, i: int) -> None:
        """The caller resets this env: what there was to report goes into the reset's info."""
        self.reports.discard(i)
        failed = self._failed.get(i)
        if failed is None:
            return
        failed.reset_next = False
        if failed.owed:
            failed.owed = False
            restored = self._history is not None and self._history.knows(i)
            self._note(i, **{"env_replayed" if restored else "env_error": str(failed.error)})

    def _try_reset(self, i: int, request: Request) -> None:
        self._resets[i] = self.jobs[i] = request

    def seeded(self, ids: Sequence[int]) -> None:
        """These envs were reset without a row."""
        for i in ids:
            self._drop_report(i)

    def cancelled(self, ids: Sequence[int]) -> None:
        """The requests of these envs were cancelled."""
        for i in ids:
            self.jobs.pop(i, None)
            self._resets.pop(i, None)
            self._lost_rows.discard(i)
            old = self._notes.pop(i, {})
            kept: dict[str, Any] = {k: old[k] for k in ("env_error", "env_replayed") if k in old}
            if kept:
                self._notes[i] = kept
            failed = self._failed.get(i)
            if failed is None:
                continue
            failed.lost_episode = False
            if failed.stale:  # nothing was sent to it yet: it is new
                for observer in self._engine.observers:
                    observer.recreated([i])
            self._drop_restoring(failed)

    # ------------------------------------------------------------------------------------- failures

    def take(self, i: int, error: EnvError) -> bool:
        """Handle the error of env ``i``, which is in flight; False where it is to be raised."""
        engine, history = self._engine, self._history
        before = self._failed.get(i)
        again = before is not None and (before.restoring is not None or before.retrying)
        if not self._charge(i, error):
            if engine.hosts.is_dead(i):
                engine.states.died(i, error)
            return False
        engine.forget_result(i)
        failed = self._failed[i]
        failed.owed = False
        self.reports.discard(i)
        request = None if history is None else history.asked(i)
        # Of such a step the row was returned, and what failed is the reset that came with it.
        late = error.request == "reset" and self._autoreset == SAME_STEP
        late = late and request is not None and request.kind == "step"
        self._drop_restoring(failed)
        if request is not None and not again and not late and history and history.knows(i):
            self._note(i, env_replayed=str(error))
            failed.repeated = True
            self.jobs[i] = request
            return True
        if history is not None:
            self._notes.get(i, {}).pop("env_replayed", None)
            history.forget(i)
        for observer in engine.observers:
            observer.recovered(i, error)
        reset = self._resets.get(i)
        over = self._autoreset == NEXT_STEP and self._over(i)
        if reset is None and (over or error.request == "reset"):  # an automatic one
            reset = _RESET
            self._note(i, is_reset=True)
        if reset is not None:
            self._note(i, env_error=str(error))
            self._try_reset(i, reset)
        else:
            self._lose_episode(i, str(error))
        return True

    def _lose_episode(self, i: int, text: str) -> None:
        """Report env ``i``, in flight with a step, as its mode of automatic resets asks."""
        failed = self._failed[i]
        done = {"env_done": True} if i in self._turn_based else {}
        if self._autoreset == SAME_STEP:
            final = {"env_error": text, **done}
            self._note(
                i, env_error=text, final_obs=self._engine.batches.last_obs(i), final_info=final
            )
            failed.lost_episode = True
            self._try_reset(i, _RESET)
            return
        if self._autoreset == NEXT_STEP:
            failed.reset_next = True
        self._note(i, env_error=text, **done)
        self._lost_rows.add(i)
        self._engine.faults.deliver_lost(i)

    def _over(self, i: int) -> bool:
        """Whether the last row that env ``i`` gave before it failed ended its episode."""
        return self._failed[i].place[2]

    def take_death(self, i: int, error: EnvError) -> bool:
        """The process of env ``i`` has ended; False where that is to be raised."""
        failed = self._failed.get(i)
        if failed is not None and failed.broken:
            return True
        if isinstance(self._engine.beside.get(i), EnvError):  # which is about to be taken
            return True
        if not self._charge(i, error):
            return False
        # It is idle, or its row is there: what it has begun counts.
        self._failed[i].place = self._engine.block.schedule(i)
        state = self._engine.states.state[i]
        if state in (READY, STEPPING, RESETTING):
            self._failed[i].owed = True
            self.reports.add(i)
        return True

    def _charge(self, i: int, error: EnvError) -> bool:
        """Env ``i`` is to be recreated; False where its budget is spent."""
        used, limit = self._restarts[i], self._policy.max_restarts
        if limit is not None and used >= limit:
            self._failed.pop(i, None)
            self.reports.discard(i)
            if self._history is not None:
                self._history.forget(i)
            return False
        self._restarts[i] = used + 1
        delay = self._policy.backoff * 2.0 ** min(used - 1, 60) if used else 0.0
        due = time.monotonic() + min(delay, LONGEST_BACKOFF)
        failed = self._failed.get(i)
        if failed is None:
            failed = self._failed[i] = Failed(error, due, self._engine.recreation.place(i))
        failed.error, failed.due, failed.broken = error, due, True
        return True

    # -------------------------------------------------------------------------------------- restart

    def run_jobs(self, left: float | None) -> float | None:
        """Send what is due; return the seconds to the next job, ``left`` at the most."""
        engine = self._engine
        now = time.monotonic()
        for i in list(self.jobs):
            failed = self._failed[i]
            if failed.due > now or (engine.hosts.is_restarting(i)):
                continue
            try:
                if failed.broken and not self._recreate(i):
                    continue
            except EnvError as error:
                self.jobs.pop(i, None)
                engine.faults.fail(i, error)
                continue
            if i in self.jobs:
                self._send(i, self.jobs.pop(i))
        for i in self.jobs:
            if not engine.hosts.is_restarting(i):
                wait = max(self._failed[i].due - time.monotonic(), 0.0)
                left = wait if left is None else min(left, wait)
        return left

    def _recreate(self, i: int) -> bool:
        """Recreate env ``i``, and all that shared its process if that has ended.

        Returns:
            False where it is not there yet, or that failed; it is tried again when it is due.

        Raises:
            EnvError: it failed, and the budget is spent.
        """
        engine = self._engine
        try:
            if engine.hosts.is_dead(i):
                self._take_mates(i)
                engine.hosts.begin_restart(i)
                if engine.hosts.is_restarting(i):
                    return False
                made = engine.recreation.finish_restart(engine.hosts.of(i))
            else:
                engine.recreation.rebuild(i)
                made = [i]
        except (EnvError, OSError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            if self._charge(i, failure):
                return False
            if engine.hosts.is_dead(i):
                engine.states.died(i, failure)
            raise failure from error
        for j in made:
            failed = self._failed.get(j)
            if failed is not None and failed.broken:
                failed.broken = False
                if self._policy.on_restart is not None:
                    self._policy.on_restart(j, failed.error)
        return True

    def _take_mates(self, i: int) -> None:
        """Handle the errors of envs that shared the process of env ``i``, before they are new."""
        engine = self._engine
        for j in engine.hosts.of(i).ids:
            error = engine.beside.get(j)
            if isinstance(error, EnvError) and not (j in self._failed and self._failed[j].broken):
                self.take(j, error)

    def recreated(self, ids: Sequence[int]) -> list[int]:
        """These envs are new; return those that are not to be brought back."""
        if self._history is None:
            return list(ids)
        back = [
            i
            for i in ids
            if self._history.knows(i) and i in self._failed and (not self.by_hand or i in self.jobs)
        ]
        for i in ids:
            if i in self._failed:
                self._failed[i].stale = i in back
        return [i for i in ids if i not in back]

    def restart_by_hand(self, restart: Callable[[], Sequence[int]]) -> None:
        """The caller recreates envs: these are new, and have a new budget."""
        self.by_hand = True
        try:
            made = restart()
        finally:
            self.by_hand = False
        for i in made:
            self._restarts[i] = 0
            if i in self._failed:
                self._failed[i].broken = False
            self._drop_report(i)

    def place(self, i: int) -> tuple[int | None, int, bool] | None:
        """Where env ``i`` was in its schedule when it failed; None where it has not."""
        failed = self._failed.get(i)
        return None if failed is None else failed.place

    def mend(self, ids: IdArray) -> None:
        """Have these envs recreated, and brought back, if need be; waits for that.

        Raises:
            EnvError: it failed, and the budget is spent.
        """
        for i in ids.tolist():
            failed = self._failed.get(i)
            while failed is not None and (failed.broken or failed.stale):
                if failed.broken:
                    self._engine.sleep(failed.due - time.monotonic())
                    if not self._recreate(i) and self._engine.hosts.is_restarting(i):
                        self._engine.recreation.advance_restart()
                else:
                    self._bring_back(i, failed)
                failed = self._failed.get(i)

    # --------------------------------------------------------------------------------------- replay

    def _send(self, i: int, request: Request) -> None:
        """Send env ``i``, in flight and recreated, its request; bring the env back first."""
        failed, history = self._failed[i], self._history
        stale, failed.stale = failed.stale, False
        if stale and history is not None and history.matters_for(i, request):
            failed.restoring = request
            self._engine.resend(i, history.replay_request(i))
        else:
            self._send_again(i, failed, request)

    def _send_again(self, i: int, failed: Failed, request: Request) -> None:
        if failed.repeated:
            failed.repeated, failed.retrying = False, True
        else:
            for observer in self._engine.observers:
                observer.resets([i], [request])
        self._engine.resend(i, request)

    def replayed(self, i: int, differs: str | None) -> EnvError | None:
        """Env ``i`` was brought back; or was not, and the error says how it differs."""
        failed = self._failed[i]
        request, failed.restoring = failed.restoring, None
        self._engine.forget_result(i)
        if differs is None and request is not None:
            self._send_again(i, failed, request)
            return None
        failed.retrying = True  # it is not to be tried once more
        return _diverged(i, str(differs), self._notes.get(i, {}).get("env_replayed"))

    def _bring_back(self, i: int, failed: Failed) -> None:
        """Bring env ``i``, idle and recreated, back to where it was."""
        assert self._history is not None  # noqa: S101 - nobody else is stale
        failed.stale = False
        owed = str(failed.error) if failed.owed else None
        request = self._history.replay_request(i)
        try:
            differs = self._engine.asking.ask(np.array([i]), [request], observed=False)[0]
            error = None if differs is None else _diverged(i, differs, owed)
        except EnvError as raised:
            error = raised
        if error is None:
            if failed.owed:
                failed.owed = False
                self.reports.discard(i)
                self._note(i, env_replayed=str(failed.error))
            return
        self._history.forget(i)
        if not failed.broken and not self._charge(i, error):
            raise error

    @staticmethod
    def _drop_restoring(failed: Failed) -> None:
        failed.stale = failed.repeated = failed.retrying = False
        failed.restoring = None

    # -------------------------------------------------------------------------- returning rows

    def annotate(self, ids: IdArray, truncated: Any, infos: Any) -> None:
        """Complete the rows that are being returned by what there is to say of faults."""
        if not (self._resets or self._notes or self._failed):
            return
        for k, i in enumerate(ids.tolist()):
            if self._resets.pop(i, None) is not None and "env_done" in infos[k]:
                self._turn_based.add(i)
            if i in self._notes:
                infos[k].update(self._notes.pop(i))
            failed = self._failed.get(i)
            if failed is not None and failed.lost_episode:
                truncated[k] = True
                infos[k].pop("is_reset", None)  # it is also the row of the step

    def told(self, ids: IdArray) -> tuple[set[int], dict[int, dict[str, Any]]]:
        """For observers, before ``annotate``: lost rows, and what is noted of each env."""
        notes = {}
        for i in ids.tolist():
            notes[i] = dict(self._notes.get(i, {}))
            if i in self._failed and self._failed[i].lost_episode:
                notes[i][LOST_EPISODE] = True
        return self._lost_rows & set(ids.tolist()), notes

    def landed(self, ids: IdArray) -> None:
        """The rows of these envs are returned."""
        if not self._failed and not self._lost_rows:
            return
        for i in ids.tolist():
            if i in self._lost_rows:
                self._lost_rows.discard(i)
                if self._autoreset is None:
                    self._engine.states.state[i] = RESTARTED
            failed = self._failed.get(i)
            if failed is None:
                continue
            failed.lost_episode = failed.retrying = False
            if failed.reset_next:
                self.reports.add(i)
            if not (failed.broken or failed.owed or failed.reset_next or failed.stale):
                del self._failed[i]


def _diverged(i: int, how: str, text: str | None) -> EnvError:
    first = "" if text is None else f"; it was lost in the first place by\n{text}"
    return EnvError(f"env {i}: replay: {how}: the env is not deterministic{first}", (i,), "replay")
