"""``on_error="restart"``: an env that fails is recreated, and the run goes on.

The story of a failure, in the order of this file:

1. The process of an env ends, or an env raises in place of its row: ``handle`` decides whether to
   raise the error or to keep a ``Failed`` until it is reported. Other envs of the process fail too.
2. In place of a lost step the engine sends the request ``lose``, whose row the executor of the new
   env writes: truncated, with the last observation. A reset that failed is sent again. An env that
   was lost while idle is sent such a request when the caller sends it the next one.
3. ``run_jobs``, called whenever the engine waits, restarts the process of an env when its back-off
   is over, and then sends its request, before which the executor gets options and position.
4. The row is returned as any other row, and ``returned`` drops the record.

So every env that failed is reported once, with ``info["env_error"]``. An env that waits for its
back-off is in flight or idle like any other, and delays no other env.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envpool_py.engine import restart
from envpool_py.engine.engine import Engine
from envpool_py.engine.states import LOST, RESETTING, STEPPING
from envpool_py.env import spaces
from envpool_py.env.pool_options import NEXT_STEP
from envpool_py.env.request import Request
from envpool_py.errors import EnvError, env_error
from envpool_py.ids import IdArray, Selection

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 5.0

_LOGGER = logging.getLogger("envpool_py")


@dataclass
class Failed:
    """An env that failed.

    Attributes:
        error: the error of the env.
        due: the time at which it may be recreated, of ``time.monotonic``.
        request: the request in flight, which reports the error; None: the env is idle.
        broken: the env is not recreated yet, so the request was not sent.
        is_new: a restarted process has made the env, but it is not configured.
    """

    error: EnvError
    due: float
    request: Request | None
    broken: bool = True
    is_new: bool = False


class Recovery:
    """Handles the errors of envs; ``failed`` are those whose errors are not reported yet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._options = engine.options.recovery
        self._autoreset = engine.options.env.autoreset_mode
        # The failures of each env since it last completed an episode.
        self._failures = [0] * len(engine.all.ids)
        # The resets in flight that the caller asked for, which are sent again if they fail.
        self._resets: dict[int, Request] = {}
        self.failed: dict[int, Failed] = {}
        engine.batches.keep_last()

    # ------------------------------------------------------------------------------------ failures

    def handle(self, i: int, error: EnvError, *, in_flight: bool) -> bool:
        """Handle the error of env ``i``; False if it must be raised."""
        known = self.failed.get(i)
        if known is not None and known.broken:  # its process has ended, too
            known.is_new = False
            return True
        if error.request == "env_fn":
            self._engine.hosts.restarts[i] -= 1
        if not self._has_budget(i, error):
            return False
        request = self._request_after(i, error) if in_flight else None
        for observer in self._engine.observers if in_flight else ():
            observer.failed({i: error}, raised=False)
        # One assignment, because an interrupt must not leave a request in flight without an answer.
        self.failed[i] = Failed(error, self._due(i), request)
        return True

    def _has_budget(self, i: int, error: EnvError) -> bool:
        """Count a failure; return whether env ``i`` may be restarted once more."""
        count, limit = self._failures[i], self._options.max_restarts
        # An env that never completed a reset has a bug in its code or its arguments.
        works = self._engine.flight.positions.of(i)[0] >= 0
        if works and (limit is None or count < limit):
            self._failures[i] = count + 1
            return True
        self.failed.pop(i, None)
        if works and limit:
            restarts = "1 restart" if limit == 1 else f"{limit} restarts"
            fact = f" failed again after {restarts} (max_restarts={limit}): "
            if fact not in error.message:  # it may be the second time that it is handled
                error.message = error.message.replace(": ", fact, 1)
        return False

    def _due(self, i: int) -> float:
        """Return when env ``i`` may be recreated: at once after its first failure in a row."""
        earlier = self._failures[i] - 1
        delay = self._options.restart_backoff * 2.0 ** min(earlier - 1, 60) if earlier else 0.0
        return time.monotonic() + min(delay, LONGEST_BACKOFF)

    def _request_after(self, i: int, error: EnvError) -> Request:
        """Return the request in place of the one in which env ``i`` failed."""
        known, text = self.failed.get(i), error.text
        if known is not None and known.request is not None:  # that failed, too
            return known.request._replace(error=text)
        if i in self._resets:
            return self._resets[i]._replace(error=text)
        # In next_step mode after the end of an episode, no step is lost.
        over = self._autoreset == NEXT_STEP and self._engine.flight.positions.of(i)[1]
        if over or error.request == "reset":  # an automatic reset
            return Request("reset", error=text)
        return Request("lose", (self._engine.batches.last_obs(i),), error=text)

    # --------------------------------------------------------------------- requests of the caller

    def take_steps(self, envs: Selection, actions: Any) -> tuple[Selection, Any]:
        """Send other requests to envs that were lost while idle; return the rest of the steps."""
        ids, listed = envs.ids, envs.ids.tolist()
        lost = [i for i in listed if i in self.failed]
        if not lost:
            return envs, actions
        rows = spaces.list_actions(self._engine.block.spec.action, actions, listed)
        action_of = dict(zip(listed, rows, strict=True))
        self._engine.states.mark_sent(Selection(np.array(lost)), STEPPING)
        for i in lost:
            request = self._request_after(i, self.failed[i].error)
            self.failed[i].request = request
            if not self.failed[i].broken:
                self._engine.flight.send_again(i, request)
        rest = ids[~np.isin(ids, lost)]
        return Selection(rest), [action_of[i] for i in rest.tolist()]

    def take_resets(
        self, envs: Selection, requests: Sequence[Request]
    ) -> tuple[Selection, Sequence[Request]]:
        """Keep the resets of envs that must be recreated first; return the others."""
        ids = envs.ids
        request_of = dict(zip(ids.tolist(), requests, strict=True))
        for i in request_of.keys() & self.failed.keys():
            request_of[i] = request_of[i]._replace(error=self.failed[i].error.text)
            self.failed[i].request = request_of[i]
        self._resets.update(request_of)
        broken = [i for i in request_of if i in self.failed and self.failed[i].broken]
        if broken:
            self._engine.states.mark_sent(Selection(np.array(broken)), RESETTING)
            ids = ids[~np.isin(ids, broken)]
            envs = Selection(ids)
        return envs, [request_of[i] for i in ids.tolist()]

    def cancelled(self, ids: Sequence[int]) -> None:
        """Drop the requests of these envs; an error is reported with the next one."""
        for i in ids:
            self._resets.pop(i, None)
            if i in self.failed:
                self.failed[i].request = None

    # ------------------------------------------------------------------------------------- restart

    def has_jobs(self) -> bool:
        """Whether an env in flight must be recreated."""
        return any(one.broken and one.request is not None for one in self.failed.values())

    def run_jobs(self, left: float | None) -> float | None:
        """Recreate envs in flight that are due; return the seconds until the next, or ``left``."""
        hosts = self._engine.hosts
        for i, failed in list(self.failed.items()):
            if failed.broken and failed.request is not None and failed.due <= time.monotonic():
                try:
                    if not hosts.of(i).is_restarting:
                        self._recreate(i)
                except EnvError as error:
                    self._engine.flight.fail(i, error)
        for i, failed in self.failed.items():
            if failed.broken and failed.request is not None and not hosts.of(i).is_restarting:
                wait = max(failed.due - time.monotonic(), 0.0)
                left = wait if left is None else min(left, wait)
        return left

    def _recreate(self, i: int) -> None:
        """Recreate env ``i``; if its process has ended, begin or finish a restart of the process.

        EnvError if that failed, and the env has used all its restarts.
        """
        engine, failed, host = self._engine, self.failed[i], self._engine.hosts.of(i)
        try:
            if host.is_dead:
                if not restart.restart_process(engine, host):
                    return
                for other in self.failed.keys() & host.ids:
                    self.failed[other].is_new = True
            in_flight = failed.request is not None
            restart.recreate(engine, [i], new=failed.is_new, wait=not in_flight)
        except (EnvError, OSError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            request = failed.request
            if not self._has_budget(i, failure):
                if host.is_dead:
                    engine.states.mark_dead(i, failure)
                raise failure  # noqa: B904 - it has its cause
            if request is not None:
                request = request._replace(error=failure.text)
            self.failed[i] = Failed(failure, self._due(i), request)

    def recreated(
        self, ids: Sequence[int], before: Sequence[Request | None], *, by_hand: bool
    ) -> None:
        """Send the requests of these envs, which were recreated, or will be by ``before``."""
        for i, first in zip(ids, before, strict=True):
            if by_hand:
                self._failures[i] = 0
            failed = self.failed.get(i)
            if failed is None:
                continue
            failed.broken = False
            self._log(i, failed.error)
            if self._options.on_restart is not None:
                self._options.on_restart(i, failed.error)
            if failed.request is not None:
                self._engine.flight.send_again(i, failed.request._replace(before=first))
            elif by_hand:
                del self.failed[i]

    def _log(self, i: int, error: EnvError) -> None:
        """Log the first three restarts of the pool, then every 10th, from 100 on every 100th."""
        restarts = self._engine.hosts.restarts
        total = int(restarts.sum())
        if total <= 3 or (total >= 10 and total % 10 ** (len(str(total)) - 1) == 0):
            cause = error.message.partition("\n")[0].partition(": ")[2]
            text = "env %d restarted (restart %d of this env, %d of the pool): %s"
            _LOGGER.warning(text, i, restarts[i], total, cause)

    def mend(self, ids: IdArray) -> None:
        """Recreate those of these envs that need it, and wait for that; EnvError as above."""
        engine = self._engine
        for i in ids.tolist():
            while i in self.failed and self.failed[i].broken:
                engine.hosts.closing.wait(max(self.failed[i].due - time.monotonic(), 0.0))
                engine.flight.refuse_if_closed()
                self._recreate(i)
                if engine.hosts.of(i).is_restarting:
                    restart.advance_restart(engine)

    def returned(self, ids: IdArray, completed: Collection[int]) -> None:
        """Update the records after rows were returned; some of them have ended an episode."""
        for i in completed:
            if i not in self.failed:
                self._failures[i] = 0
        for i in ids.tolist() if self._resets or self.failed else ():
            self._resets.pop(i, None)
            failed = self.failed.get(i)
            if failed is not None and failed.request is not None:
                if failed.request.kind == "lose" and self._autoreset is None:
                    self._engine.states.state[i] = LOST
                del self.failed[i]
