"""Processes that step envs with nothing around them; see ``drivers.ceiling``."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envpool_py.bench.job import Job
from envpool_py.bench.plain_block import PlainBlock
from envpool_py.ids import IdArray

#: Steps the share of a process by a batch of actions.
Step = Callable[[Any], object]
Stepping = Callable[[Sequence[int], Sequence[Any]], Step]

_STRIDE = 16  # words: two cache lines, so that nobody writes where another one looks
_STOP, FOR_EVER = -1, 1 << 62
#: How many envs are stepped between two looks at the rest, in partial batches.
_AT_ONCE = 8
_READ = 1 << 14  # bytes: 4096 ids
#: How often who waits looks before it asks whether the other one is still there.
_LOOKS = 10_000


class Crew:
    """The processes, and the words by which they are called.

    ``words[0]`` is the number of the batch that was begun last, ``FOR_EVER`` of all there can be;
    ``words[k * _STRIDE]`` that of the batch that process ``k``, from 1 on, has done last.
    """

    def __init__(
        self, job: Job, env_fns: list[Any], batches: list[Any], stepping: Stepping
    ) -> None:
        own, *others = _shares(job)
        size = 8 * _STRIDE * job.num_processes
        self.words: Any = memoryview(mmap.mmap(-1, size)).cast("q")
        self.own_envs = len(own)
        # By process: where its word is, and how many envs it has.
        self._places = {k * _STRIDE: len(share) for k, share in enumerate(others, 1)}
        context: Any = multiprocessing.get_context("fork")
        self._processes = []
        for at, share in zip(self._places, others, strict=True):
            self.words[at] = _STOP  # until its envs are made
            args = (self.words, at, share, env_fns, batches, stepping)
            process = context.Process(target=_work, args=args, daemon=True)
            process.start()
            self._processes.append(process)
        self.step = stepping(own, _made(own, env_fns))
        self.meet()

    def steps_of_others(self) -> int:
        """How many steps the envs of all other processes have made."""
        return sum(self.words[at] * share for at, share in self._places.items())

    def meet(self) -> None:
        """Wait until the others have done what was begun.

        Raises:
            RuntimeError: one of them has ended.
        """
        words = self.words
        for at, process in zip(self._places, self._processes, strict=True):
            while words[at] != words[0]:
                for _ in range(_LOOKS):
                    if words[at] == words[0]:
                        break
                else:
                    if ended := _ended([process]):
                        raise ended

    def close(self) -> None:
        """End the processes.

        Raises:
            RuntimeError: one of them had ended before.
        """
        ended = _ended(self._processes)  # where they never meet, nobody has noticed
        self.words[0] = _STOP
        for process in self._processes:
            process.join()
        if ended:
            raise ended


def _work(
    words: Any,
    at: int,
    share: Sequence[int],
    env_fns: list[Any],
    batches: list[Any],
    stepping: Stepping,
) -> None:
    """Step a share of the envs as often as is asked; its word is ``words[at]``."""
    parent = os.getppid()
    step = stepping(share, _made(share, env_fns))
    words[at] = 0
    for batch in itertools.cycle(batches):
        while words[0] == words[at] and os.getppid() == parent:
            for _ in range(_LOOKS):
                if words[0] != words[at]:
                    break
        if words[0] == _STOP or os.getppid() != parent:
            return
        step(batch)
        words[at] += 1


class PartialCrew:
    """The processes, the pipes by which ids go to them, and the one by which they come back."""

    def __init__(self, job: Job, env_fns: list[Any], block: PlainBlock) -> None:
        own, *others = _shares(job)
        self._home = np.repeat(np.arange(job.num_processes), [len(own), *map(len, others)])
        context: Any = multiprocessing.get_context("fork")
        self._done, theirs = os.pipe()
        os.set_blocking(self._done, False)
        self._asking: list[socket.socket] = []
        self._processes = []
        for share in others:
            ours, asked = socket.socketpair()
            args = (asked, theirs, share, env_fns, block, ours, *self._asking)
            self._processes.append(context.Process(target=_work_at_some, args=args, daemon=True))
            self._processes[-1].start()
            asked.close()
            self._asking.append(ours)
        os.close(theirs)
        self._own: deque[int] = deque()
        self._step = block.stepping_some(own, _made(own, env_fns))

    def send(self, ids: IdArray) -> None:
        """Begin a step of these envs."""
        home = self._home[ids]
        self._own.extend(ids[home == 0].tolist())
        for k, asking in enumerate(self._asking, 1):
            there = ids[home == k]
            if len(there):
                asking.send(there.astype(np.int32).tobytes())

    def wait(self, wait_num: int) -> list[int]:
        """Step envs here and look for the others, until so many have made their steps.

        Raises:
            RuntimeError: all processes have ended.
        """
        done: list[int] = []
        own = self._own
        while len(done) < wait_num:
            some = [own.popleft() for _ in range(min(_AT_ONCE, len(own)))]
            self._step(some)
            done += some
            if self._asking:
                done += self._came()
        return done

    def _came(self) -> list[int]:
        try:
            came = os.read(self._done, _READ)
        except BlockingIOError:
            return []
        if not came:
            raise RuntimeError("all processes have ended")
        return memoryview(came).cast("i").tolist()

    def close(self) -> None:
        """End the processes.

        Raises:
            RuntimeError: one of them had ended before.
        """
        ended = _ended(self._processes)  # while others go on, its envs are just never done
        for asking in self._asking:
            asking.close()
        for process in self._processes:
            process.join()
        os.close(self._done)
        if ended:
            raise ended


def _work_at_some(
    asked: socket.socket,
    done: int,
    share: Sequence[int],
    env_fns: list[Any],
    block: PlainBlock,
    *others: socket.socket,
) -> None:
    """Step those of a share that are asked for, until nobody can ask any more."""
    for other in others:
        other.close()
    step = block.stepping_some(share, _made(share, env_fns))
    space = memoryview(bytearray(_READ))
    while True:
        try:
            count = asked.recv_into(space, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
            continue
        if not count:
            return
        ids = space[:count].cast("i").tolist()
        for at in range(0, len(ids), _AT_ONCE):
            some = ids[at : at + _AT_ONCE]
            step(some)
            os.write(done, array("i", some).tobytes())


def _shares(job: Job) -> list[list[int]]:
    """The ids of the envs of each process, the caller's first."""
    return [part.tolist() for part in np.array_split(np.arange(job.num_envs), job.num_processes)]


def _ended(processes: Sequence[Any]) -> RuntimeError | None:
    """The error for the first of them that has ended; None: all live."""
    for process in processes:
        if not process.is_alive():
            return RuntimeError(f"a process has ended, by {process.exitcode}")
    return None


def _made(share: Sequence[int], env_fns: list[Any]) -> list[Any]:
    envs = [env_fns[i]() for i in share]
    for i, env in zip(share, envs, strict=True):
        env.reset(seed=i)
    return envs
