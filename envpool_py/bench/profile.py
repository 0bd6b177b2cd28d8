"""What one env costs: its step, its reset, its memory."""

from __future__ import annotations

import os
import time
from array import array
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py.bench import process_tree, workloads


class Profile(NamedTuple):
    """Times in seconds."""

    steps: int
    step_mean: float
    step_p50: float
    step_p99: float
    busy: float
    """The part of the time in steps and resets that was spent on the CPU."""
    resets: int
    """Of episodes that have ended."""
    reset_mean: float
    """With the first reset."""
    reset_share: float
    """The part that resets take of the time, the first one left out."""
    memory_bytes: int | None
    """Of one more env."""


def _started(env: str, seed: int) -> tuple[gym.Env[Any, Any], array[float]]:
    """An env that has been reset and stepped, and the seconds that its reset took."""
    made = workloads.make_env(env, seed)
    began = time.perf_counter()
    made.reset(seed=seed)
    took = time.perf_counter() - began
    _, _, terminated, truncated, _ = made.step(made.action_space.sample())
    if terminated or truncated:
        made.reset()
    return made, array("d", [took])


def profile(env: str, seconds: float) -> Profile:
    """Step one env with random actions."""
    first, _ = _started(env, 0)
    before = process_tree.memory_bytes([os.getpid()])
    stepped, resets = _started(env, 1)
    after = process_tree.memory_bytes([os.getpid()])
    batches = workloads.draw_actions(stepped.action_space, 1)
    actions = [action for batch in batches for action in batch]
    steps = array("d")
    clock = time.perf_counter
    cpu, queued, started = time.process_time(), process_tree.queued_seconds(), clock()
    while not steps or clock() < started + seconds:
        began = clock()
        _, _, terminated, truncated, _ = stepped.step(actions[len(steps) % len(actions)])
        steps.append(clock() - began)
        if terminated or truncated:
            began = clock()
            stepped.reset()
            resets.append(clock() - began)
    cpu = time.process_time() - cpu
    # Had no other process wanted the cores.
    elapsed = clock() - started - (process_tree.queued_seconds() - queued)
    stepped.close()
    first.close()
    return Profile(
        steps=len(steps),
        step_mean=float(np.mean(steps)),
        step_p50=float(np.percentile(steps, 50)),
        step_p99=float(np.percentile(steps, 99)),
        busy=min(1.0, cpu / elapsed),
        resets=len(resets) - 1,
        reset_mean=float(np.mean(resets)),
        reset_share=sum(resets[1:]) / (sum(resets[1:]) + sum(steps)),
        memory_bytes=None if before is None or after is None else max(0, after - before),
    )
