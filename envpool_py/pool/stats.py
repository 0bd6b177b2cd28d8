"""The result of ``pool.stats()``."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envpool_py.engine.engine import Engine
from envpool_py.env.step_times import RESET_NS, RESETS, STEP_NS, STEPS, percentile


@dataclass(frozen=True)
class Stats:
    """Counts and times since the pool was made, or since the last ``stats(clear=True)``.

    Attributes:
        seconds: the length of that period.
        batches: batches returned, batches of resets included.
        rows: rows in these batches.
        batch_fill: mean rows per batch, as a fraction of ``num_envs``; NaN before the first batch.
        steps: int64 ``(num_envs,)``: steps of each env.
        resets: int64 ``(num_envs,)``: resets of each env, automatic resets included.
        restarts: int64 ``(num_envs,)``: how often each env was recreated.
        step_mean: float64 ``(num_envs,)``: seconds per step, without automatic resets; NaN: none.
        step_p50: float64 ``(num_envs,)``: median of the seconds per step, to about 5 %.
        step_p99: float64 ``(num_envs,)``: 99th percentile of them, to about 5 %.
        reset_mean: float64 ``(num_envs,)``: seconds per reset; NaN before the first.
        busy: float64 ``(num_envs,)``: fraction of the time in which the env steps or resets.
        processes: the ids of the envs of each process.
        process_busy: float64 ``(num_processes,)``: the same for any env of each process.
        process_idle: float64 ``(num_processes,)``: ``1 - process_busy``.
    """

    seconds: float
    batches: int
    rows: int
    batch_fill: float
    steps: NDArray[np.int64]
    resets: NDArray[np.int64]
    restarts: NDArray[np.int64]
    step_mean: NDArray[np.float64]
    step_p50: NDArray[np.float64]
    step_p99: NDArray[np.float64]
    reset_mean: NDArray[np.float64]
    busy: NDArray[np.float64]
    processes: tuple[tuple[int, ...], ...]
    process_busy: NDArray[np.float64]
    process_idle: NDArray[np.float64]

    def __str__(self) -> str:
        """Return a few lines about the pool, its processes and its slowest envs."""
        steps = self.steps.sum()
        pace = f"{steps} steps, {steps / self.seconds:.0f} a second"
        lines = [
            f"{len(self.steps)} envs in {self.seconds:.3g} s: {pace}; {self.resets.sum()} resets",
            f"{self.batches} batches, {self.batch_fill:.0%} full",
        ]
        if self.restarts.any():
            lines.append(f"{self.restarts.sum()} restarts")
        lines += [
            f"process {number}, {len(envs)} envs: {self.process_busy[number]:.0%} busy"
            for number, envs in enumerate(self.processes)
        ]
        slowest = np.argsort(-np.nan_to_num(self.step_p99), kind="stable")[:5]
        lines += [
            f"env {i}: step {_time_text(self.step_mean[i])}, p50 {_time_text(self.step_p50[i])},"
            f" p99 {_time_text(self.step_p99[i])}; reset {_time_text(self.reset_mean[i])};"
            f" {self.busy[i]:.0%} busy"
            for i in slowest.tolist()
            if self.steps[i]
        ]
        return "\n".join(lines)


class Meter:
    """Makes ``Stats`` from the counters of an engine, from now on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._since = time.perf_counter()
        self._times, self._restarts = engine.block.times.copy(), engine.hosts.restarts.copy()
        self._batches, self._rows = engine.num_returned

    def stats(self) -> Stats:
        """Return the counts since this object was made."""
        engine = self._engine
        counts = engine.block.times - self._times
        seconds = time.perf_counter() - self._since
        batches, rows = engine.num_returned[0] - self._batches, engine.num_returned[1] - self._rows
        processes = [host.ids for host in engine.hosts.all]
        steps, resets = counts[:, STEPS], counts[:, RESETS]
        step_seconds, reset_seconds = counts[:, STEP_NS] * 1e-9, counts[:, RESET_NS] * 1e-9
        busy = (step_seconds + reset_seconds) / seconds
        process_busy = np.array([busy[envs].sum() for envs in processes])
        return Stats(
            seconds=seconds,
            batches=batches,
            rows=rows,
            batch_fill=rows / (batches * len(steps)) if batches else float("nan"),
            steps=steps.copy(),
            resets=resets.copy(),
            restarts=engine.hosts.restarts - self._restarts,
            step_mean=step_seconds / np.where(steps, steps, np.nan),
            step_p50=percentile(counts, 0.5),
            step_p99=percentile(counts, 0.99),
            reset_mean=reset_seconds / np.where(resets, resets, np.nan),
            busy=busy,
            processes=tuple(map(tuple, processes)),
            process_busy=process_busy,
            process_idle=1 - process_busy,
        )


def _time_text(seconds: float) -> str:
    if not seconds < 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
