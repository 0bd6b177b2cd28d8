"""Find the best pool for an env on this machine: try settings, and recommend one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envpool_py.bench.measure import Caller, Job, Measurement, Results
from envpool_py.bench.settings import Setting, beside_caller

#: A simpler setting is recommended if another is faster by no more than this.
_WITHIN = 0.05

#: Partial batches need another loop around the pool: they must be faster by so much.
_PARTIAL_GAIN = 0.15

#: The part of the time in which every setting is tried; the rest goes to so many of the best.
_FIRST_ROUND, _FINALISTS = 0.6, 3

#: A measurement takes this part of all the time, but neither less nor more than so many seconds.
_PART = 1 / 40
_SHORTEST, _LONGEST = 0.1, 2.0


def first_settings(num_envs: int, num_cores: int, max_processes: int) -> list[Setting]:
    """Settings that wait for all rows, the likeliest first."""
    likely = (num_cores, num_envs, 2 * num_cores, max(1, num_cores // 2))
    counts = dict.fromkeys(min(count, num_envs, max_processes) for count in likely)
    best, *others = (Setting("shmem", num_envs, count) for count in counts)
    caller = [beside_caller(best)] if best.num_processes > 1 else []
    return [best, Setting("dummy", num_envs), *caller, *others]


def partial_settings(results: Results, callers: Sequence[Caller]) -> list[Setting]:
    """Partial batches for the two fastest settings with processes.

    If the caller computes, also for the fastest with one process less, which leaves it a core: some
    envs step while the caller computes for the others.
    """
    found = []
    for part in (2, 4):
        for caller in callers:
            ranked = [
                setting
                for setting in results.ranked(caller)
                if setting.num_processes > 1 and not setting.caller_steps and not setting.wait_num
            ][:2]
            if caller != Caller():
                ranked += [
                    each._replace(num_processes=each.num_processes - 1) for each in ranked[:1]
                ]
            found += [
                setting._replace(wait_num=setting.num_envs // part)
                for setting in ranked
                if setting.num_envs >= 2 * part
            ]
    return list(dict.fromkeys(found))


def try_settings(
    results: Results,
    settings: Sequence[Setting],
    callers: Sequence[Caller],
    measure: Callable[[Job], list[Measurement]],
    env_fn: Callable[[], Any],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[float, Setting]]:
    """Measure settings, partial batches of the best, and the best again, until the time is over.

    Args:
        results: gets the measurements.
        settings: those that wait for all rows.
        callers: what the caller computes before each batch, in turn.
        measure: ``carry_out``.
        env_fn: makes the env.
        seconds: for everything.
        clock: in seconds.

    Yields:
        The seconds that are over, and the setting that is measured next.
    """
    started = clock()
    each = min(max(_PART * seconds, _SHORTEST), _LONGEST)

    def measured(some: Sequence[Setting], end: float) -> Iterator[tuple[float, Setting]]:
        for setting in some:
            over = clock() - started
            if (over > end and results.measured) or results.hopeless:
                return
            yield over, setting
            results.add(Job(setting, env_fn, callers, each / len(callers)), measure)

    yield from measured(settings, _FIRST_ROUND * seconds)
    yield from measured(partial_settings(results, callers), _FIRST_ROUND * seconds)
    best = [setting for caller in callers for setting in results.ranked(caller)[:_FINALISTS]]
    finalists = list(dict.fromkeys(best))
    while finalists and clock() - started < seconds:
        yield from measured(finalists, seconds)
        finalists = [setting for setting in finalists if setting not in results.errors]


def recommended(results: Results, caller: Caller) -> Setting:
    """Return the simplest of the settings that are about as fast as the fastest.

    Raises:
        ValueError: nothing was measured.
    """
    rates = {setting: results.rate(setting, caller) for setting in results.measured}
    whole = {setting: rate for setting, rate in rates.items() if not setting.wait_num}
    partial = {setting: rate for setting, rate in rates.items() if setting.wait_num}
    if not whole:
        raise ValueError("no setting was measured")
    if max(partial.values(), default=0.0) > (1 + _PARTIAL_GAIN) * max(whole.values()):
        whole = partial
    enough = (1 - _WITHIN) * max(whole.values())
    return min((setting for setting, rate in whole.items() if rate >= enough), key=_complexity)


def _complexity(setting: Setting) -> tuple[bool, int, int]:
    """Return the sort key: isolation first, then few processes, then large batches."""
    return setting.caller_steps, setting.num_processes, -(setting.wait_num or 0)
