"""Carries out one job in this process."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from envpool_py.bench import contestants, envs, games, process_tree, workloads
from envpool_py.bench.job import Job, Measurement, Running
from envpool_py.bench.workloads import Workload

#: The part of the measured time that is run before it, and the most that it may be.
_WARM_UP = 1 / 3
_LONGEST_WARM_UP = 1.0

#: A bare env is stepped for about so long between two looks at the clock, seconds.
_BARE_BATCH = 0.005


def measure(job: Job) -> Measurement:
    """Start what the job names, warm it up, measure it and close it."""
    env_fns, batches = _work(job)
    start = bare if job.contestant == contestants.BARE else contestants.driver(job.contestant)
    started = time.perf_counter()
    running = start(job, env_fns, batches)
    startup = time.perf_counter() - started
    memory = process_tree.memory_bytes(process_tree.members(os.getpid()))
    try:
        _run(running.advance, min(job.seconds * _WARM_UP, _LONGEST_WARM_UP))
        pids = process_tree.members(os.getpid())
        before = _clocks(pids)
        steps, times = _run(running.advance, job.seconds)
        after = _clocks(pids)
        latencies = np.diff(times)
        at_end = process_tree.memory_bytes(process_tree.members(os.getpid()))
    finally:
        running.close()
    cpu = _elapsed(before.tree, after.tree)
    machine = _elapsed(before.machine, after.machine)
    return Measurement(
        steps=steps,
        batches=len(latencies),
        seconds=times[-1] - times[0],
        cpu_seconds=cpu,
        caller_seconds=after.caller - before.caller,
        others_seconds=None if machine is None or cpu is None else max(0.0, machine - cpu),
        latency_p50=float(np.percentile(latencies, 50)),
        latency_p99=float(np.percentile(latencies, 99)),
        startup_seconds=startup,
        memory_bytes=None if memory is None or at_end is None else max(memory, at_end),
    )


def bare(job: Job, env_fns: list[Any], batches: list[Any]) -> Running:
    """One env in a tight loop; a batch is as many steps as take a few milliseconds."""
    if job.env in games.GAMES:
        return games.bare(job.env, games.faces(job.env)[0], batches)
    env = env_fns[0]()
    env.reset(seed=0)
    step, reset = env.step, env.reset
    actions = [action for batch in batches for action in batch]
    size, at = 1, 0
    if job.env in workloads.KINDS and workloads.KINDS[job.env].waits:
        size = envs.EPISODE  # as a whole these are alike, in parts they are not
        del actions[len(actions) // size * size :]

    def advance() -> int:
        nonlocal size, at
        some = actions[at : at + size]
        started = time.perf_counter()
        for action in some:
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
        if time.perf_counter() - started < _BARE_BATCH:
            size = min(2 * size, len(actions))
        at = (at + len(some)) % len(actions)
        return len(some)

    return Running(advance, env.close)


def _work(job: Job) -> tuple[list[Any], list[Any]]:
    """The env_fns, and batches of actions."""
    if job.env in games.GAMES:
        inside = contestants.BY_NAME.get(job.contestant)
        face = games.faces(job.env)[0] if inside is None else inside.plays
        return (
            games.env_fns(job.env, face, job.num_envs),
            games.draw_actions(job.env, face, job.num_envs),
        )
    env_fns = workloads.env_fns(Workload(job.env, job.num_envs, job.wait_num))
    return env_fns, workloads.draw_actions(_action_space(env_fns[0]), job.num_envs)


def _action_space(env_fn: Callable[[], Any]) -> Any:
    env = env_fn()
    space = env.action_space
    env.close()
    return space


def _run(advance: Callable[[], int], seconds: float) -> tuple[int, array[float]]:
    """Step batches until the time is over, one at least.

    Returns:
        The steps, and when each batch began and the last one ended.
    """
    clock = time.perf_counter
    steps, now = 0, clock()
    times = array("d", [now])
    end = now + seconds
    while now < end or not steps:
        steps += advance()
        now = clock()
        times.append(now)
    return steps, times


class _Clocks(NamedTuple):
    tree: float | None
    caller: float
    machine: float | None


def _clocks(pids: list[int]) -> _Clocks:
    return _Clocks(
        process_tree.cpu_seconds(pids), time.process_time(), process_tree.machine_cpu_seconds()
    )


def _elapsed(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
