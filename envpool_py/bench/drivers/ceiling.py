"""No pool at all: what is left of the limit when the work of a pool is left out, item by item.

A process for each core, the caller's own one of them, steps its share of the envs in a plain loop.
Each of these does what a pool must do at the least, and nothing besides: no row is looked at, no
fault noticed, no final observation handed out, and who waits burns its core.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_py.bench.crews import FOR_EVER, Crew, PartialCrew, Step
from envpool_py.bench.job import Job, Running
from envpool_py.bench.plain_block import PlainBlock


def apart(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """The processes never meet: what the machine does at once, and its caches with many envs."""
    crew = Crew(job, env_fns, batches, _stepping)
    actions = itertools.cycle(batches)
    counted = 0

    def advance() -> int:
        nonlocal counted
        crew.words[0] = FOR_EVER
        crew.step(next(actions))
        before, counted = counted, crew.steps_of_others()
        return counted - before + crew.own_envs

    return Running(advance, crew.close)


def in_step(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """They begin and end each batch together: who has fewer resets to make waits."""
    crew = Crew(job, env_fns, batches, _stepping)
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
    block = PlainBlock(env_fns, batches)
    crew = Crew(job, env_fns, batches, block.stepping)
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
    block = PlainBlock(env_fns, batches)
    crew = PartialCrew(job, env_fns, block)
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


def _stepping(share: Sequence[int], envs: Sequence[Any]) -> Step:
    """Nothing but the envs."""
    first, last = share[0], share[-1] + 1

    def step(batch: Any) -> None:
        for env, action in zip(envs, batch[first:last], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step
