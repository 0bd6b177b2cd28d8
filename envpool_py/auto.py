"""How many processes an env is worth: measured on a throw-away env in a scratch process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from envpool_py.worker.executor import Executor
from envpool_py.worker.limits import usable_cores
from envpool_py.worker.workers import SubprocEnvWorker

#: Seconds for which the scratch env is stepped.
PROBE_SECONDS = 0.1
#: Above this share of its time on the processor an env is bound by it; below it mostly waits.
BUSY = 0.5
#: Seconds that a batch costs for going through processes, whatever the envs do.
OVERHEAD = 120e-6
#: The same where the caller steps a share of the envs.
SHARED_OVERHEAD = 40e-6
#: Seconds of a step below which the caller's share is worth the isolation that it costs.
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

    The env is made there, stepped and thrown away; no env of a pool is touched.

    Raises:
        EnvError: ``env_fn`` raised.
    """
    worker = SubprocEnvWorker(_Probed(env_fn), context=context)
    try:
        return Probe(*worker.call("measure", PROBE_SECONDS))
    finally:
        worker.close()


def choose_processes(measured: Probe, num_envs: int) -> int:
    """One process for each core if a step burns CPU, one for each env if it mostly waits."""
    return num_envs if measured.waits else min(num_envs, len(usable_cores()))


def caller_pays(measured: Probe, num_envs: int) -> bool:
    """Whether the caller had better step a share of the envs, in sync batches."""
    return measured.wall < CHEAP and not measured.waits and choose_processes(measured, num_envs) > 1


def worth_processes(measured: Probe, num_envs: int, overhead: float = OVERHEAD) -> bool:
    """Whether processes pay for sync batches of these envs: a few cheap ones are faster without."""
    if measured.waits:
        return num_envs > 1
    processes = choose_processes(measured, num_envs)
    share = -(-num_envs // processes)
    return share * measured.wall + overhead < num_envs * measured.wall


class _Probed:
    """Makes the env and stands in for it; picklable if the env_fn is."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env_fn = env_fn

    def __call__(self) -> _Probed:
        self._executor = Executor(self._env_fn)
        self.reset = self._executor.reset
        self.step = self._executor.step
        self.close = self._executor.close
        return self

    def measure(self, seconds: float) -> tuple[float, float]:
        """Wall and CPU seconds of a step, over as many as fit into ``seconds``.

        An env that refuses random actions is measured as far as it goes. The CPU time is that of
        the thread that steps: others may be a library's, which spins while it starts. The wall time
        is without what that thread spent waiting for a core: on a busy machine an env that computes
        would seem to wait.
        """
        steps = 0
        start = wall, cpu = time.perf_counter(), time.thread_time()
        kept_from_core = _kept_from_core()
        with contextlib.suppress(Exception):
            space = self._executor.env_spaces().action_space
            sample = space.sample if space is not None else _nothing
            self.reset()
            self.step(sample())  # what happens at the first step only
            start = wall, cpu = time.perf_counter(), time.thread_time()
            kept_from_core = _kept_from_core()
            while time.perf_counter() < start[0] + seconds:
                terminated, truncated = self.step(sample())[2:4]
                if terminated or truncated:
                    self.reset()
                steps += 1
                wall, cpu = time.perf_counter(), time.thread_time()
        burnt = cpu - start[1]
        # The two clocks are not read at one time: never less than it has computed.
        taken = max(wall - start[0] - (_kept_from_core() - kept_from_core), burnt)
        return taken / max(steps, 1), burnt / max(steps, 1)


def _kept_from_core() -> float:
    """For how many seconds this thread could have run and had no core; 0 where nobody tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _nothing() -> None:
    """The action for an env without an action space."""
