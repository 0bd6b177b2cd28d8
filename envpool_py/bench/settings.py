"""Ways to step many envs: our pools, Gymnasium's vector envs, and a plain loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.make import make
from envpool_py.pool.pool_classes import pool_class

LOOP, SYNC, ASYNC, MAKE = "loop", "gymnasium-sync", "gymnasium-async", "make"
NAMES = (LOOP, SYNC, ASYNC, MAKE, "dummy", "subproc", "shmem", "thread")

#: The names in tables of those that have another one there.
_TEXTS = {SYNC: "Gymnasium Sync", ASYNC: "Gymnasium Async"}
_TEXTS |= {"thread": "threads", "dummy": "in process"}

#: Of all our pools: arrays for every leaf of an observation, and resets, as Gymnasium has them.
_OPTIONS: dict[str, Any] = {"autoreset_mode": "same_step", "columns": True}


class Running(NamedTuple):
    """Envs that have been reset."""

    advance: Callable[[], int]  # steps one batch; returns how many envs made a step
    close: Callable[[], object]
    is_partial: bool = False  # whether a batch may be less than all envs
    num_processes: int = 0
    made: str = ""  # the repr of our pool


class Setting(NamedTuple):
    """One way to step ``num_envs`` envs."""

    pool: str  # one of ``NAMES``
    num_envs: int
    num_processes: int = 0  # 0: none, or the pool decides
    wait_num: int | None = None
    caller_steps: bool = False
    copy: bool = True
    on_error: str = "raise"
    context: str | None = None

    def with_options(self, on_error: str, context: str | None) -> Setting:
        """The setting with the options of a command, as far as they concern this pool."""
        return self._replace(
            on_error=self.on_error if self.pool in (LOOP, SYNC, ASYNC) else on_error,
            context=context if self.pool in (ASYNC, MAKE) or self.num_processes else None,
        )

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the pool that differ from their defaults."""
        given, defaults = self._asdict(), self._field_defaults
        return {key: value for key, value in given.items() if value != defaults.get(key, value)}

    @property
    def in_threads(self) -> bool:
        return self.pool == "thread"

    @property
    def in_caller(self) -> bool:
        """Whether envs are in the calling process, which a crash of theirs ends."""
        return self.caller_steps or not self.num_processes

    @property
    def text(self) -> str:
        """The short name in tables, such as ``1 proc + caller, wait 8``."""
        procs = f"{self.num_processes} proc{'s' * (self.num_processes != 1)}"
        parts = [_TEXTS.get(self.pool, self.pool)]
        if self.num_processes:
            parts = [procs] if self.pool == "shmem" else [self.pool, procs]
        parts[-1] += " + caller" if self.caller_steps else ""
        parts += [f"wait {self.wait_num}"] if self.wait_num is not None else []
        parts += [] if self.copy else ["no copy"]
        return ", ".join(parts)

    @property
    def started_processes(self) -> int:
        return self.num_envs if self.pool == ASYNC else self.num_processes


def all_settings(num_envs: int, num_cores: int, wait_num: int | None = None) -> list[Setting]:
    """What ``envpool-py bench`` compares; only our pools have partial batches."""
    shmem = Setting("shmem", num_envs, min(num_cores, num_envs), wait_num)
    shared = [shmem, beside_caller(shmem)] if num_envs > 1 else [shmem]
    found = [
        *(Setting(name, num_envs) for name in (LOOP, SYNC, ASYNC)),
        *(Setting(name, num_envs, wait_num=wait_num) for name in (MAKE, "dummy", "thread")),
        shmem._replace(pool="subproc"),
        *(each._replace(copy=copy) for each in shared for copy in (True, False)),
        shmem._replace(num_processes=num_envs),
    ]
    if wait_num is not None:  # the caller may compute while envs step
        found.append(leave_core(shmem))
    return list(dict.fromkeys(found))


def leave_core(setting: Setting) -> Setting:
    """One process fewer, so that the caller has a core."""
    return setting._replace(num_processes=max(setting.num_processes - 1, 1))


def beside_caller(setting: Setting) -> Setting:
    """The same number of shares, of which the caller steps one."""
    return leave_core(setting)._replace(caller_steps=True)


def draw_actions(env_fn: Callable[[], Any], num_envs: int) -> list[Any]:
    """Batches of random actions, the same ones for every pool: arrays, or lists of other values."""
    env = env_fn()
    space = env.action_space
    env.close()
    space.seed(0)
    count = max(8, 4096 // num_envs)  # of batches, to be repeated
    batches = [[space.sample() for _ in range(num_envs)] for _ in range(count)]
    return batches if space.shape is None else [np.stack(batch) for batch in batches]


def start(setting: Setting, env_fns: Sequence[Callable[[], Any]], batches: list[Any]) -> Running:
    """Make and reset the envs; ``batches`` of actions are used in turn."""
    actions = itertools.cycle(batches)
    if setting.pool == LOOP:
        return _run_loop([env_fn() for env_fn in env_fns], actions)
    if setting.pool == SYNC:
        return _run_gymnasium(gym.vector.SyncVectorEnv(env_fns), actions)
    if setting.pool == ASYNC:
        pool = gym.vector.AsyncVectorEnv(env_fns, context=setting.context)
        return _run_gymnasium(pool, actions)
    return _run_pool(make_pool(setting, env_fns), actions)


def make_pool(setting: Setting, env_fns: Sequence[Callable[[], Any]]) -> BaseVectorEnv:
    if setting.pool == MAKE:
        return make(env_fns[0], setting.num_envs, **setting.options, **_OPTIONS)
    return pool_class(setting.pool)(env_fns, **setting.options, **_OPTIONS)


def _run_loop(envs: list[Any], actions: Iterator[Any]) -> Running:
    for i, env in enumerate(envs):
        env.reset(seed=i)

    def advance() -> int:
        for env, action in zip(envs, next(actions), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(envs)

    return Running(advance, lambda: [env.close() for env in envs])


def _run_gymnasium(pool: gym.vector.VectorEnv[Any, Any, Any], actions: Iterator[Any]) -> Running:
    """With the autoreset that is Gymnasium's default."""
    pool.reset(seed=0)
    resets = 0  # of the next batch: an env that has ended spends a step on its reset

    def advance() -> int:
        nonlocal resets
        _, rewards, terminated, truncated, _ = pool.step(next(actions))
        steps = len(rewards) - resets
        resets = int(np.count_nonzero(terminated | truncated))
        return steps

    is_async = isinstance(pool, gym.vector.AsyncVectorEnv)
    return Running(advance, pool.close, num_processes=pool.num_envs * is_async)


def _run_pool(pool: BaseVectorEnv, actions: Iterator[Any]) -> Running:
    pool.reset(seed=0)
    ids = np.arange(len(pool))

    def advance() -> int:
        return len(pool.step(next(actions))[1])

    def advance_some() -> int:
        nonlocal ids
        pool.step(next(actions)[: len(ids)], ids)
        ids = pool.batch_ids
        return len(ids)

    num_processes = len({*pool.apply(lambda _: os.getpid())} - {os.getpid()})
    advance_by = advance_some if pool.is_async else advance
    return Running(advance_by, pool.close, pool.is_async, num_processes, repr(pool))
