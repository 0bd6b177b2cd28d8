"""Measure plain loops that leave out parts of a pool's work, to find the cost of each part.

One process per core, of which the caller is one, steps its share of the envs in a plain loop. It
does nothing else: it checks no row, handles no fault, loses infos and final observations, and keeps
its core busy while it waits. If a process ends, run.py ends the measurement.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py.bench.settings import Running

_STRIDE = 16  # words: two cache lines, so that no process writes where another one looks
_NOT_READY, _NO_END = -1, 1 << 62


class Work(NamedTuple):
    """What a pool gets; ``num_processes`` is for pools that spread their envs over the cores."""

    env_fns: list[Callable[[], Any]]
    batches: list[Any]
    num_envs: int
    wait_num: int | None
    num_processes: int
    masked: bool = False
    env: str = ""
    """One of ``KINDS`` or ``GAMES``."""

    def shares(self) -> list[list[int]]:
        """The ids of the envs of each process, the caller's first."""
        return [ids.tolist() for ids in np.array_split(range(self.num_envs), self.num_processes)]

    def envs(self, share: Sequence[int]) -> dict[int, Any]:
        """Make and reset the envs of a share."""
        envs = {i: self.env_fns[i]() for i in share}
        for i, env in envs.items():
            env.reset(seed=i)
        return envs


class Block:
    """Actions and rows of all envs in shared memory; ``step`` writes the rows of some."""

    def __init__(self, work: Work) -> None:
        env = work.env_fns[0]()
        space = env.observation_space
        env.close()
        if not isinstance(space, gym.spaces.Box) or not isinstance(work.batches[0], np.ndarray):
            raise TypeError("this one has memory only for observations and actions that are arrays")
        self.actions = _shared(work.batches[0].shape, work.batches[0].dtype)
        self._obs = _shared((work.num_envs, *space.shape), space.dtype)
        self._rewards = _shared((work.num_envs,), np.float64)
        self._flags = _shared((work.num_envs,), np.int64)

    def step(self, envs: dict[int, Any]) -> None:
        """Step some envs with the actions that are here."""
        for i, env in envs.items():
            obs, self._rewards[i], terminated, truncated, _ = env.step(self.actions[i])
            self._flags[i] = terminated + 2 * truncated
            if terminated or truncated:
                obs, _ = env.reset()
            self._obs[i] = obs

    def batch(self, *, copy: bool) -> tuple[Any, ...]:
        """Observations, rewards, terminated, truncated, infos: what a pool returns."""
        obs, rewards, flags = self._obs, self._rewards, self._flags
        if copy:
            obs, rewards = obs.copy(), rewards.copy()
        infos = np.array([{"env_id": i} for i in range(len(obs))], dtype=object)
        return obs, rewards, flags & 1 != 0, flags & 2 != 0, infos


def _shared(shape: tuple[int, ...], dtype: Any) -> Any:
    size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
    return np.ndarray(shape, dtype, buffer=mmap.mmap(-1, size))


class _Crew:
    """Processes that step their shares of the envs, batch after batch.

    ``words[0]`` is the number of the last batch that was begun, ``words[k * _STRIDE]`` the number
    of the last batch that process ``k``, from 1 on, has finished.
    """

    def __init__(self, work: Work, block: Block | None = None) -> None:
        own, *others = work.shares()
        size = 8 * _STRIDE * work.num_processes
        self.words: Any = memoryview(mmap.mmap(-1, size)).cast("q")
        self.shares = {k * _STRIDE: len(share) for k, share in enumerate(others, 1)}
        self._processes = []
        fork: Any = multiprocessing.get_context("fork")
        for place, share in zip(self.shares, others, strict=True):
            self.words[place] = _NOT_READY
            args = work, place, share, block
            self._processes.append(fork.Process(target=self._work, args=args, daemon=True))
            self._processes[-1].start()
        self.step = _stepping(work, own, block)
        self.meet()

    def _work(self, work: Work, place: int, share: list[int], block: Block | None) -> None:
        words, step = self.words, _stepping(work, share, block)
        words[place] = 0
        for batch in itertools.cycle(work.batches):
            while words[0] == words[place]:
                pass
            step(batch)
            words[place] += 1

    def meet(self) -> None:
        """Wait until the others have finished what was begun."""
        for place in self.shares:
            while self.words[place] != self.words[0]:
                pass

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _stepping(work: Work, share: list[int], block: Block | None) -> Callable[[Any], None]:
    """Steps the envs of a share, with rows if there is a block."""
    envs = work.envs(share)
    if block is not None:
        return lambda _: block.step(envs)
    first, last = share[0], share[-1] + 1

    def step(batch: Any) -> None:
        for env, action in zip(envs.values(), batch[first:last], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def apart(work: Work) -> Running:
    """The processes never meet."""
    crew, actions, counted = _Crew(work), itertools.cycle(work.batches), 0

    def advance() -> int:
        nonlocal counted
        crew.words[0] = _NO_END
        crew.step(next(actions))
        before = counted
        counted = sum(crew.words[place] * share for place, share in crew.shares.items())
        return counted - before + len(work.shares()[0])

    return Running(advance, crew.close)


def in_step(work: Work, *, block: Block | None = None, copy: bool = False) -> Running:
    """They begin and end each batch together: a process with fewer resets waits."""
    crew, actions = _Crew(work, block), itertools.cycle(work.batches)

    def advance() -> int:
        batch = next(actions)
        if block is not None:
            block.actions[...] = batch
        crew.words[0] += 1
        crew.step(batch)
        crew.meet()
        return work.num_envs if block is None else len(block.batch(copy=copy)[1])

    return Running(advance, crew.close)


def views(work: Work) -> Running:
    """Step in batches; actions and rows go through shared memory, and a batch is not copied."""
    return in_step(work, block=Block(work))


def rows(work: Work) -> Running:
    """As ``views``, and the caller copies the batch."""
    return in_step(work, block=Block(work), copy=True)
