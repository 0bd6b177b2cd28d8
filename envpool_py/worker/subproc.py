"""Envs in worker processes: the worker of one env."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.group import WorkerGroup
from envpool_py.worker.options import check_num_processes
from envpool_py.worker.processes import ProcessGroup
from envpool_py.worker.sharing import SharingGroup


class SubprocEnvWorker(EnvWorker):
    """The env lives in a process of its own; messages are pickled.

    Nothing starts before the first request, or before a pool takes the worker: a pool starts all of
    its processes at once, and may put several envs into one.

    Args:
        env_fn: makes the env; called once, in the process.
        share_memory: take rows and actions through shared memory.
        context: the start method, its name or a multiprocessing context; None is multiprocessing's
            own choice.
    """

    def __init__(
        self,
        env_fn: Callable[[], Any],
        share_memory: bool = False,
        context: str | BaseContext | None = None,
    ) -> None:
        super().__init__(env_fn)
        self.share_memory = share_memory
        self.context = context
        self._group: Any = None
        self._place = 0
        self._alone = False
        self._kind = ""

    def send(self, request: Request) -> None:
        """Send the request to the process."""
        self._kind = request.kind
        group, place = self.home()
        group.send([place], [request])

    def recv(self) -> Any:
        """Wait for the reply."""
        group, place = self.home()
        return group.receive(place, self._kind)

    def cancel(self) -> None:
        """Disown the request; its reply is dropped when it comes."""
        group, place = self.home()
        group.cancel([place])

    def close(self) -> None:
        """End the process; in a pool, the pool does."""
        if self._alone and self._group is not None:
            self._group.close()

    def home(self) -> tuple[Any, int]:
        """The group that the worker belongs to, made now if there is none, and its place there."""
        if self._group is None:
            group = ProcessGroup([self])
            try:
                group.start()
            except BaseException:
                group.close()
                raise
            self._alone = True
        assert self._group is not None  # noqa: S101 - joined by the group
        return self._group, self._place

    def join(self, group: WorkerGroup, place: int) -> None:
        """Belong to ``group`` from now on, as env ``place``."""
        self._group = group
        self._place = place

    @property
    def process(self) -> Any:
        """The ``multiprocessing`` process in which the env lives."""
        group, place = self.home()
        return group.lane_of(place).process

    @classmethod
    def wait(cls, workers: Sequence[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """The workers whose replies are there, in the order in which they came."""
        homes = [worker.home() for worker in workers]
        group = homes[0][0]
        if any(home is not group for home, _ in homes):
            # Outside a pool each has a process of its own, and a poll of its own.
            return super().wait(workers, wait_num, timeout)
        wanted = {place: worker for (_, place), worker in zip(homes, workers, strict=True)}
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ready = [i for i in group.finished if i in wanted]
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if len(ready) >= wait_num or left == 0:
                return [wanted[i] for i in ready]
            group.wait(1, left)

    @classmethod
    def group(
        cls,
        workers: Sequence[Any],
        *,
        num_processes: int | None = None,
        num_threads: int | None = 1,
        affinity: bool = False,
        step_timeout: float | None = None,
        caller_steps: bool = False,
        **options: Any,
    ) -> WorkerGroup:
        """Batch hooks with one message per process and batch.

        Args:
            workers: all workers of the pool.
            num_processes: over how many processes the envs are spread, evenly and in order; None is
                one for each.
            num_threads: the threads with which each process may compute; None does not limit them.
            affinity: keep each process on one core, in turn.
            step_timeout: seconds that an env may take over one request, from when it begins; None
                is for ever. It is looked at while the pool waits for rows.
            caller_steps: have the last envs live in this process, which steps them while the others
                step theirs: as many as a process has, or half as many with ``wait_num`` or
                ``timeout``.
            **options: none.
        """
        if options:
            raise TypeError(f"{cls.__name__} does not take {', '.join(sorted(options))}")
        changed = cls.send is not SubprocEnvWorker.send or cls.recv is not SubprocEnvWorker.recv
        if changed:  # a subclass that changes how a request travels keeps its way
            if num_processes is not None or caller_steps:
                raise TypeError(f"{cls.__name__} has a send or recv of its own: one env a process")
            return WorkerGroup(workers)
        make = functools.partial(
            ProcessGroup,
            num_processes=num_processes,
            num_threads=num_threads,
            affinity=affinity,
            step_timeout=step_timeout,
        )
        if not caller_steps:
            return make(workers)
        if num_processes is None:
            raise ValueError(
                "caller_steps: the caller has a share like a process; say num_processes"
            )
        if step_timeout is not None:
            raise ValueError(
                "step_timeout: an env that the caller steps can't be ended; leave caller_steps"
            )
        processes = check_num_processes(num_processes, len(workers))
        if processes == len(workers):  # there is none left for the caller
            return make(workers)
        return SharingGroup(workers, make, processes)
