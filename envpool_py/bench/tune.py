"""Find the best pool for an env on this machine: try settings, and recommend one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envpool_py.bench.measure import Caller, Job, Measurement, Results
from envpool_py.bench.settings import LOOP, MAKE, SYNC, Setting, beside_caller, leave_core

#: A smaller difference of speed is none: the simplest setting is then recommended.
WITHIN = 0.1

#: Partial batches need another loop around the pool: they must be faster by so much.
_PARTIAL_GAIN = 0.15

#: The part of the time in which every setting is tried; the rest goes to so many of the best.
_FIRST_ROUND, _FINALISTS = 0.6, 3


def first_settings(
    num_envs: int,
    num_cores: int,
    max_processes: int,
    callers: Sequence[Caller],
    *,
    waits: bool = False,
) -> list[Setting]:
    """Settings that do not depend on what others measure, the likeliest first.

    If the caller computes, half batches in processes that leave it a core are among them; threads
    if a step ``waits`` rather than computes.
    """
    likely = (num_cores, num_envs, 2 * num_cores, max(1, num_cores // 2))
    counts = dict.fromkeys(min(count, num_envs, max_processes) for count in likely)
    best, *others = (Setting("shmem", num_envs, count) for count in counts)
    found = [Setting("thread", num_envs)] if waits else []
    found += [best, Setting("dummy", num_envs)]
    if best.num_processes > 1:
        found.append(beside_caller(best))
    if any(caller != Caller() for caller in callers):
        found += _parts(leave_core(best), 2)
    return found + others


def partial_settings(results: Results, callers: Sequence[Caller]) -> list[Setting]:
    """Partial batches for the two numbers of processes that are the fastest with whole ones.

    If the caller computes, smaller ones of those that were tried as well.
    """
    tried = [each for each in results.measured if each.wait_num]
    found: list[Setting] = []
    for part in (2, 4):
        for caller in callers:
            ranked = (each for each in results.ranked(caller) if not each.wait_num)
            whole = [each for each in ranked if each.num_processes > 1 or each.in_threads]
            several = [each for each in whole if not each.caller_steps][:2]
            found += [each for setting in [*tried, *several] for each in _parts(setting, part)]
    return [each for each in dict.fromkeys(found) if each not in results.measured]


def _parts(setting: Setting, part: int) -> list[Setting]:
    """The setting with batches of a ``part``-th of the envs, if these are several."""
    wait_num = setting.num_envs // part
    return [setting._replace(wait_num=wait_num)] if wait_num > 1 else []


def try_settings(
    results: Results,
    settings: Sequence[Setting],
    callers: Sequence[Caller],
    measure: Callable[[Job], list[Measurement]],
    env_fn: Callable[[], Any],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[float, Setting]]:
    """Measure settings, partial batches, and the best again; yield the time and what is next."""
    started = clock()
    each = min(max(seconds / 40, 0.1), 2.0)  # of one measurement

    def measured(some: Sequence[Setting], end: float) -> Iterator[tuple[float, Setting]]:
        for setting in some:
            over = clock() - started
            if over > end and results.measured:
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
    """The simplest of the fast settings; partial batches only if they are much faster.

    A setting that was measured once is left out if others were measured again: one measurement on a
    busy machine says little.
    """
    again = [setting for setting in results.measured if len(results.of(setting, caller)) > 1]
    rates = {setting: results.rate(setting, caller) for setting in again or results.measured}
    rest = {setting: rate for setting, rate in rates.items() if not setting.wait_num} or rates
    partial = {setting: rate for setting, rate in rates.items() if setting.wait_num}
    if max(partial.values(), default=0.0) > (1 + _PARTIAL_GAIN) * max(rest.values()):
        rest = partial
    enough = max(rest.values()) / (1 + WITHIN)
    return min((setting for setting, rate in rest.items() if rate >= enough), key=_complexity)


def _complexity(setting: Setting) -> tuple[int, bool, int, int]:
    """A loop first, then what ``make`` chooses; then isolation, few processes, large batches."""
    simple = (LOOP, SYNC, "dummy", MAKE)
    place = simple.index(setting.pool) if setting.pool in simple else len(simple)
    is_shared = setting.caller_steps or setting.pool == "thread"
    return place, is_shared, setting.started_processes, -(setting.wait_num or 0)
