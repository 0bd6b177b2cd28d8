"""``on_error="replay"``: an env that was lost is made anew and brought back to its step.

The parent keeps what each env has been through (``envpool_py.worker.past.Past``). Once a lost env
has been made anew, one request carries all of it, and the env's process goes through it at its own
pace, while the other envs are stepped; it compares the digest of each row with that of the row that
was handed out. Then the request that was lost is sent once more, and its row is as good as any.

Where that can't be, it goes on as ``on_error="restart"`` does: a row came out differently, the env
failed once more on its way or in the very same request, or its past is not known. It is known
since the env was made, or since its last seeded reset (with what was set or called before), and

* no longer after a request that was given up, or that raised to the caller: nobody knows how far
  it came;
* no longer after ``LONGEST`` steps.

A reset that is seeded, by the caller, by ``episode_seeds`` or by a ``reset_fn``, begins it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from envpool_py import digest, spaces
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.journal import Journal, JournaledLives, JournaledRestartingLives, Rows, Steps
from envpool_py.life import RESETTING, STEPPING, EnvLives, StepResult
from envpool_py.restarts import Policy, RestartingLives
from envpool_py.worker.base import Request
from envpool_py.worker.execute import NEXT_STEP, SAME_STEP
from envpool_py.worker.group import WorkerGroup
from envpool_py.worker.past import LONGEST, Layouts, Past, action_size, step_of

_RESET = Request("reset")
# Requests without a row that may change an env, and outlast its resets.
_LASTING = frozenset({"set_attr", "call", "apply"})


class History(Journal):
    """The pasts of all envs of a pool.

    Args:
        lives: of the envs.
        layouts: of their rows and actions.
        autoreset: None, ``"next_step"`` or ``"same_step"``.
    """

    def __init__(self, lives: ReplayingLives, layouts: Layouts, autoreset: str | None) -> None:
        num_envs = len(lives.everything)
        self._lives = lives
        self.layouts = layouts
        self._autoreset = autoreset
        self._size = action_size(layouts.action)
        self._pasts: list[Past | None] = [None] * num_envs
        # What was set and called before the past begins.
        self._lasting: list[list[Request]] = [[] for _ in range(num_envs)]
        # What each env is asked for now: a step with an action of fixed size by its bytes.
        self._asked: dict[int, Request | bytes] = {}
        for i in range(num_envs):
            self._begin(i)

    # ------------------------------------------------------------------------------- looking

    def knows(self, i: int) -> bool:
        """Whether env ``i`` can be brought back."""
        return self._pasts[i] is not None

    def past(self, i: int) -> Past:
        """What env ``i`` has been through, but for the request under way."""
        past = self._pasts[i]
        assert past is not None  # noqa: S101 - the caller has asked
        return past

    def matters_for(self, i: int, request: Request) -> bool:
        """Whether what env ``i`` has been through can be seen in the row of this request."""
        past = self.past(i)
        fresh = request.kind == "reset" and request.kwargs.get("seed") is not None
        lasting = self._lasting[i] or any(r.kind in _LASTING for r in past.others.values())
        return bool(len(past)) and not (fresh and not lasting)

    def asked(self, i: int) -> Request | None:
        """What env ``i`` is asked for now."""
        asked = self._asked.get(i)
        return step_of(self.layouts.action, asked) if isinstance(asked, bytes) else asked

    # ------------------------------------------------------------------------------- keeping

    def forget(self, i: int) -> None:
        """Where env ``i`` is, nobody knows any more."""
        self._pasts[i] = None
        self._asked.pop(i, None)

    def _begin(self, i: int) -> None:
        place = self._lives.place(i)
        self._pasts[i] = Past([*self._lasting[i], *([] if place is None else [place])])

    def _begin_at_reset(self, i: int, request: Request, expected: int) -> None:
        past = self._pasts[i]
        if past is not None:
            asked = [past.others[number] for number in sorted(past.others)]
            self._lasting[i] += [request for request in asked if request.kind in _LASTING]
        self._begin(i)
        self.past(i).add(request, expected)

    def _add(self, i: int, request: Request | bytes, expected: int) -> None:
        past = self._pasts[i]
        if past is not None:
            past.add(request, expected)
            if len(past) > LONGEST:
                self._pasts[i] = None

    def steps(self, ids: IdArray, steps: Steps) -> Callable[[], object]:
        """Keep the actions."""
        listed = ids.tolist()
        asked: Sequence[Request | bytes]
        if steps.columns is None or not listed:
            asked = [Request("step", (spaces.snapshot(action),)) for action in steps.actions]
        else:
            raw = [
                np.ascontiguousarray(column).reshape(len(listed), -1).view(np.uint8)
                for column in steps.columns
            ]
            data = (raw[0] if len(raw) == 1 else np.concatenate(raw, axis=1)).tobytes()
            size = self._size
            asked = [data[k * size : (k + 1) * size] for k in range(len(listed))]
        return lambda: self._asked.update(zip(listed, asked, strict=True))

    def resets(self, ids: list[int], requests: Sequence[Request]) -> Callable[[], object]:
        """Keep the arguments."""
        own = [spaces.snapshot(request) if request.kwargs else request for request in requests]
        return lambda: self._asked.update(zip(ids, own, strict=True))

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """Add what is over to the pasts."""
        outcomes = digest.of_outcomes(rows.reward, rows.terminated, rows.truncated)
        digests = (rows.digests + outcomes).tolist()
        ended = (rows.terminated | rows.truncated).tolist() if self._autoreset else None
        for k, i in enumerate(ids.tolist()):
            request = self._asked.pop(i, None)
            if request is None:  # a row that stands for a lost step
                continue
            # Without automatic resets a step is a step.
            is_step = ended is None and type(request) is bytes
            reset = None
            if not is_step:
                reset = self._reset_of(i, request, rows, ended=ended is not None and ended[k])
            if reset is None:
                self._add(i, request, digests[k])
            elif reset is request or self._autoreset == NEXT_STEP:
                self._begin_at_reset(i, reset, digests[k])
            else:  # the row is also that of the step before, whose reward it has
                self._begin_at_reset(i, reset, int(rows.digests[k]))

    def _reset_of(
        self, i: int, request: Request | bytes, rows: Rows, *, ended: bool
    ) -> Request | None:
        """The seeded reset that this row is of; None if it is not of one."""
        explicit = type(request) is Request and request.kind == "reset"
        if not explicit and not (
            self._lives.is_reset_next(i) if self._autoreset == NEXT_STEP else ended
        ):
            return None
        if self._lives.is_scheduled_by_root(i):
            return request if explicit else _RESET  # type: ignore[return-value]
        if explicit and request.kwargs.get("seed") is not None:  # type: ignore[union-attr]
            return request  # type: ignore[return-value]
        _, seed, options = (rows.asked.get(i) or [(0, None, None)])[-1]
        if seed is None:
            return None
        own = {"seed": seed} if options is None else {"seed": seed, "options": options}
        given = request.kwargs if explicit else {}  # type: ignore[union-attr]
        return Request("reset", kwargs={**given, **own})

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """Forget these envs."""
        for i in errors:
            self.forget(i)

    def taken(self, i: int, error: EnvError) -> None:  # noqa: ARG002 - it does not matter which
        """Forget this env."""
        self.forget(i)

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:  # noqa: ARG002
        """Forget these envs."""
        for i in ids:
            self.forget(i)

    def made(self, ids: Sequence[int]) -> None:
        """These are new: there is nothing before."""
        for i in ids:
            self._asked.pop(i, None)
            self._lasting[i] = []
            self._begin(i)

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object]:
        """Add what may have changed an env."""
        kind = requests[0].kind if requests else ""

        def note(failed: Sequence[int]) -> None:
            for i, request in zip(ids, requests, strict=True):
                if i in failed:
                    self.forget(i)
                elif kind == "seed" and request.args[0] is not None:
                    self._begin_at_reset(i, spaces.snapshot(request), 0)
                else:
                    self._add(i, spaces.snapshot(request), 0)

        return note if kind in _LASTING or kind == "seed" else lambda _: None


class ReplayingLives(JournaledRestartingLives):
    """As ``RestartingLives``; an env whose past is known is brought back, and loses nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Made anew, and not yet brought back.
        self._stale: set[int] = set()
        # On their way, and what they are then to be asked.
        self._coming: dict[int, Request] = {}
        # Asked once more for what they were lost in.
        self._retrying: set[int] = set()
        # Those whose job is known to the journals.
        self._known: set[int] = set()
        self._by_hand = False

    def keep_history(self) -> History:
        """Begin to keep what the envs go through; the pool's options have been sent."""
        shape = self._group.block.shape
        self._history = History(self, Layouts(shape.obs, shape.action), self._autoreset)
        return self._history

    # ------------------------------------------------------------------- what the history asks

    def place(self, i: int) -> Request | None:
        """What puts the executor of env ``i`` to this place in its schedule of seeds."""
        configured = self._group.configured.get(i)
        if configured is None or not self._scheduled:
            return None
        own = {"root": self._root[i], "episode": int(self._episode[i])}
        return configured._replace(kwargs={**configured.kwargs, **own})

    def is_scheduled_by_root(self, i: int) -> bool:
        """Whether every reset of env ``i`` is seeded by ``episode_seeds``."""
        return self._scheduled and self._root[i] is not None

    def is_reset_next(self, i: int) -> bool:
        """Whether the row after the last was an automatic reset."""
        return bool(self._ended[i])

    # ------------------------------------------------------------------------------ the faults

    def _bring_back(self, i: int, error: EnvError) -> bool:
        history = self._history
        request = history.asked(i)
        again = i in self._coming or i in self._retrying
        # Of such a step the row was handed out, and what failed is the reset that came with it.
        late = error.request == "reset" and self._autoreset == SAME_STEP
        late = late and request is not None and request.kind == "step"
        self._drop_return(i)
        if request is None or again or late or not history.knows(i):
            if "env_replayed" in self._told.get(i, {}):
                del self._told[i]["env_replayed"]
            history.forget(i)
            return False
        self._tell(i, env_replayed=str(error))
        self._known.add(i)
        self._jobs[i] = request
        return True

    def _drop_return(self, i: int) -> None:
        self._coming.pop(i, None)
        self._retrying.discard(i)
        self._known.discard(i)
        self._stale.discard(i)

    def _charge(self, i: int, error: EnvError) -> bool:
        charged = super()._charge(i, error)
        if not charged:
            self._drop_return(i)
            self._history.forget(i)
        return charged

    def _step_of_lost(self, i: int, action: Any) -> None:
        if i not in self._owed or not self._history.knows(i):
            super()._step_of_lost(i, action)
            return
        self._tell(i, env_replayed=self._owed.pop(i))
        ids = np.array([i], dtype=np.intp)
        columns = None
        if self._group.block.fixed_actions:
            columns = spaces.batch_actions(self._group.block.shape.action, [action], [i])
        for journal in self.journals:
            journal.steps(ids, Steps(columns, [action]))()
        self._known.add(i)
        self._jobs[i] = Request("step", (action,))

    def _forget_lost(self, i: int) -> None:
        if i in self._owed and self._history.knows(i):
            self._tell(i, env_replayed=self._owed.pop(i))
        super()._forget_lost(i)

    def _note_made(self, made: Sequence[int]) -> None:
        back = [i for i in made if self._history.knows(i)]
        if self._by_hand:
            back = [i for i in back if i in self._jobs]
        self._stale.update(back)
        fresh = [i for i in made if i not in back]
        self._stale.difference_update(fresh)
        if fresh:
            super()._note_made(fresh)

    def _unfit(self) -> AbstractSet[int]:
        return self._broken.keys() | self._stale

    # ------------------------------------------------------------------------------ the return

    def _send_now(self, i: int, request: Request) -> None:
        stale = i in self._stale
        self._stale.discard(i)
        if not stale or not self._history.matters_for(i, request):
            self._send_again(i, request)
            return
        self._coming[i] = request
        self._group.send([i], [self._replay_of(i)])

    def _replay_of(self, i: int) -> Request:
        history = self._history
        return Request("replay", (history.past(i), history.layouts))

    def _send_again(self, i: int, request: Request) -> None:
        if i not in self._known:
            super()._send_now(i, request)
            return
        self._known.discard(i)
        self._retrying.add(i)
        self._group.send([i], [request])

    def _wait(self, wait_num: int, timeout: float | None, only: list[int] | None) -> None:
        super()._wait(wait_num, timeout, only)
        self._go_on()

    def _go_on(self) -> None:
        """Send those their request that have come back."""
        group = self._group
        for i in [i for i in self._coming if i in group.replies]:
            differs = group.replies.pop(i)
            self._finished.remove(i)
            if differs is None:
                self._send_again(i, self._coming.pop(i))
            else:
                group.errors[i] = _diverged(i, differs, self._told.get(i, {}).get("env_replayed"))
                self._finished.append(i)
        if group.errors:
            self._convert()

    def _mend(self, i: int) -> None:
        super()._mend(i)
        while i in self._stale:
            self._stale.discard(i)
            self._asking = True
            try:
                # Past the journals, for which nothing has happened.
                differs = EnvLives.ask(self, np.array([i]), [self._replay_of(i)])[0]
                failure = None if differs is None else _diverged(i, differs, self._owed.get(i))
            except EnvError as error:
                failure = error
            finally:
                self._asking = False
            if failure is None:
                if i in self._owed:
                    self._tell(i, env_replayed=self._owed.pop(i))
                return
            self._history.forget(i)
            if self._group.died:
                self._note_deaths()
            if i not in self._broken and not self._charge(i, failure):
                raise failure
            super()._mend(i)

    def restart(self, ids: IdArray) -> None:
        """As ``RestartingLives``; the envs are new ones, and not brought back."""
        self._by_hand = True
        try:
            super().restart(ids)
        finally:
            self._by_hand = False
            self._go_on()

    def give_up(self, ids: IdArray, *, landed: bool = False) -> None:
        """As ``EnvLives``."""
        replayed = {i: self._told[i]["env_replayed"] for i in ids.tolist() if self._replayed(i)}
        flying = [i for i in ids.tolist() if self._state[i] in (STEPPING, RESETTING)]
        super().give_up(ids, landed=landed)
        for i in flying:
            if i in self._stale:  # nothing was sent to it yet: it is new
                JournaledRestartingLives._note_made(self, [i])  # noqa: SLF001 - its own
            self._drop_return(i)
        for i, text in replayed.items():
            self._tell(i, env_replayed=text)

    def _replayed(self, i: int) -> bool:
        return "env_replayed" in self._told.get(i, {})

    def _hand_out(self, ids: IdArray, *, mark: bool) -> StepResult:
        batch = super()._hand_out(ids, mark=mark)
        if self._retrying:
            self._retrying.difference_update(ids.tolist())
        return batch


def _diverged(i: int, how: str, text: str | None) -> EnvError:
    first = "" if text is None else f"; it was lost in the first place by\n{text}"
    return EnvError(f"env {i}: replay: {how}: the env is not deterministic{first}", (i,), "replay")


def make_lives(
    group: WorkerGroup,
    policy: Policy | None,
    *,
    columns: bool,
    copy: bool,
    autoreset: str | None,
    replay: bool,
    journal: bool,
) -> EnvLives:
    """The lives of the envs of a pool, with no more than its options ask for.

    Args:
        group: carries requests out; started.
        policy: how envs are made anew; None where they are not.
        columns: as for ``EnvLives``.
        copy: as for ``EnvLives``.
        autoreset: None, ``"next_step"`` or ``"same_step"``.
        replay: whether they are brought back.
        journal: whether what they are asked is written down.
    """
    if policy is None:
        plain = JournaledLives if journal else EnvLives
        return plain(group, columns=columns, copy=copy)
    kind: type[RestartingLives] = JournaledRestartingLives if journal else RestartingLives
    if replay:
        kind = ReplayingLives
    return kind(group, columns=columns, copy=copy, policy=policy, autoreset=autoreset)
