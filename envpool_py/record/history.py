"""The past of each env (its earlier requests), from which ``on_error="replay"`` restores it.

The caller's process keeps the requests of each env and a digest of every row. When recovery has
recreated a lost env, one request takes the whole past to the env's process, which carries it out
and compares the digest of each row (``Past.play``), while the other envs are stepped. After that
the lost request is sent again, and its row is returned like any other.

The past of an env begins when the env is created, or at its last reset with a seed (from the
caller or ``episode_seeds``); earlier calls of ``set_env_attr``, ``call`` and
``apply`` are kept too, and those that timed out in the caller, for a process carries them out. The
past is unknown, and the env cannot be restored, after a request that was cancelled or that raised
in the caller, and after ``MAX_STEPS`` steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envpool_py.engine import recreation
from envpool_py.engine.engine import Engine
from envpool_py.env import spaces
from envpool_py.env.request import Request
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.record import digest
from envpool_py.record.observers import Observer, Rows, Steps

#: The number of requests that are kept of one env.
MAX_STEPS = 100_000

_RESET = Request("reset")
# Requests without a row whose effect on an env outlasts its resets.
_LASTING = frozenset({"set_attr", "call", "apply"})


class Past:
    """The requests of one env, in order, with the digest of each row.

    A step with a fixed action takes the bytes of its action and 4 more. ``configured`` is carried
    out before all others.
    """

    def __init__(self, layout: Any, configured: Request | None) -> None:
        self.layout = layout
        self.configured = configured
        # The requests that are not steps with a fixed action, by their position.
        self.others: dict[int, Request] = {}
        self.actions = bytearray()
        self.expected = array("I")

    def add(self, request: Request | bytes, expected: int) -> None:
        """Add a request, or the bytes of the action of a step, and the digest of its row."""
        if isinstance(request, bytes):
            self.actions += request
        else:
            self.others[len(self.expected)] = request
        self.expected.append(expected)

    def play(self, carry_out: Callable[[Request], Any], layout: Any) -> str | None:
        """Carry out copies of the requests on a new env; say which row, if any, differs.

        ``layout``: of the observations.
        """
        if self.configured is not None:
            carry_out(self.configured)  # not a copy: its reset_fn may have a state
        size = action_dtype(self.layout).itemsize
        at = steps = 0
        for number, expected in enumerate(self.expected):
            if number in self.others:
                request = spaces.snapshot(self.others[number])
            else:
                request = step_of(self.layout, bytes(self.actions[at : at + size]))
                at += size
            reply = carry_out(request)
            if request.kind not in ("reset", "step"):
                continue
            steps = steps + 1 if request.kind == "step" else 0
            if digest.of_row(layout, reply[0], reply[1:4] if steps else None) != expected:
                what = f"step {steps}" if steps else "the reset"
                return f"{what} since its last reset by the pool gave another row than before"
        return None


def action_dtype(layout: Any) -> np.dtype[Any]:
    """Return the structured dtype of an action whose leaves are all fixed."""
    fields = [(str(n), leaf.dtype, leaf.shape) for n, leaf in enumerate(spaces.leaves(layout))]
    return np.dtype(fields)


def step_of(layout: Any, data: bytes) -> Request:
    """Return the step whose action, of a layout with only fixed leaves, has these bytes."""
    record: Any = np.ndarray((1,), action_dtype(layout), data)
    columns = [record[name].copy() for name in record.dtype.names]
    return Request("step", tuple(spaces.join_rows(layout, columns, 1)))


class History(Observer):
    """The past of every env of a pool, whose envs have been configured."""

    def __init__(self, engine: Engine, autoreset: str | None) -> None:
        num_envs = len(engine.all.ids)
        self._engine = engine
        self._autoreset = autoreset
        self._spec = engine.block.spec
        self._leaves = spaces.leaves(self._spec.obs)
        self._action_dtype: Any = action_dtype(self._spec.action)
        self._pasts: list[Past | None] = [None] * num_envs
        # All lasting requests to each env since it was created.
        self._lasting: list[list[Request]] = [[] for _ in range(num_envs)]
        # The request that each env has in flight; a step with a fixed action by its bytes.
        self._asked: dict[int, Request | bytes] = {}
        # The number of the episode of each env at its last row; used with autoreset alone.
        self._episodes = [-1] * num_envs
        for i in range(num_envs):
            self._begin(i)

    def knows(self, i: int) -> bool:
        """Whether the past of env ``i`` is known, so that the env can be restored."""
        return self._pasts[i] is not None

    def asked(self, i: int) -> Request | None:
        """A copy of the request that env ``i`` has in flight."""
        asked = self._asked.get(i)
        layout = self._spec.action
        return step_of(layout, asked) if isinstance(asked, bytes) else spaces.snapshot(asked)

    def matters_for(self, i: int, request: Request) -> bool:
        """Whether the row of this request depends on the past of env ``i``, which is known."""
        if request.kind == "reset" and request.kwargs.get("seed") is not None:
            return bool(self._lasting[i])
        past = self._pasts[i]
        return past is not None and len(past.expected) > 0

    def replay_request(self, i: int) -> Request:
        """The request that restores env ``i``, whose past is known, on a new env."""
        past = self._pasts[i]
        assert past is not None  # noqa: S101 - recovery asks knows() first
        return Request("run", (past.play, self._spec.obs))

    def forget(self, i: int) -> None:
        """Forget the past of env ``i``, until its next seeded reset or until it is recreated."""
        self._pasts[i] = None
        self._asked.pop(i, None)

    def steps(self, ids: IdArray, steps: Steps) -> None:
        """Keep the actions."""
        if steps.columns is None:
            for i, action in zip(ids.tolist(), steps.actions, strict=True):
                self._asked[i] = Request("step", (spaces.snapshot(action),))
            return
        records = np.empty(len(ids), self._action_dtype)
        for name, column in zip(self._action_dtype.names, steps.columns, strict=True):
            records[name] = column
        data, size = records.tobytes(), records.itemsize
        for k, i in enumerate(ids.tolist()):
            self._asked[i] = data[k * size : (k + 1) * size]

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """Keep the arguments."""
        for i, request in zip(ids, requests, strict=True):
            self._asked[i] = spaces.snapshot(request) if request.kwargs else request

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """Add the requests of these rows to the pasts."""
        of_resets = digest.of_observations(self._leaves, rows.parts, len(ids))
        of_steps = digest.with_outcomes(of_resets, rows.reward, rows.terminated, rows.truncated)
        for k, i in enumerate(ids.tolist()):
            request = self._asked.pop(i, None)
            is_new_episode = self._autoreset is not None and self._is_new_episode(i)
            if request is None or i in rows.lost:
                continue
            is_reset = isinstance(request, Request) and request.kind == "reset"
            seeded = self._seeded_reset(i, request) if is_reset or is_new_episode else None
            if seeded is None:
                self._add(i, request, (of_resets if is_reset else of_steps)[k])
            else:
                # In same_step mode the reward and the flags belong to the episode before.
                self._begin_at_reset(i, seeded, of_resets[k])

    def _is_new_episode(self, i: int) -> bool:
        """Whether an episode of env ``i`` began with the row that is being returned."""
        before, self._episodes[i] = self._episodes[i], self._engine.block.schedule(i)[1]
        return self._episodes[i] != before

    def _seeded_reset(self, i: int, request: Request | bytes) -> Request | None:
        """The reset that produced a row of env ``i``, with its seed; None if it had no seed."""
        given = request if isinstance(request, Request) and request.kind == "reset" else _RESET
        scheduled = self._engine.block.schedule(i)[0] is not None  # by episode_seeds
        return given if scheduled or given.kwargs.get("seed") is not None else None

    def failed(self, errors: Mapping[int, EnvError], *, raised: bool) -> None:  # noqa: ARG002
        """Forget the pasts of these envs."""
        for i in errors:
            self.forget(i)

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:  # noqa: ARG002
        """Forget the pasts of these envs."""
        for i in ids:
            self.forget(i)

    def recreated(self, ids: Sequence[int]) -> None:
        """Begin new pasts."""
        for i in ids:
            self._asked.pop(i, None)
            self._lasting[i] = []
            self._begin(i)

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """Add a request that may change an env, after it has ended."""
        kind = requests[0].kind if requests else ""
        if kind not in _LASTING and kind != "seed":
            return None

        def add(failed: Sequence[int]) -> None:
            for i, request in zip(ids, requests, strict=True):
                if i in failed:
                    self.forget(i)
                elif kind == "seed" and request.args[0] is not None:
                    self._begin_at_reset(i, request, 0)
                else:
                    own = spaces.snapshot(request)
                    self._add(i, own, 0)
                    if kind == "seed":
                        self._episodes[i] = self._engine.block.schedule(i)[1]
                    else:
                        self._lasting[i].append(own)

        return add

    def _begin(self, i: int, *, at_reset: bool = False) -> None:
        """Begin the past of env ``i`` now, or at the reset that it has just carried out."""
        self._episodes[i] = self._engine.block.schedule(i)[1]
        configured = recreation.configured_for(self._engine, i)
        if configured is not None:
            # The reset is carried out again, which increments the number of the episode.
            episode = self._episodes[i] - at_reset
            configured = configured._replace(kwargs={**configured.kwargs, "episode": episode})
        self._pasts[i] = Past(self._spec.action, configured)
        for request in self._lasting[i]:
            self._add(i, request, 0)

    def _begin_at_reset(self, i: int, request: Request, expected: int) -> None:
        self._begin(i, at_reset=True)
        self._add(i, request, expected)

    def _add(self, i: int, request: Request | bytes, expected: int) -> None:
        past = self._pasts[i]
        if past is not None:
            past.add(request, expected)
            if len(past.expected) > MAX_STEPS:
                self._pasts[i] = None
