"""Envs in this process, stepped when their rows are asked for."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

import gymnasium as gym
from gymnasium.error import ClosedEnvironmentError

from envpool_py import spaces
from envpool_py.errors import EnvError, env_error, from_signal_handler
from envpool_py.ids import IdArray
from envpool_py.rows import Block, Side
from envpool_py.spaces import Array
from envpool_py.worker import meter
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.execute import EnvFacts, Executor
from envpool_py.worker.group import ROW_KINDS, WorkerGroup
from envpool_py.worker.meter import EnvMeter, Meter
from envpool_py.worker.runner import Runner, taken_last

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
    shares_block = True

    def __init__(self, workers: Sequence[DummyEnvWorker], first: int = 0) -> None:
        # What the last ``wait`` has taken and from where on it has not; None: all is settled.
        self._taken: tuple[list[int], Iterator[int]] | None = None
        # Whether that is all that was pending.
        self._taken_all = False
        super().__init__(workers)
        self._first = first
        self._all: list[int] = []
        self._runner: Runner | None = None
        self._pending: dict[int, Request] = {}
        # Those given up since ``wait`` was called, which a signal handler can do.
        self._disowned: set[int] = set()
        # Those pending that are more than a step.
        self._others: set[int] = set()

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
        self.block = block
        writer = block.writer(keep_infos=True)
        self.store = writer.store
        self._runner = Runner(self._executors, block, writer, self._put_side)
        self._all = list(self._executors)

    def _put_side(self, i: int, side: Side) -> None:
        objects, info, odd = side  # the last of which is a copy already
        if objects is not None:
            objects = spaces.snapshot(objects)
        if info is not None:
            info = spaces.snapshot(info)
        self.block.put_side(i, (objects, info, odd))
        self.finished.append(i)

    def pack_steps(self, ids: IdArray, actions: Any) -> Callable[[], None]:
        """Make the steps ready to be noted down."""
        listed = ids.tolist()
        layout = self.block.shape.action
        if self.block.fixed_actions:
            columns = spaces.batch_actions(layout, actions, listed)
            if columns is not None:
                return functools.partial(self.post_actions, ids, columns)
        rows = spaces.list_actions(layout, actions, listed)
        # The env's own: what the caller does to its action later does not reach the env.
        return self.pack(listed, [Request("step", (spaces.snapshot(row),)) for row in rows])

    def post_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """As ``WorkerGroup``."""
        self.block.put_actions(ids, columns)
        self.post_steps(ids.tolist())

    def step_all(self, actions: Any) -> bool:
        """As ``WorkerGroup``."""
        if self._taken is not None or self._pending or not self.block.put_all_actions(actions):
            return False
        self.block.prepare()
        self.run_all()
        return True

    def run_all(self) -> None:
        """Step all envs, none of which is in flight, by the actions in the block."""
        chosen = self._all
        left = iter(chosen)
        self._disowned.clear()
        self._taken_all = True
        self._taken = chosen, left
        try:
            self._run(chosen, left, None)
        except BaseException:
            not_begun = chosen[len(chosen) - length_hint(left) :]
            self._pending.update(dict.fromkeys(not_begun, _STEP))
            raise
        if self._disowned:
            self._settle()
        else:
            self._taken = None

    def post_steps(self, ids: Sequence[int]) -> None:
        """Note down a step of each env, the action of which lies in the block."""
        if self._taken is not None:
            self._settle()
        self._pending.update(dict.fromkeys(ids, _STEP))

    def waiting(self, only: Sequence[int] | None = None) -> bool:
        """Whether there is something to carry out, for one of the envs ``only``."""
        if self._taken is not None:
            self._settle()
        return bool(self._pending) and (only is None or any(i in self._pending for i in only))

    def _send_one(self, i: int, request: Request) -> None:
        self._settle()
        self._pending[i] = request
        self._others.add(i)

    def wait(self, wait_num: int, timeout: float | None, only: Sequence[int] | None = None) -> None:
        """Carry out ``wait_num`` requests; a KeyboardInterrupt passes through."""
        if self._taken is not None:
            self._settle()
        due = None if timeout is None else time.perf_counter() + timeout
        self._disowned.clear()  # before anything is chosen that may be given up meanwhile
        pending = self._pending
        chosen = list(pending) if only is None else [i for i in only if i in pending]
        del chosen[wait_num:]
        left = iter(chosen)
        self._taken_all = len(chosen) == len(pending)
        self._taken = chosen, left
        if not self._others or self._others.isdisjoint(chosen):
            self._run(chosen, left, due)
        else:
            while length_hint(left):
                self._carry_out(next(left))
                if due is not None and time.perf_counter() > due:
                    break
        self._settle()

    def _settle(self) -> None:
        """The requests that were taken are no longer pending.

        Done at the end of ``wait``; and, where that was interrupted, before anything else is.
        """
        if self._taken is None:
            return
        chosen, left = self._taken
        pending = self._pending
        count = len(chosen) - length_hint(left)
        if self._taken_all and count == len(chosen) and not self._disowned:
            pending.clear()
        else:
            for i in chosen[:count]:
                pending.pop(i, None)
            if self._disowned:
                self.forget(self._disowned.intersection(chosen[:count]))
        self._taken = None

    @property
    def torn(self) -> Sequence[int]:
        """The env of the request that was taken last, if its end has not been noted."""
        if self._taken is None or length_hint(self._taken[1]) == len(self._taken[0]):
            return ()
        i = taken_last(*self._taken)
        return () if i in self.finished else (i,)

    @torn.setter
    def torn(self, torn: Sequence[int]) -> None:
        """It follows from what was taken."""

    def _run(self, chosen: list[int], left: Iterator[int], due: float | None) -> None:
        """Carry out steps, at the longest until ``due``."""
        assert self._runner is not None  # noqa: S101 - for the type checker
        run, finished = self._runner.run, self.finished
        while True:
            try:
                run(left, finished, due)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit from an env included
                self._note_error(taken_last(chosen, left), "step", error)
                if length_hint(left) and (due is None or time.perf_counter() <= due):
                    continue
            return

    def _carry_out(self, i: int) -> None:
        """Carry out any request; its end is noted in ``finished``."""
        request = self._pending.get(i)
        if request is None:  # given up meanwhile, by a signal handler or by closing the pool
            self._refuse_if_closed()
            return
        if request is _STEP:
            self._run([i], iter([i]), None)
            return
        executor = self._executors[i]
        self._others.discard(i)
        if self._runner is not None:
            self._runner.forget(i)
        try:
            reply = executor(request)
            kept = spaces.snapshot(reply) if request.kind in ROW_KINDS else reply
            self.take(i, request.kind, kept)
            executor.note_kept()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit from an env included
            self._note_error(i, request.kind, error)
        else:
            self.finished.append(i)

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed meanwhile") from None

    def _note_error(self, i: int, kind: str, error: BaseException) -> None:
        """Note the end of a request that raised, unless it was a signal handler that did."""
        if from_signal_handler(error):
            raise error
        self._refuse_if_closed()
        self._fail_row(i, kind, error)
        self.finished.append(i)

    def _fail_row(self, i: int, kind: str, error: BaseException) -> None:
        """Note an error down; where it is only of the reset behind an ended row, keep that."""
        executor = self._executors[i]
        # A row that an interrupt has kept from coming is not the answer to a later reset.
        ended = executor.ended_row(error) if kind == "step" else None
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
        self._disowned.update(ids)
        self._others.difference_update(ids)
        for i in ids:
            self._pending.pop(i, None)

    def will_run(self, i: int) -> bool:
        """Whether the request of env ``i`` has been carried out."""
        return i not in self._pending

    def close(self) -> list[EnvError]:
        """Close all envs; return what closing them raised."""
        self.closed = True
        self._pending.clear()
        if self._runner is not None:
            self._runner.forget_all()
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
