"""Measure a setting in a fresh process, with a caller that computes between batches.

``python -m envpool_py.bench.measure JSON`` is that process. The JSON is a ``Job``; the answer is
one line of JSON on stdout, and everything else that is printed goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
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
from typing import IO, Any, NamedTuple

import numpy as np

from envpool_py.bench.settings import Setting, draw_actions, env_fns_of, start

#: The part of the measured time that is run before it, and the most that it may be, seconds.
_WARM_UP, _LONGEST_WARM_UP = 1 / 3, 1.0

#: A measurement may take so much longer than asked for: imports, the start, the end.
_ALLOWANCE = 120.0

#: Of what a failed process wrote.
_LONGEST_MESSAGE = 200


class MeasurementError(Exception):
    """A measurement that failed; the text says why, in one line."""


class Job(NamedTuple):
    """What a process measures."""

    setting: Setting
    env_id: str
    thinks: Sequence[float]
    """Seconds for which the caller computes before each batch; each is measured in turn."""
    seconds: float
    """How long each is measured, after a warm-up."""


class Measurement(NamedTuple):
    """Batches that were stepped, and what the pool cost. Times are in seconds."""

    think: float
    steps: int
    """Steps of envs; automatic resets are not among them."""
    batches: int
    seconds: float
    """All of the time, that of the caller included."""
    step_p50: float
    """Of one batch, without the caller's time."""
    step_p99: float
    startup_seconds: float = 0.0
    """To make all envs and reset them."""
    memory_bytes: int | None = None
    """How much this process and its children grew by the envs; None: unknown."""

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds


@dataclass
class Results:
    """What was measured, and why some settings have no measurement."""

    measured: dict[Setting, list[Measurement]] = field(default_factory=dict)
    errors: dict[Setting, str] = field(default_factory=dict)

    def add(self, job: Job, measure: Callable[[Job], list[Measurement]]) -> None:
        """Measure a job, unless its setting failed before."""
        if job.setting in self.errors:
            return
        try:
            measured = measure(job)
        except MeasurementError as error:
            self.errors[job.setting] = str(error)
        else:
            self.measured.setdefault(job.setting, []).extend(measured)

    def of(self, setting: Setting, think: float) -> list[Measurement]:
        """The measurements with a caller that computes for ``think`` seconds."""
        return [each for each in self.measured[setting] if each.think == think]

    def rate(self, setting: Setting, think: float) -> float:
        """Steps per second, the median."""
        return median(each.rate for each in self.of(setting, think))

    def ranked(self, think: float) -> list[Setting]:
        """The settings, the fastest first."""
        return sorted(self.measured, key=lambda setting: -self.rate(setting, think))


def carry_out(job: Job) -> list[Measurement]:
    """Measure in a fresh process, one measurement for each of ``job.thinks``.

    Raises:
        MeasurementError: the process failed or took too long.
    """
    limit = _ALLOWANCE + 3 * job.seconds * len(job.thinks)
    path = os.pathsep.join(filter(None, sys.path))
    answer = ask([sys.executable, "-m", __name__, json.dumps(job)], limit, PYTHONPATH=path)
    return [Measurement(*each) for each in answer]


def ask(command: Sequence[str], seconds: float, **environ: str) -> Any:
    """The JSON that a command writes to stdout within so many seconds.

    Raises:
        MeasurementError: the process failed or took too long.
    """
    # Files, not pipes: a program that an env has started may hold its end of a pipe open.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 - the caller's own script
            command,
            stdin=subprocess.DEVNULL,
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
            _end(process)
        if status:
            raise MeasurementError(_why(status, complaints))
        answer.seek(0)
        return json.load(answer)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _why(status: int, complaints: IO[bytes]) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    complaints.seek(0)
    said = complaints.read().decode(errors="replace").strip().splitlines()
    return said[-1].strip()[:_LONGEST_MESSAGE] if said else f"exit status {status}"


def measure(job: Job) -> list[Measurement]:
    """Measure in this process."""
    env_fns = env_fns_of(job.env_id, job.setting.num_envs)
    batches = draw_actions(env_fns[0], job.setting.num_envs)
    before, started = _memory_bytes(), time.perf_counter()
    running = start(job.setting, env_fns, batches)
    startup = time.perf_counter() - started
    try:
        found = []
        for think in job.thinks:
            step_batches(running.advance, think, min(job.seconds * _WARM_UP, _LONGEST_WARM_UP))
            found.append(step_batches(running.advance, think, job.seconds))
        after = _memory_bytes()
    finally:
        running.close()
    grown = None if before is None or after is None else max(after - before, 0)
    return [each._replace(startup_seconds=startup, memory_bytes=grown) for each in found]


def step_batches(advance: Callable[[], int], think: float, seconds: float) -> Measurement:
    """Step batches until the time is over, one that has a step at least; no costs are known."""
    clock = time.perf_counter
    steps, took = 0, array("d")
    started = now = clock()
    while now < started + seconds or not steps:
        compute(think)
        begun = clock()
        steps += advance()
        now = clock()
        took.append(now - begun)
    p50, p99 = np.percentile(took, [50, 99]).tolist()
    return Measurement(think, steps, len(took), now - started, p50, p99)


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


def _main() -> None:
    setting, *others = json.loads(sys.argv[1])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork")  # for every pool, so that starts can be compared
    found: list[Any] = measure(Job(Setting(*setting), *others))
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    _main()
