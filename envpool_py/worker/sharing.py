"""Envs in worker processes, and some in the caller's own, which it steps while those are at work.

Without that the caller sleeps while its processes step, and they while it works; on few cores that
is a large part of the time. The first envs live in the processes, the last ones here.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.errors import EnvError, env_error
from envpool_py.ids import IdArray
from envpool_py.rows import Block, Shape
from envpool_py.spaces import Array
from envpool_py.worker import child
from envpool_py.worker.base import Request
from envpool_py.worker.dummy import DummyEnvWorker, DummyGroup
from envpool_py.worker.execute import EnvFacts
from envpool_py.worker.group import WorkerGroup
from envpool_py.worker.limits import usable_cores
from envpool_py.worker.processes import ProcessGroup

#: Seconds for which the caller steps its own envs between two looks at the others' rows, where rows
#: are wanted as they end.
LOOK_EVERY = 150e-6


class SharingGroup(WorkerGroup):
    """A group of envs in processes and a group of envs here, with one block and one list of ends.

    The last envs live here: as many as a process has; or half as many, where rows are wanted as
    they end. A caller that takes rows and sends actions while the others go on has less time left
    for envs than they have, and a process without a request waits for it.

    Args:
        workers: all workers of the pool, more than ``num_processes``.
        processes: makes the group for those of them that live in processes.
        num_processes: how many those are.
    """

    workers: Sequence[Any]
    _there: ProcessGroup

    def __init__(
        self,
        workers: Sequence[Any],
        processes: Callable[[Sequence[Any]], ProcessGroup],
        num_processes: int,
    ) -> None:
        super().__init__(workers)
        self._make = processes
        self._num_processes = num_processes
        self._own: DummyGroup | None = None

    # ------------------------------------------------------------------------------------- start

    def learn_facts(self) -> list[EnvFacts]:
        """Start the processes, and make the envs that live here while those make theirs."""
        shares = (2 if self.prompt else 1) * self._num_processes + 1
        self._first = len(self.workers) - max(len(self.workers) // shares, 1)
        self._there = there = self._make(self.workers[: self._first])
        self.pid = there.pid
        there.died = self.died
        self.shares_block = there.shares_block
        if there.num_processes < len(usable_cores()):  # a core is left for the caller
            there.look_for = child.LOOK_FOR
        there.measuring = self.measuring
        # What an env here holds open is not for the processes: they are started first.
        facts = there.learn_facts()
        own: list[DummyEnvWorker] = []
        self._own = DummyGroup(own, self._first)  # from here on `close` closes what was made
        for i, worker in enumerate(self.workers[self._first :], self._first):
            own.append(self._made(i))
            worker.join(self, i)
        self._own.measuring = self.measuring
        for part in (there, self._own):
            part.finished, part.errors, part.replies = self.finished, self.errors, self.replies
            part.complaints, part.configured = self.complaints, self.configured
            part.restarts = self.restarts
        facts += self._own.learn_facts()
        if there.meter is not None and self._own.meter is not None:
            self.meter = _Both(there.meter, self._own.meter)
        return facts

    def _made(self, i: int) -> DummyEnvWorker:
        try:
            return DummyEnvWorker(self.workers[i].env_fn)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise env_error(error, i, "env_fn") from error

    def make_block(self, shape: Shape) -> Block:
        """A block for all envs, which the processes share."""
        return self._there.make_block(shape)

    def use_block(self, block: Block) -> None:
        """Keep rows in ``block`` from now on."""
        super().use_block(block)
        self._there.use_block(block)
        self._here().use_block(block)
        self._ids_there = self._there.everything

    def _here(self) -> DummyGroup:
        if self._own is None:
            raise ClosedEnvironmentError("the pool is closed")
        return self._own

    # ----------------------------------------------------------------------------------- sending

    def pack_steps(self, ids: IdArray, actions: Any) -> Callable[[], None]:
        """Make a step of each env ready to be sent."""
        listed = ids.tolist()
        layout = self.block.shape.action
        columns = None
        if self.block.fixed_actions and self.shares_block:
            columns = spaces.batch_actions(layout, actions, listed)
        if columns is None:
            rows = spaces.list_actions(layout, actions, listed)
            # The env's own: what the caller does to its action later does not reach the env.
            rows = [spaces.snapshot(row) for row in rows]
            return self.pack(listed, [Request("step", (row,)) for row in rows])
        return functools.partial(self.post_actions, ids, columns)

    def post_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """As ``WorkerGroup``."""
        there, own, first = self._there, self._own or self._here(), self._first
        self.block.put_actions(ids, columns)
        there.prompt = self.prompt
        there.post_steps(self._ids_there if ids is self.block.everything else ids[ids < first])
        own.post_steps([i for i in ids.tolist() if i >= first])

    def step_all(self, actions: Any) -> bool:
        """As ``WorkerGroup``."""
        there, own = self._there, self._own
        there.prompt = self.prompt
        if own is None or own.waiting() or not there.begin_all(actions):
            return False
        if self.cancelled_meanwhile:
            there.give_up_again()
        self.block.prepare()
        try:
            own.run_all()
            there.wait_all(len(self.workers))
        except BaseException:
            there.torn = ()  # with all others
            raise
        return True

    def pack(self, ids: Sequence[int], requests: Sequence[Request]) -> Callable[[], None]:
        """Make one request on each env ready to be sent.

        Raises:
            TypeError: a request can't be pickled, where it must be.
        """
        pairs = list(zip(ids, requests, strict=True))
        posts = [
            group.pack([i for i, _ in part], [request for _, request in part])
            for group, part in (
                (self._there, [pair for pair in pairs if pair[0] < self._first]),
                (self._here(), [pair for pair in pairs if pair[0] >= self._first]),
            )
            if part
        ]

        def post() -> None:
            for each in posts:
                each()

        return post

    # --------------------------------------------------------------------------------- receiving

    def wait(self, wait_num: int, timeout: float | None, only: Sequence[int] | None = None) -> None:
        """Carry out what is to be done here, then wait for the processes.

        Where rows are wanted as they end, the others' are looked at in between, and what is left to
        do here waits for the next call once there are enough.
        """
        there, own, finished = self._there, self._own or self._here(), self.finished
        goal = len(finished) + wait_num
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while own.waiting(only):
                own.wait(len(self.workers), LOOK_EVERY if self.prompt else None, only)
                if self.prompt:
                    there.look()
                if len(finished) >= goal or self.died:
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    return
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if len(finished) < goal:
                there.wait(goal - len(finished), left)
        except BaseException:
            self.torn = (*there.torn, *own.torn)
            there.torn = own.torn = ()
            raise

    def receive(self, i: int, kind: str) -> Any:
        """Wait for the end of env ``i``'s request of that kind; return or raise what it left."""
        if i >= self._first:
            self._here().wait(1, None, [i])
        return self._there.receive(i, kind)

    def cancel(self, ids: Sequence[int]) -> None:
        """As ``WorkerGroup``; where a signal handler or a thread has closed it, nothing is left."""
        if not self.closed:
            super().cancel(ids)

    def disown(self, ids: Sequence[int]) -> None:
        """Have the answers to requests under way dropped."""
        self._there.disown([i for i in ids if i < self._first])
        self._here().disown([i for i in ids if i >= self._first])

    def wake(self) -> None:
        """Have ``wait`` return, should it be under way."""
        self._there.wake()

    def will_run(self, i: int) -> bool:
        """Whether the request of env ``i`` is carried out although it is given up now."""
        return (self._there if i < self._first else self._here()).will_run(i)

    def end_stuck(self, ids: Sequence[int]) -> None:
        """End the processes of these envs that go on with a request that was given up."""
        self._there.end_stuck([i for i in ids if i < self._first])

    def notice_deaths(self) -> None:
        """Add to ``died`` what has ended and nobody has waited for."""
        self._there.notice_deaths()

    def prepare_restart(self, ids: Sequence[int]) -> bool:
        """Begin to start what has ended; True once a restart of these envs would not wait."""
        there = [i for i in ids if i < self._first]
        return not there or self._there.prepare_restart(there)

    def coming(self, i: int) -> bool:
        """Whether the process of env ``i`` is being started anew, and is not there yet."""
        return i < self._first and self._there.coming(i)

    def restart(self, ids: Sequence[int]) -> list[int]:
        """Make these envs anew, and all that shared an ended process with one of them."""
        there = [i for i in ids if i < self._first]
        here = [i for i in ids if i >= self._first]
        made = self._there.restart(there) if there else []
        return made + (self._here().restart(here) if here else [])

    # ----------------------------------------------------------------------------- asking, ending

    def lane_of(self, i: int) -> Any:
        """The process in which env ``i`` lives.

        Raises:
            AttributeError: it lives here.
        """
        if i >= self._first:
            raise AttributeError(f"env {i} has no process: the caller steps it itself")
        return self._there.lane_of(i)

    def processes(self) -> list[list[int]]:
        """The ids of the envs of each process, those of the caller's at the end."""
        return [*self._there.processes(), list(range(self._first, len(self.workers)))]

    def described(self) -> str:
        """The processes, once they are started, and that the caller steps as well."""
        there = self._there.described() if hasattr(self, "_there") else ""
        return f"{there}, caller_steps=True"

    def death_of(self, i: int) -> EnvError:
        """The error of an env whose process has ended."""
        return self._there.death_of(i)

    def close(self) -> list[EnvError]:
        """Close all envs and end all processes."""
        self.closed = True
        if not hasattr(self, "_there"):  # it was never started
            return []
        own, self._own = self._own, None
        errors = self._there.close()
        if own is not None:
            errors = errors + own.close()
            # The mapping holds a descriptor of its own; the pool may be referenced for long.
            self.__dict__.pop("block", None)
            self.__dict__.pop("store", None)
        return errors


class _Both:
    """Two meters as one."""

    def __init__(self, *meters: Any) -> None:
        self._meters = meters

    def counts(self) -> NDArray[np.int64]:
        return np.concatenate([each.counts() for each in self._meters])
