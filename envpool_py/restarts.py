"""``on_error="restart"``: envs that fail are made anew, and the run goes on.

Two designs were weighed. In the processes, an executor would catch what its env raises and answer
with a row; but a process that dies can't, so the parent would need the second half of the same
rules. Here the parent holds them all, as a layer over ``EnvLives``: it takes the errors out before
they are raised, has the envs made anew and puts rows in their place, for every worker class alike.
What holds:

* every env that fails, or whose process ends, is reported once: with a row that is truncated, or
  with the info of its next reset where the caller resets it first;
* an env that waits for its back-off is in flight or idle as any other, and holds up nobody else
  while it waits;
* nothing is done for each step but to copy the observations that are handed out; and nothing at all
  in a pool that raises its errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np

from envpool_py import spaces
from envpool_py.errors import EnvError, env_error
from envpool_py.ids import IdArray
from envpool_py.life import (
    DEAD,
    FAILED,
    KEPT,
    NEVER_RESET,
    READY,
    RESETTING,
    RESTARTED,
    STEPPING,
    EnvLives,
    StepResult,
)
from envpool_py.worker.base import Request
from envpool_py.worker.execute import NEXT_STEP, SAME_STEP
from envpool_py.worker.group import WorkerGroup

#: Seconds that a back-off takes at the most.
LONGEST_BACKOFF = 30.0

_RESET = Request("reset")


class Policy(NamedTuple):
    """How envs are made anew.

    ``max_restarts``: how often each env is; None: without end. ``backoff``: seconds before the
    second time, doubled for each later one; the first is at once. ``on_restart``: called with the
    env's id and the error that ended it, once it has been made anew and before it is reset.
    """

    max_restarts: int | None
    backoff: float
    on_restart: Callable[[int, EnvError], object] | None


class RestartingLives(EnvLives):
    """The lives of envs that are made anew when they fail.

    Args:
        group: carries requests out; started.
        columns: as for ``EnvLives``.
        copy: as for ``EnvLives``.
        policy: how envs are made anew.
        autoreset: None, ``"next_step"`` or ``"same_step"``.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        columns: bool,
        copy: bool,
        policy: Policy,
        autoreset: str | None,
    ) -> None:
        super().__init__(group, columns=columns, copy=copy)
        num_envs = len(group.workers)
        group.block.keep_last()
        self._policy = policy
        self._autoreset = autoreset
        #: Restarts so far, of each env.
        self.restarts = [0] * num_envs
        self._due = [0.0] * num_envs
        # To be made anew before they can be asked for anything, and why.
        self._broken: dict[int, EnvError] = {}
        # Those of them whose process has ended.
        self._gone: set[int] = set()
        # Idle when they were lost: their next step is to say why.
        self._owed: dict[int, str] = {}
        # Reported in next_step mode: their next step is a reset.
        self._reset_next: set[int] = set()
        # In flight, to be sent when they are due, which may need a restart.
        self._jobs: dict[int, Request] = {}
        # The resets under way, to be tried again should they fail.
        self._resetting: dict[int, Request] = {}
        # What the info of the next row has to say.
        self._told: dict[int, dict[str, Any]] = {}
        # In same_step mode: the next row, of a reset, is also the last of the lost episode.
        self._lost: set[int] = set()
        self._asking = False
        # Whether the last row ended an episode.
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        # Of the envs' schedules of seeds, for an executor made anew.
        # Whose infos say whether an episode is over, as one agent's flags don't: envs with turns.
        self._tell_done: set[int] = set()
        self._scheduled = False
        self._episode = np.full(num_envs, -1)
        self._root: list[int | None] = [None] * num_envs

    def follow_schedule(self) -> None:
        """Every reset is seeded: count the episodes, so that a restarted env can go on."""
        self._scheduled = True
        for i, request in self._group.configured.items():
            self._root[i] = request.kwargs["root"]

    # ----------------------------------------------------------------------------------- sending

    def send_steps(self, ids: IdArray, actions: Any) -> None:
        """As ``EnvLives``; an env that was lost while idle says so instead of stepping."""
        listed = ids.tolist() if self._owed or self._reset_next else []
        odd = [i for i in listed if i in self._owed or i in self._reset_next]
        if not odd:
            super().send_steps(ids, actions)
        else:
            rows = spaces.list_actions(self._group.block.shape.action, actions, listed)
            rest = [(i, row) for i, row in zip(listed, rows, strict=True) if i not in set(odd)]
            if rest:
                own = np.array([i for i, _ in rest], dtype=np.intp)
                super().send_steps(own, [row for _, row in rest])
            self._take_off(np.array(odd, dtype=np.intp), STEPPING)
            actions_of = dict(zip(listed, rows, strict=True))
            for i in odd:
                self._step_of_lost(i, actions_of[i])
        if self._group.errors:
            self._convert()

    def _step_all(self, actions: Any) -> StepResult:
        if self._owed or self._reset_next:
            return self._blocking(self.send_steps, self.everything, actions)
        return super()._step_all(actions)

    def _step_of_lost(self, i: int, action: Any) -> None:  # noqa: ARG002 - for who carries it out
        text = self._owed.pop(i, None)
        if text is None:
            self._reset_next.discard(i)
            self._tell(i, is_reset=True)
            self._try_reset(i, _RESET)
        elif self._autoreset == NEXT_STEP and self._ended[i]:  # there was no episode to lose
            self._tell(i, is_reset=True, env_error=text)
            self._try_reset(i, _RESET)
        else:
            self._lose_episode(i, text)

    def send_resets(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """As ``EnvLives``; what is to be made anew is sent when it is due."""
        listed = ids.tolist()
        asked = dict(zip(listed, requests, strict=True))
        unfit = self._unfit()
        if unfit.isdisjoint(asked):
            super().send_resets(ids, requests)
        else:
            well = [i for i in listed if i not in unfit]
            if well:
                super().send_resets(np.array(well, dtype=np.intp), [asked[i] for i in well])
            sick = [i for i in listed if i in unfit]
            self._take_off(np.array(sick, dtype=np.intp), RESETTING)
            self._jobs.update((i, asked[i]) for i in sick)
        self._resetting.update(asked)
        for i in listed:
            self._forget_lost(i)
        if self._group.errors:
            self._convert()

    def _unfit(self) -> AbstractSet[int]:
        """The envs that can't be sent a request just so."""
        return self._broken.keys()

    def _forget_lost(self, i: int) -> None:
        """The caller resets this env: what there was to report goes into the reset's info."""
        self._reset_next.discard(i)
        if i in self._owed:
            self._tell(i, env_error=self._owed.pop(i))

    def _tell(self, i: int, **facts: Any) -> None:
        self._told.setdefault(i, {}).update(facts)

    def _try_reset(self, i: int, request: Request) -> None:
        self._resetting[i] = request
        self._jobs[i] = request

    def give_up(self, ids: IdArray, *, landed: bool = False) -> None:
        """As ``EnvLives``."""
        super().give_up(ids, landed=landed)
        for i in ids.tolist():
            self._jobs.pop(i, None)
            self._resetting.pop(i, None)
            self._lost.discard(i)
            told = self._told.pop(i, {})
            if "env_error" in told:
                self._tell(i, env_error=told["env_error"])

    # ------------------------------------------------------------------------------------ faults

    def _wait(self, wait_num: int, timeout: float | None, only: list[int] | None) -> None:
        before = len(self._finished)
        if self._jobs:
            timeout = self._run_jobs(timeout)
            if self._group.died:
                self._note_deaths()
            if self._convert() or len(self._finished) > before:
                return  # there may be more to send
            at_work = self.in_flight > len(self._jobs) + before or any(
                self._group.coming(i) for i in self._jobs
            )
            if not self._asking and not at_work:
                time.sleep(timeout or 0.0)
                return
        super()._wait(wait_num, timeout, only)
        if self._jobs and len(self._finished) == before:
            time.sleep(1e-3)  # a group that executes in its wait has not waited

    def _attend(self) -> None:
        super()._attend()
        if self._group.errors:
            self._convert()

    def _run_jobs(self, timeout: float | None) -> float | None:
        """Send what is due; return the seconds to the next that will be, or ``timeout``."""
        now = time.monotonic()
        for i in list(self._jobs):
            # The last restart may have met the next fault.
            if self._group.died:
                self._note_deaths()
            if self._group.errors:
                self._convert()
            request = self._jobs.get(i)
            if request is None or self._due[i] > now:
                continue
            if i in self._broken:
                try:
                    if not self._recover(i, at_once=False):
                        continue
                except EnvError as error:
                    self._jobs.pop(i, None)
                    self._group.errors[i] = error
                    self._finished.append(i)
                    continue
            del self._jobs[i]
            self._send_now(i, request)
        due = [self._due[i] for i in self._jobs if not self._group.coming(i)]
        if not due:
            return timeout
        left = max(min(due) - time.monotonic(), 0.0)
        return left if timeout is None else min(left, timeout)

    def _send_now(self, i: int, request: Request) -> None:
        self._group.send([i], [request])

    def _convert(self) -> bool:
        """Take the errors of envs in flight out, as far as their budgets go; True if any."""
        errors = self._group.errors
        before = len(errors)
        state = self._state
        for i in [i for i in errors if KEPT <= state[i] < DEAD]:
            error = errors[i]
            if not self._charge(i, error):
                if i in self._gone:
                    self._fate[i] = DEAD
                continue
            brought_back = self._bring_back(i, error)
            self._take_out(i, error, brought_back=brought_back)
            if brought_back:
                continue
            request = self._resetting.get(i)
            ends = self._autoreset == NEXT_STEP and self._ended[i]
            if request is None and (ends or error.request == "reset"):  # an automatic one
                request = _RESET
                self._episode[i] -= self._autoreset == SAME_STEP
                self._tell(i, is_reset=True)
            if request is not None:
                self._tell(i, env_error=str(error))
                self._try_reset(i, request)
            else:
                self._lose_episode(i, str(error))
        return len(errors) < before

    def _bring_back(self, i: int, error: EnvError) -> bool:  # noqa: ARG002 - here nobody is
        """Have env ``i`` carry out its request after all; False where it can't."""
        return False

    def _take_out(self, i: int, error: EnvError, *, brought_back: bool) -> None:  # noqa: ARG002
        """Drop the error of env ``i``, which nobody is to see raised."""
        del self._group.errors[i]
        self._finished.remove(i)
        self._group.block.drop_side(i)

    def _put_lost(self, i: int) -> None:
        self._group.block.put_lost(i)

    def _lose_episode(self, i: int, text: str) -> None:
        """Report env ``i``, in flight with a step, as its mode of automatic resets asks."""
        done = {"env_done": True} if i in self._tell_done else {}
        if self._autoreset == SAME_STEP:
            last = self._group.block.last_obs(i)
            self._tell(i, env_error=text, final_obs=last, final_info={"env_error": text, **done})
            self._lost.add(i)
            self._try_reset(i, _RESET)
            return
        if self._autoreset == NEXT_STEP:
            self._reset_next.add(i)
        else:
            self._fate[i] = RESTARTED
        self._put_lost(i)
        self._tell(i, env_error=text, **done)
        self._finished.append(i)

    def _charge(self, i: int, error: EnvError) -> bool:
        """Note that env ``i`` is to be made anew; False where its budget is spent."""
        policy = self._policy
        used = self.restarts[i]
        if policy.max_restarts is not None and used >= policy.max_restarts:
            self._broken.pop(i, None)
            return False
        self.restarts[i] = used + 1
        delay = min(policy.backoff * 2.0 ** min(used - 1, 60), LONGEST_BACKOFF) if used else 0.0
        self._due[i] = time.monotonic() + delay
        self._broken[i] = error
        return True

    def _note_deaths(self) -> None:
        group = self._group
        died = group.died[:]
        group.died.clear()
        for i in died:
            self._gone.add(i)
            flying = KEPT <= self._state[i] < DEAD
            if i in self._broken or i in group.errors:
                continue  # known already, or about to be
            error = group.death_of(i)
            error.request = "reset" if i in self._resetting else "step" if flying else ""
            if flying and i not in self._finished:
                group.errors[i] = error
                self._finished.append(i)
            elif not self._charge(i, error):
                self._fate[i] = DEAD
                if not flying:
                    self._state[i] = DEAD
            elif flying or self._state[i] == READY:
                self._owed[i] = str(error)

    def _recover(self, i: int, *, at_once: bool = True) -> bool:
        """Make env ``i`` anew, and all that shared its process if that has ended.

        Args:
            i: its id.
            at_once: wait for a process to start; else that is begun, and others go on meanwhile.

        Returns:
            False where it is not there yet, or that failed; it is tried again when the next
            back-off has passed.

        Raises:
            EnvError: it failed, and the budget is spent.
        """
        group = self._group
        try:
            if not at_once and not group.prepare_restart([i]):
                return False
            self._resume_schedules()
            made = self._make_anew([i])
        except (EnvError, OSError) as error:
            failure = error if isinstance(error, EnvError) else env_error(error, i, "restart")
            if group.died:
                self._note_deaths()
            if self._charge(i, failure):
                return False
            self._fate[i] = DEAD if i in self._gone else FAILED
            raise failure from error
        for j in made:
            self._gone.discard(j)
            if self._state[j] == DEAD or self._fate.get(j) == DEAD:
                self._fate.pop(j, None)
                if self._state[j] == DEAD:
                    self._state[j] = NEVER_RESET
        ended = {j: self._broken.pop(j) for j in made if j in self._broken}
        if self._policy.on_restart is not None:
            for j, reason in ended.items():
                self._policy.on_restart(j, reason)
        return True

    def _resume_schedules(self) -> None:
        """Have executors that are made anew go on with the episode that comes next."""
        if not self._scheduled:
            return
        configured = self._group.configured
        for i in self._gone & configured.keys():
            root, episode = self._root[i], int(self._episode[i])
            if i in self._finished and i not in self._group.errors:
                # Counted when it is handed out.
                root, episode = self._after_row(i, root, episode)
            own = {"root": root, "episode": episode}
            before = configured[i]
            configured[i] = before._replace(kwargs={**before.kwargs, **own})

    def _after_row(self, i: int, root: int | None, episode: int) -> tuple[int | None, int]:
        """Where the schedule will be once the finished row of env ``i`` is handed out."""
        request = self._resetting.get(i)
        if request is not None:
            return _after_reset(root, episode, request.kwargs.get("seed"))
        block = self._group.block
        if self._autoreset == NEXT_STEP:
            reset = bool(self._ended[i])
        else:
            ended = bool(block.terminated[i] or block.truncated[i])
            reset = ended and self._autoreset == SAME_STEP
        return root, episode + reset

    def restart(self, ids: IdArray) -> None:
        """As ``EnvLives``; these envs have their whole budget again."""
        self._end_stuck(ids)
        self._resume_schedules()
        super().restart(ids)
        for i in ids.tolist():
            self.restarts[i] = 0

    def _made_anew(self, made: Sequence[int]) -> None:
        super()._made_anew([i for i in made if i not in self._jobs])
        for i in made:
            self._gone.discard(i)
            self._broken.pop(i, None)
            self._forget_lost(i)

    # ------------------------------------------------------------------------------- handing out

    def _hand_out(self, ids: IdArray, *, mark: bool) -> StepResult:
        batch = super()._hand_out(ids, mark=mark)
        if self._autoreset is not None:
            ended = batch[2] | batch[3]
            if self._tell_done:
                self._correct_ends(ids, ended, batch[4])
            self._note_ends(ids, ended)
        if self._resetting:
            for k, i in enumerate(ids.tolist()):
                request = self._resetting.pop(i, None)
                if request is None:
                    continue
                if "env_done" in batch[4][k]:
                    self._tell_done.add(i)
                if self._scheduled:
                    self._count_reset(i, request.kwargs.get("seed"))
        if self._told:
            for k, i in enumerate(ids.tolist()):
                if i in self._told:
                    batch[4][k].update(self._told.pop(i))
                    if i in self._lost:
                        self._lost.discard(i)
                        batch[3][k] = True
        return batch

    def _correct_ends(self, ids: IdArray, ended: np.ndarray, infos: np.ndarray) -> None:
        for k, (i, info) in enumerate(zip(ids.tolist(), infos, strict=True)):
            if i in self._tell_done and "env_done" in info:
                # After a reset in the same step the info is that of the new episode.
                ended[k] = info["env_done"] or "final_obs" in info

    def _note_ends(self, ids: IdArray, ended: np.ndarray) -> None:
        if self._scheduled:
            resets = self._ended[ids] if self._autoreset == NEXT_STEP else ended
            for i in ids[resets].tolist():
                if i not in self._resetting:
                    self._episode[i] += 1
        self._ended[ids] = ended

    def _count_reset(self, i: int, seed: int | None) -> None:
        self._root[i], self._episode[i] = _after_reset(self._root[i], int(self._episode[i]), seed)

    # --------------------------------------------------------------- requests that bring no rows

    def ask(self, ids: IdArray, requests: Sequence[Request]) -> list[Any]:
        """As ``EnvLives``; what is to be made anew is, before it is asked."""
        for i in ids.tolist():
            self._mend(i)
        self._asking = True
        try:
            return super().ask(ids, requests)
        finally:
            self._asking = False

    def _mend(self, i: int) -> None:
        """Have env ``i`` made anew if need be, and wait for it."""
        while i in self._broken:
            time.sleep(max(self._due[i] - time.monotonic(), 0.0))
            self._recover(i)
            if self._group.died:
                self._note_deaths()

    def ask_seeds(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """As ``EnvLives``."""
        super().ask_seeds(ids, requests)
        for i, request in zip(ids.tolist(), requests, strict=True):
            self._forget_lost(i)
            if self._scheduled:
                self._count_reset(i, request.args[0])

    def _dead(self) -> set[int]:
        return super()._dead() | self._gone

    def _death_of(self, i: int) -> EnvError:
        return self._broken[i] if i in self._broken else super()._death_of(i)


def _after_reset(root: int | None, episode: int, seed: int | None) -> tuple[int | None, int]:
    """Root and episode of a schedule after a reset that was given ``seed``."""
    return (root, episode + 1) if seed is None or root is None else (seed, 0)
