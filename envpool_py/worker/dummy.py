"""Envs in this process, stepped when their rows are asked for."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.error import ClosedEnvironmentError

from envpool_py import spaces
from envpool_py.errors import EnvError, env_error, from_signal_handler
from envpool_py.ids import IdArray
from envpool_py.rows import Block, Row
from envpool_py.worker import meter
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.execute import EnvFacts, Executor
from envpool_py.worker.group import ROW_KINDS, WorkerGroup
from envpool_py.worker.meter import EnvMeter, Meter

# A step whose action lies in the block.
_STEP = Request("step")


class DummyEnvWorker(EnvWorker):
    """The env lives here; a request is carried out in ``recv``.

    Args:
        env_fn: makes the env; called at once.

    Attributes:
        env: the env itself.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
        self.executor = Executor(env_fn)
        self.env = self.executor.env
        self._request: Request | None = None

    def send(self, request: Request) -> None:
        """Note the request down."""
        self._request = request

    def recv(self) -> Any:
        """Carry the request out and return the reply."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("recv: no request was sent")
        return self.executor(request)

    def cancel(self) -> None:
        """Drop the request."""
        self._request = None

    def close(self) -> None:
        """Close the env."""
        self.executor.close()

    @classmethod
    def group(cls, workers: Sequence[Any], **options: Any) -> WorkerGroup:
        """Batch hooks that call the env without a message in between."""
        if options:
            raise TypeError(f"{cls.__name__} does not take {', '.join(sorted(options))}")
        # A subclass that changes how a request is carried out keeps its way.
        changed = cls.send is not DummyEnvWorker.send or cls.recv is not DummyEnvWorker.recv
        return WorkerGroup(workers) if changed else DummyGroup(workers)


class DummyGroup(WorkerGroup):
    """Executes in ``wait``, the oldest request first, and just as many as asked for.

    Args:
        workers: those of the envs from ``first`` on.
        first: the id of the first env.
    """

    workers: Sequence[DummyEnvWorker]

    def __init__(self, workers: Sequence[DummyEnvWorker], first: int = 0) -> None:
        super().__init__(workers)
        self._first = first

    def learn_facts(self) -> list[EnvFacts]:
        """Ask the envs for their facts."""
        seen: dict[int, int] = {}
        for i, worker in enumerate(self.workers, self._first):
            first = seen.setdefault(id(getattr(worker.env, "unwrapped", worker.env)), i)
            if first != i:
                raise ValueError(
                    f"env {i}: env_fn returned the instance that env {first} has;"
                    " every env_fn must make its own"
                )
        self._executors = {i: worker.executor for i, worker in enumerate(self.workers, self._first)}
        for i, executor in self._executors.items():
            executor.complain = functools.partial(self._complain, i)
        self._pending: dict[int, Request] = {}
        if self.measuring:
            memory = bytearray(meter.nbytes(len(self.workers)))
            self.meter = Meter(memory, len(self.workers))
            for place, worker in enumerate(self.workers):
                worker.executor.measure(EnvMeter(memory, place))
        # The parent's own copies, as with every other backend: sampling does not touch the env's.
        return [_own_facts(worker.executor) for worker in self.workers]

    def _complain(self, i: int, text: str) -> None:
        self.complaints.append(f"env {i}: {text}")

    def use_block(self, block: Block) -> None:
        """Keep rows and actions in ``block`` from now on."""
        super().use_block(block)
        self._action_of = block.action_reader()

    def pack_steps(self, ids: IdArray, actions: Any) -> Callable[[], None]:
        """Make the steps ready to be noted down."""
        listed = ids.tolist()
        layout = self.block.shape.action
        if self.block.fixed_actions:
            columns = spaces.batch_actions(layout, actions, listed)
            if columns is not None:

                def post() -> None:
                    self.block.put_actions(ids, columns)
                    self.post_steps(listed)

                return post
        rows = spaces.list_actions(layout, actions, listed)
        # The env's own: what the caller does to its action later does not reach the env.
        return self.pack(listed, [Request("step", (spaces.snapshot(row),)) for row in rows])

    def post_steps(self, ids: Sequence[int]) -> None:
        """Note down a step of each env, the action of which lies in the block."""
        self._pending.update(dict.fromkeys(ids, _STEP))

    def waiting(self, only: Sequence[int] | None = None) -> bool:
        """Whether there is something to carry out, for one of the envs ``only``."""
        return bool(self._pending) and (only is None or any(i in self._pending for i in only))

    def _send_one(self, i: int, request: Request) -> None:
        self._pending[i] = request

    def wait(self, wait_num: int, timeout: float | None, only: Sequence[int] | None = None) -> None:
        """Carry out ``wait_num`` requests; a KeyboardInterrupt passes through."""
        deadline = None if timeout is None else time.monotonic() + timeout
        chosen = list(self._pending) if only is None else [i for i in only if i in self._pending]
        finished, executors, action_of, store = (
            self.finished,
            self._executors,
            self._action_of,
            self.store,
        )
        for i in chosen[:wait_num]:
            self.torn = (i,)
            try:
                request = self._pending.pop(i)
            except KeyError:
                if not self.closed:
                    raise
                raise ClosedEnvironmentError("the pool was closed meanwhile") from None
            row = None
            try:
                if request is _STEP:
                    row = executors[i].step(action_of(i))
                    side = store(i, row)
                    if side is not None:
                        self.block.put_side(i, spaces.snapshot(side))
                else:
                    reply = executors[i](request)
                    if request.kind == "step":
                        row = reply
                    kept = spaces.snapshot(reply) if request.kind in ROW_KINDS else reply
                    self.take(i, request.kind, kept)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit from an env included
                if from_signal_handler(error):
                    raise
                self._fail_row(i, request.kind, row, error)
            finished.append(i)
            self.torn = ()
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _fail_row(self, i: int, kind: str, row: Row | None, error: BaseException) -> None:
        """Note an error down; where it is only of the reset behind an ended row, keep that."""
        executor = self._executors[i]
        ended = None if row is None else executor.ended_row(error)
        if ended is not None:
            try:
                self.take(i, kind, spaces.snapshot(ended))
            except Exception as second:  # noqa: BLE001 - the end of the episode can't be kept either
                error = second
            else:
                return
        self.errors[i] = env_error(error, i, executor.failing(kind))

    def processes(self) -> list[list[int]]:
        """All envs: they take turns."""
        return [list(range(len(self.workers)))]

    def disown(self, ids: Sequence[int]) -> None:
        """Drop the requests."""
        for i in ids:
            self._pending.pop(i, None)

    def will_run(self, i: int) -> bool:
        """Whether the request of env ``i`` has been carried out."""
        return i not in self._pending

    def close(self) -> list[EnvError]:
        """Close all envs; return what closing them raised."""
        self.closed = True
        self._pending = {}
        return super().close()


def _own_facts(executor: Executor) -> EnvFacts:
    facts = executor.facts()
    return facts._replace(
        observation_space=_own(facts.observation_space), action_space=_own(facts.action_space)
    )


def _own(space: gym.Space[Any] | None) -> gym.Space[Any] | None:
    try:
        return copy.deepcopy(space)
    except Exception:  # noqa: BLE001 - a space of the user's own may refuse to be copied
        return space
