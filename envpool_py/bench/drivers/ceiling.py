"""No pool at all: what is left of the limit when the work of a pool is left out, item by item.

A process for each core, the caller's own one of them, steps its share of the envs in a plain loop.
Each of these does what a pool must do at the least, and nothing besides: no row is looked at, no
fault noticed, no final observation handed out, and who waits burns its core.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from envpool_py import cells
from envpool_py.bench.job import Job, Running
from envpool_py.ids import IdArray
from envpool_py.spaces import Array

_Rows: TypeAlias = tuple[Array, Array, Array, Array, Array]

#: Steps the share of a process by a batch of actions.
_Step = Callable[[Any], object]
_Stepping = Callable[[Sequence[int], Sequence[Any]], _Step]

_STRIDE = 16  # words: two cache lines, so that nobody writes where another one looks
_STOP, _FOR_EVER = -1, 1 << 62
#: How many envs are stepped between two looks at the rest, in partial batches.
_AT_ONCE = 8
_READ = 1 << 14  # bytes: 4096 ids
#: How often who waits looks before it asks whether the other one is still there.
_LOOKS = 10_000


def apart(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """The processes never meet: what the machine does at once, and its caches with many envs."""
    crew = _Crew(job, env_fns, batches, _stepping)
    actions = itertools.cycle(batches)
    counted = 0

    def advance() -> int:
        nonlocal counted
        crew.words[0] = _FOR_EVER
        crew.step(next(actions))
        before, counted = counted, crew.steps_of_others()
        return counted - before + crew.own_envs

    return Running(advance, crew.close)


def in_step(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """They begin and end each batch together: who has fewer resets to make waits."""
    crew = _Crew(job, env_fns, batches, _stepping)
    actions = itertools.cycle(batches)

    def advance() -> int:
        crew.words[0] += 1
        crew.step(next(actions))
        crew.meet()
        return job.num_envs

    return Running(advance, crew.close)


def views(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """Together; actions and rows go through shared memory, and the batch is what lies there.

    Raises:
        TypeError: observations or actions are not arrays.
    """
    return _with_rows(job, env_fns, batches, copy=False)


def rows(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """As ``views``, and the caller copies the batch.

    Raises:
        TypeError: observations or actions are not arrays.
    """
    return _with_rows(job, env_fns, batches, copy=True)


def _with_rows(job: Job, env_fns: list[Any], batches: list[Any], *, copy: bool) -> Running:
    block = _Block(env_fns, batches)
    crew = _Crew(job, env_fns, batches, block.stepping)
    actions = itertools.cycle(batches)

    def advance() -> int:
        block.actions[...] = batch = next(actions)
        crew.words[0] += 1
        crew.step(batch)
        crew.meet()
        return len(block.batch(copy=copy)[1])

    return Running(advance, crew.close)


def partial(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """Partial batches: ids go to the processes and come back, the rows lie in shared memory.

    Raises:
        TypeError: observations or actions are not arrays.
    """
    assert job.wait_num is not None  # noqa: S101 - `why_not` has seen to it
    wait_num = job.wait_num
    block = _Block(env_fns, batches)
    crew = _PartialCrew(job, env_fns, block)
    actions = itertools.cycle(batches)
    ids = np.arange(job.num_envs)

    def advance() -> int:
        nonlocal ids
        block.actions[ids] = next(actions)[: len(ids)]
        crew.send(ids)
        done = crew.wait(wait_num)
        infos = block.some(np.array(done))[-1]
        ids = np.array([info["env_id"] for info in infos])
        return len(ids)

    return Running(advance, crew.close)


class _Crew:
    """The processes, and the words by which they are called.

    ``words[0]`` is the number of the batch that was begun last, ``words[k * _STRIDE]`` that of the
    batch that process ``k``, from 1 on, has done last.
    """

    def __init__(
        self, job: Job, env_fns: list[Any], batches: list[Any], stepping: _Stepping
    ) -> None:
        own, *others = [
            share.tolist() for share in np.array_split(np.arange(job.num_envs), job.num_processes)
        ]
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
                    if not process.is_alive():
                        raise RuntimeError(f"a process has ended, by {process.exitcode}")

    def close(self) -> None:
        """End the processes.

        Raises:
            RuntimeError: one of them had ended before.
        """
        ended = [process for process in self._processes if not process.is_alive()]
        self.words[0] = _STOP
        for process in self._processes:
            process.join()
        if ended:  # where they never meet, nobody has noticed
            raise RuntimeError(f"a process has ended, by {ended[0].exitcode}")


def _work(
    words: Any,
    at: int,
    share: Sequence[int],
    env_fns: list[Any],
    batches: list[Any],
    stepping: _Stepping,
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


class _PartialCrew:
    """The processes, the pipes by which ids go to them, and the one by which they come back."""

    def __init__(self, job: Job, env_fns: list[Any], block: _Block) -> None:
        own, *others = [
            share.tolist() for share in np.array_split(np.arange(job.num_envs), job.num_processes)
        ]
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
        """End the processes."""
        for asking in self._asking:
            asking.close()
        for process in self._processes:
            process.join()
        os.close(self._done)


def _work_at_some(
    asked: socket.socket,
    done: int,
    share: Sequence[int],
    env_fns: list[Any],
    block: _Block,
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


def _made(share: Sequence[int], env_fns: list[Any]) -> list[Any]:
    envs = [env_fns[i]() for i in share]
    for i, env in zip(share, envs, strict=True):
        env.reset(seed=i)
    return envs


def _stepping(share: Sequence[int], envs: Sequence[Any]) -> _Step:
    """Nothing but the envs."""
    first, last = share[0], share[-1] + 1

    def step(batch: Any) -> None:
        for env, action in zip(envs, batch[first:last], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


class _Block:
    """Actions and rows of all envs in shared memory."""

    def __init__(self, env_fns: list[Any], batches: list[Any]) -> None:
        env = env_fns[0]()
        space = env.observation_space
        env.close()
        if not isinstance(space, gym.spaces.Box) or not isinstance(batches[0], np.ndarray):
            raise TypeError("this one has memory for observations and actions that are arrays")
        num_envs = len(env_fns)
        self.actions = _shared(batches[0].shape, batches[0].dtype)
        self._obs = _shared((num_envs, *space.shape), space.dtype)
        self._rewards = _shared((num_envs,), np.dtype(np.float64))
        self._flags = _shared((num_envs,), np.dtype(np.int64))

    def stepping(self, share: Sequence[int], envs: Sequence[Any]) -> _Step:
        """Steps all of a share by the actions that lie here, and keeps their rows."""
        step = self.stepping_some(share, envs)
        return lambda _: step(share)

    def stepping_some(
        self, share: Sequence[int], envs: Sequence[Any]
    ) -> Callable[[Sequence[int]], None]:
        """Steps those of a share whose ids it is told."""
        flat = self._obs.ndim == 2
        places = {i: cells.of(self._obs[i]) if flat else self._obs[i] for i in share}
        whole: Any = slice(None) if flat else ...
        env_of = dict(zip(share, envs, strict=True))
        actions, rewards, flags = self.actions, cells.of(self._rewards), cells.of(self._flags)

        def step(ids: Sequence[int]) -> None:
            for i in ids:
                obs, reward, terminated, truncated, _ = env_of[i].step(actions[i])
                flags[i] = terminated + 2 * truncated
                if terminated or truncated:
                    obs, _ = env_of[i].reset()
                places[i][whole] = obs
                rewards[i] = reward

        return step

    def batch(self, *, copy: bool) -> _Rows:
        """The rows of all envs, as a pool hands them out."""
        obs, rewards = self._obs, self._rewards
        if copy:
            obs, rewards = obs.copy(), rewards.copy()
        return obs, rewards, *_ends(self._flags), _infos(range(len(rewards)))

    def some(self, ids: IdArray) -> _Rows:
        """A copy of some rows."""
        obs, rewards = self._obs.take(ids, 0), self._rewards[ids]
        return obs, rewards, *_ends(self._flags[ids]), _infos(ids.tolist())


def _ends(flags: Array) -> tuple[Array, Array]:
    return flags & 1 != 0, flags & 2 != 0


def _infos(ids: Sequence[int]) -> Array:
    return np.fromiter([{"env_id": i} for i in ids], dtype=object, count=len(ids))


def _shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.ndarray(shape, dtype, buffer=mmap.mmap(-1, max(size, 1)))
