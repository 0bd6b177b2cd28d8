"""What a measured process is told, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Job(NamedTuple):
    """One measurement to be made."""

    contestant: str
    env: str
    num_envs: int
    wait_num: int | None
    """Rows that a batch waits for; None: all of them."""
    num_processes: int
    """Processes for the contestants that spread their envs."""
    seconds: float
    """How long it is measured, after the warm-up."""


class Measurement(NamedTuple):
    """One measurement; sums are over its timed part."""

    steps: int
    """Steps of envs; automatic resets are not among them."""
    batches: int
    seconds: float
    cpu_seconds: float | None
    """Of the process and all its descendants."""
    caller_seconds: float
    """CPU time of the process that steps the pool, its envs included where they are inside."""
    others_seconds: float | None
    """CPU time of everything else on the machine."""
    latency_p50: float
    """Seconds from one batch to the next."""
    latency_p99: float
    startup_seconds: float
    """To make the pool and reset it."""
    memory_bytes: int | None
    """Of the process and all its descendants: after the start or at the end, the larger."""


class Running(NamedTuple):
    """A pool that has been reset."""

    advance: Callable[[], int]
    """Steps one batch; returns how many envs made a step."""
    close: Callable[[], object]


Driver = Callable[[Job, list[Any], list[Any]], Running]
"""Makes a pool of the env_fns and resets it; it will be given the batches of actions in turn."""
