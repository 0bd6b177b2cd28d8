"""Measure how long an env's steps take, and choose the number of worker processes from that."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from envpool_py.env import spaces
from envpool_py.env.wrapper_layers import make_for_random_actions
from envpool_py.errors import WorkerDiedError
from envpool_py.threads.thread_host import ThreadEnvWorker
from envpool_py.worker.builtin_env_workers import SubprocEnvWorker
from envpool_py.worker.cores_and_threads import usable_cores
from envpool_py.worker.supervisor import obstacle

#: Seconds for which the throw-away env is stepped.
PROBE_SECONDS = 0.1
#: Seconds after which the process of a throw-away env that hangs is killed.
LONGEST_PROBE = 20.0
#: An env whose CPU time is a smaller part of its step time mostly waits.
BUSY_SHARE = 0.5
#: Overhead of worker processes, in seconds per batch.
OVERHEAD = 120e-6
#: The same if the caller steps a share of the envs.
SHARED_OVERHEAD = 40e-6
#: Seconds of a step below which batches are faster if the caller steps a share of the envs.
CHEAP_STEP = 100e-6


class Probe(NamedTuple):
    """The times of an env in seconds; ``wall`` and ``cpu``: per step, resets included.

    ``disturbed``: two of these envs can't share a process, see ``disturb``.
    """

    wall: float
    cpu: float
    step_p50: float = 0.0
    step_p99: float = 0.0
    resets_per_step: float = 0.0
    reset_mean: float = 0.0
    obs_bytes: int = 0
    disturbed: bool = False

    @property
    def waits(self) -> bool:
        """Whether a step mostly waits (for a simulator, a device, a sleep) and does not compute."""
        return self.cpu < BUSY_SHARE * self.wall


def probe(
    env_fn: Callable[[], Any],
    context: Any = None,
    seconds: float = PROBE_SECONDS,
    num_envs: int = 1,
) -> Probe:
    """Step one throw-away env with random actions for ``seconds``, in a separate process.

    No env of a pool is used. If ``env_fn`` raises, this raises ``EnvError``. An env that ends its
    process, or takes too long, counts as one that waits, so that it gets its own process. Where
    there can be no worker process, a thread steps the env.

    If more than one of ``num_envs`` may share a process, a second env is made there, to find
    whether they disturb each other.
    """
    in_thread = obstacle()
    make = ThreadEnvWorker if in_thread else partial(SubprocEnvWorker, context=context)
    worker = make(partial(_make, env_fn))
    try:  # not `with contextlib.closing`: an interrupt at its end would skip the close
        assert worker.process is not None  # noqa: S101 - starts it; raises the error of env_fn
        try:
            measured = Probe(*worker.request("apply", _measure, seconds))
        except WorkerDiedError:
            return Probe(wall=1.0, cpu=0.0)
        if num_envs > 1 and not measured.waits and not in_thread:
            num_steps = max(2, int(PROBE_SECONDS / max(measured.wall, 5e-3)))
            try:
                disturbed = worker.request("apply", _disturbed, num_steps)
            except WorkerDiedError:  # of a simulator that starts once in a process
                disturbed = True
            measured = measured._replace(disturbed=disturbed)
        return measured
    finally:
        worker.close()


def choose_processes(measured: Probe, num_envs: int) -> int:
    """Return one process per core, but one per env if a step mostly waits or envs disturb."""
    alone = measured.waits or measured.disturbed
    return num_envs if alone else min(num_envs, len(usable_cores()))


def choose(
    measured: Probe, num_envs: int, *, needed: bool = False, may_share: bool = True
) -> tuple[str, int | None, bool]:
    """Return the fastest ``backend``, ``num_processes`` and ``caller_steps`` for sync batches.

    ``needed``: processes are needed, also where they are slower, and the caller steps no envs.
    ``may_share``: the caller may step a share of the envs.
    """
    step, processes = measured.wall, choose_processes(measured, num_envs)
    cheap = step < CHEAP_STEP and not (measured.waits or measured.disturbed)
    shared = cheap and processes > 1 and may_share and not needed
    overhead = SHARED_OVERHEAD if shared else OVERHEAD
    longest = -(-num_envs // processes) * step + overhead  # of the process with the most envs
    faster = num_envs > 1 if measured.waits else longest < num_envs * step
    if faster or needed or (measured.disturbed and num_envs > 1):
        return "shmem", processes - shared, shared
    return "dummy", None, False


def disturb(env: Any, other: Any, num_steps: int = 20) -> bool:
    """Whether steps of ``other`` in between change what ``env`` returns, or make it raise.

    Envs do that which share state in their module, or a device. False if already two equal runs of
    ``env`` alone differ, or raise: then nothing can be said.
    """
    try:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(num_steps)]
        alone = _results(env, None, actions)
        if alone != _results(env, None, actions):
            return False
    except Exception:  # noqa: BLE001 - whatever the env raises
        return False
    try:
        return alone != _results(env, other, actions)
    except Exception:  # noqa: BLE001 - because of the other
        return True


def _results(env: Any, other: Any, actions: list[Any]) -> list[bytes]:
    """Return the pickled results of a reset and steps of ``env``; ``other`` is stepped in turn."""
    results = [cloudpickle.dumps(env.reset(seed=0)[0])]
    if other is not None:
        other.reset(seed=1)
    for action in actions:
        *values, _ = env.step(action)
        results.append(cloudpickle.dumps(values))
        if values[2] or values[3]:
            break
        if other is not None and any(other.step(other.action_space.sample())[2:4]):
            other.reset()
    return results


#: In the process of a throw-away env, the function that made it.
_made_by: list[Callable[[], Any]] = []


def _make(env_fn: Callable[[], Any]) -> Any:
    _made_by[:] = [env_fn]
    return make_for_random_actions(env_fn)


def _disturbed(env: Any, num_steps: int) -> bool:
    """Whether a second env disturbs this one; a timer kills the process if they hang."""
    signal.setitimer(signal.ITIMER_REAL, LONGEST_PROBE)
    try:
        other = _make(*_made_by)
    except Exception:  # noqa: BLE001 - it starts once in a process
        return True
    found = disturb(env, other, num_steps)
    with contextlib.suppress(Exception):
        other.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return found


def _measure(env: Any, seconds: float) -> tuple[float, ...]:
    """Measure the fields of a ``Probe`` over as many steps as fit into ``seconds``.

    The measurement ends early when the env refuses a random action. CPU time is that of this
    thread alone, because threads of libraries may spin while they start. The time that the thread
    waited for a core is left out, because on a busy machine every env would seem to wait.
    """
    # A process is killed even if the env holds the GIL; a thread cannot be.
    if is_process := threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_PROBE)
    obs_bytes, steps, resets = 0, array("d"), array("d")
    sample = getattr(getattr(env, "action_space", None), "sample", lambda: None)
    actions: Iterator[Any] = itertools.repeat(None)
    with contextlib.suppress(Exception):
        # Drawn beforehand: to draw one takes a quarter of the time of a CartPole's step.
        actions = itertools.cycle([sample() for _ in range(64)])
        env.reset()
        env.step(next(actions))  # what happens at the first step only
        layout = spaces.layout_of(env.observation_space)
        obs_bytes = sum(np.empty(leaf.shape, leaf.dtype).nbytes for leaf in spaces.leaves(layout))
    clock = time.perf_counter
    start = wall, cpu, _ = clock(), time.thread_time(), _kept_from_core()
    with contextlib.suppress(Exception):
        while wall < start[0] + seconds:
            begun = clock()
            terminated, truncated = env.step(next(actions))[2:4]
            steps.append(clock() - begun)
            if terminated or truncated:
                begun = clock()
                env.reset()
                resets.append(clock() - begun)
            wall, cpu = clock(), time.thread_time()
    if is_process:
        signal.setitimer(signal.ITIMER_REAL, 0)
    burnt = cpu - start[1]
    # The two clocks are read one after the other; a step takes at least its CPU time.
    taken = max(wall - start[0] - (_kept_from_core() - start[2]), burnt)
    count = max(len(steps), 1)
    p50, p99 = np.percentile(steps or [0.0], [50, 99]).tolist()
    reset = sum(resets) / max(len(resets), 1)
    return taken / count, burnt / count, p50, p99, len(resets) / count, reset, obs_bytes


def _kept_from_core() -> float:
    """Return the seconds that this thread has waited for a core; 0 if the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
