"""How many processes an env is worth: measured on a throw-away env in a scratch process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from envpool_py.worker.limits import usable_cores
from envpool_py.worker.workers import SubprocEnvWorker

#: Seconds for which the scratch env is stepped.
PROBE_SECONDS = 0.1
#: An env with a smaller share of its time on the processor mostly waits.
BUSY = 0.5
#: Seconds per batch that processes cost, whatever the envs do.
OVERHEAD = 120e-6
#: The same where the caller steps a share of the envs.
SHARED_OVERHEAD = 40e-6
#: Seconds of a step below which it pays that the caller steps a share, without isolation.
CHEAP = 100e-6


class Probe(NamedTuple):
    """What a step of an env costs, resets included, in seconds."""

    wall: float
    cpu: float

    @property
    def waits(self) -> bool:
        """Whether the env mostly waits: for a simulator, a device, a sleep."""
        return self.cpu < BUSY * self.wall


def probe(env_fn: Callable[[], Any], context: Any = None) -> Probe:
    """Step one env with random actions for ``PROBE_SECONDS`` in a process of its own.

    The env is made there, stepped and thrown away; no env of a pool is used. An error of ``env_fn``
    is raised as ``EnvError``.
    """
    with contextlib.closing(SubprocEnvWorker(env_fn, context=context)) as worker:
        return Probe(*worker.request("apply", _measure, PROBE_SECONDS))


def choose_processes(measured: Probe, num_envs: int) -> int:
    """One process for each core if a step burns CPU, one for each env if it mostly waits."""
    return num_envs if measured.waits else min(num_envs, len(usable_cores()))


def caller_pays(measured: Probe, num_envs: int) -> bool:
    """Whether sync batches are faster if the caller steps a share of the envs."""
    return measured.wall < CHEAP and not measured.waits and choose_processes(measured, num_envs) > 1


def worth_processes(measured: Probe, num_envs: int, overhead: float = OVERHEAD) -> bool:
    """Whether sync batches of these envs are faster in processes."""
    if measured.waits:
        return num_envs > 1
    processes = choose_processes(measured, num_envs)
    share = -(-num_envs // processes)
    return share * measured.wall + overhead < num_envs * measured.wall


def _measure(env: Any, seconds: float) -> tuple[float, float]:
    """Wall and CPU seconds of a step, over as many as fit into ``seconds``.

    An env that refuses random actions is measured until then. Only the CPU time of this thread
    counts: a library's threads may spin while it starts. The time that this thread waited for a
    core does not: on a busy machine an env that computes would seem to wait.
    """
    steps = 0
    start = wall, cpu = time.perf_counter(), time.thread_time()
    kept_from_core = _kept_from_core()
    with contextlib.suppress(Exception):
        space = getattr(env, "action_space", None)
        sample = (lambda: None) if space is None else space.sample
        env.reset()
        env.step(sample())  # what happens at the first step only
        start = wall, cpu = time.perf_counter(), time.thread_time()
        kept_from_core = _kept_from_core()
        while time.perf_counter() < start[0] + seconds:
            terminated, truncated = env.step(sample())[2:4]
            if terminated or truncated:
                env.reset()
            steps += 1
            wall, cpu = time.perf_counter(), time.thread_time()
    burnt = cpu - start[1]
    # The two clocks are not read at the same time: a step takes at least its CPU time.
    taken = max(wall - start[0] - (_kept_from_core() - kept_from_core), burnt)
    return taken / max(steps, 1), burnt / max(steps, 1)


def _kept_from_core() -> float:
    """Seconds for which this thread was ready to run and had no core; 0 if that is not known."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
