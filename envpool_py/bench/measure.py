"""Measure a setting in a fresh process, with a caller that computes between batches.

``python -m envpool_py.bench.measure`` is that process. It reads a pickled ``Job`` from stdin; the
answer is one line of JSON on stdout, and everything else that is printed goes to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from envpool_py.bench.settings import Running, Setting, draw_actions, start
from envpool_py.env import spaces
from envpool_py.env.failures import describe, dumps_by_value, in_one_line
from envpool_py.env.wrapper_layers import make_for_random_actions
from envpool_py.errors import EnvError, name_exit
from envpool_py.pool.pool_classes import DummyVectorEnv

#: The part of the measured time that is run before it, and the most that it may be, seconds.
WARM_UP, _LONGEST_WARM_UP = 1 / 3, 1.0


class MeasurementError(Exception):
    """A measurement that failed; the text says why, in one line."""


class Caller(NamedTuple):
    """The computation of the calling program before each batch, as of a policy."""

    per_batch: float = 0.0  # seconds of CPU time
    per_row: float = 0.0  # further seconds for each row of the batch
    #: ``policy(obs, env_ids)``, called instead; a class is called with ``(pool, seed)`` first.
    policy: Callable[..., Any] | None = None
    name: str = ""  # of the policy


class Job(NamedTuple):
    """The task of a measuring process."""

    setting: Setting
    env_fn: Callable[[], Any]
    callers: Sequence[Caller]  # measured in turn
    seconds: float  # for which each is measured, after a warm-up


class Measurement(NamedTuple):
    """The batches of one measurement, and the costs of the pool. Times are in seconds."""

    steps: int  # of envs, without automatic resets
    batches: int
    seconds: float  # the whole time, with that of the caller
    step_p50: float  # of one batch, without the caller's time
    step_p99: float
    startup_seconds: float = 0.0  # to make and reset all envs
    memory_bytes: int | None = None  # by which this process and its children grew; None: unknown
    num_processes: int = 0
    made: str = ""  # the repr of our pool
    caller: Caller = Caller()

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


@dataclass
class Results:
    """All measurements, and the reasons why settings have none."""

    measured: dict[Setting, list[Measurement]] = field(default_factory=dict)
    errors: dict[Setting, str] = field(default_factory=dict)

    def add(self, job: Job, measure: Callable[[Job], list[Measurement]]) -> None:
        """Measure a job, unless its setting failed before, or several did and none was measured."""
        hopeless = len(self.errors) > 1 and not self.measured
        if hopeless or job.setting in self.errors:
            return
        try:
            found = measure(job)
            self.measured.setdefault(job.setting, []).extend(found)
        except MeasurementError as error:
            self.errors[job.setting] = str(error)

    def of(self, setting: Setting, caller: Caller) -> list[Measurement]:
        return [each for each in self.measured[setting] if each.caller == caller]

    def rate(self, setting: Setting, caller: Caller) -> float:
        return median(each.rate for each in self.of(setting, caller))

    def ranked(self, caller: Caller) -> list[Setting]:
        return sorted(self.measured, key=lambda setting: -self.rate(setting, caller))


def carry_out(job: Job) -> list[Measurement]:
    """Measure in a fresh process, one measurement for each of ``job.callers``.

    MeasurementError if it fails or takes too long, or the env can't be sent to it.
    """
    limit = 120.0 + 3 * job.seconds * len(job.callers)  # imports, start and end take time too
    path = os.pathsep.join(filter(None, sys.path))
    try:
        data = dumps_by_value(job)
    except Exception as error:  # noqa: BLE001 - pickling runs the user's code
        text = f"the env can't be sent to a process: {describe(error)}"
        raise MeasurementError(text) from None
    answer = ask([sys.executable, "-m", __name__], limit, data, PYTHONPATH=path)
    pairs = zip(answer, job.callers, strict=True)
    return [Measurement(*each)._replace(caller=caller) for each, caller in pairs]


def ask(command: Sequence[str], seconds: float, given: bytes = b"", **environ: str) -> Any:
    """The JSON that a command writes within so many seconds, with this stdin; MeasurementError."""
    # Files, not pipes: a program that an env has started may hold its end of a pipe open.
    file = tempfile.TemporaryFile
    with file() as question, file() as answer, file() as complaints:
        question.write(given)
        question.seek(0)
        process = subprocess.Popen(  # noqa: S603 - the caller's own script
            command,
            stdin=question,
            stdout=answer,
            stderr=complaints,
            env={**os.environ, **environ},
            start_new_session=True,  # so that all processes it has started can be ended
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise MeasurementError("took too long") from None
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError, AttributeError):  # Windows has no groups
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status:
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip()
            text = said.splitlines()[-1] if said and status > 0 else name_exit(status)
            raise MeasurementError(text.strip()[:200])
        answer.seek(0)
        return json.load(answer)


def measure(job: Job) -> list[Measurement]:
    env_fns = [functools.partial(make_for_random_actions, job.env_fn)] * job.setting.num_envs
    batches = draw_actions(job.env_fn, job.setting.num_envs)
    with contextlib.ExitStack() as stack:
        computations = [_computation(caller, env_fns, stack) for caller in job.callers]
        before, started = _memory_bytes(), time.perf_counter()
        running = start(job.setting, env_fns, batches)
        startup = time.perf_counter() - started
        stack.callback(running.close)
        found = []
        for computation in computations:
            arguments = running, computation, job.setting.num_envs
            step_batches(*arguments, min(job.seconds * WARM_UP, _LONGEST_WARM_UP))
            found.append(step_batches(*arguments, job.seconds))
        after = _memory_bytes()
    grown = None if before is None or after is None else max(after - before, 0)
    own: dict[str, Any] = {"num_processes": running.num_processes, "made": running.made}
    own |= {"startup_seconds": startup, "memory_bytes": grown}
    return [each._replace(**own) for each in found]


def _computation(
    caller: Caller, env_fns: Sequence[Callable[[], Any]], stack: contextlib.ExitStack
) -> Callable[[int], object]:
    """What the caller does before a batch, given the number of rows that it has."""
    if caller.policy is None:
        return lambda rows: compute(caller.per_batch + rows * caller.per_row)
    # A pool of its own, because a loop and Gymnasium's pools have none, for real observations.
    pool = stack.enter_context(DummyVectorEnv(env_fns, columns=True))
    policy: Any = caller.policy(pool, 0) if isinstance(caller.policy, type) else caller.policy
    obs, _ = pool.reset(seed=0)
    ids = np.arange(len(pool))
    if hasattr(policy, "start_episodes"):
        policy.start_episodes(ids)
    return lambda rows: policy(spaces.take(obs, slice(rows)), ids[:rows])


def step_batches(
    running: Running, computation: Callable[[int], object], num_envs: int, seconds: float
) -> Measurement:
    """Step batches for so long; each gives ``computation`` the number of rows of the one before."""
    clock = time.perf_counter
    steps, rows, took = 0, num_envs, array("d")
    started = now = clock()
    while now < started + seconds or not steps:
        computation(rows)
        begun = clock()
        stepped = running.advance()
        now = clock()
        took.append(now - begun)
        steps += stepped
        if running.is_partial:
            rows = stepped
    p50, p99 = np.percentile(took, [50, 99]).tolist()
    return Measurement(steps, len(took), now - started, p50, p99)


def compute(seconds: float) -> None:
    """Keep a core busy for so much CPU time, as a policy does."""
    if seconds:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


def _memory_bytes() -> int | None:
    """Memory of this process and its children; shared pages count once. None except on Linux."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    try:
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    except OSError:
        return None
    lines = (line.split() for text in texts for line in text.splitlines())
    return sum(1024 * int(words[1]) for words in lines if words[0] == "Pss:")


def busy_part(seconds: float) -> float | None:
    """Return the part of all cores that is busy during so many seconds; None except on Linux."""
    texts = []
    try:
        for pause in (seconds, 0.0):
            texts.append(Path("/proc/stat").read_text().partition("\n")[0])
            time.sleep(pause)
        begun, ended = (np.array(text.split()[1:9], int) for text in texts)
    except (OSError, ValueError):
        return None
    ticks = ended - begun
    busy = ticks.sum() - ticks[3] - ticks[4]  # without idle ones and those of waiting for a disk
    return float(busy / max(ticks.sum(), 1))


def _main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork")  # for every pool, so that starts can be compared
    try:
        found = [each[:-1] for each in measure(job)]  # the other process knows the callers
    except EnvError as error:  # the last line of stderr is shown
        sys.exit(error.message.partition("\n")[0])
    except Exception as error:  # noqa: BLE001 - of the policy, or of an env that no pool holds
        sys.exit(in_one_line(error))
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    _main()
