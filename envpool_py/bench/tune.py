"""Which pool is best for an env on this machine: settings are tried, one is recommended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from envpool_py.bench.interpreters import MeasurementError
from envpool_py.bench.job import Measurement
from envpool_py.bench.profile import Profile

#: A simpler setting is taken for one that is faster by no more than this.
_WITHIN = 0.05

#: Partial batches change the loop of whoever uses the pool: they must be faster by so much.
_PARTIAL_GAIN = 0.15

#: The part of the time in which every setting is tried; the rest goes to the best of them.
_FIRST_ROUND = 0.6
_FINALISTS = 3

#: A measurement takes this part of all the time, but neither less nor more than so many seconds.
_PART = 1 / 40
_SHORTEST, _LONGEST = 0.1, 2.0

#: Below this part of the time on the CPU an env mostly waits.
_WAITS = 0.5


class Setting(NamedTuple):
    """One way to set up a pool."""

    backend: str
    """``"dummy"``, ``"subproc"`` or ``"shmem"``."""
    num_envs: int
    num_processes: int
    """0 in this process; as many as envs: one each."""
    wait_num: int | None = None
    caller: bool = False
    """Whether the caller steps a share, besides the processes."""

    @property
    def text(self) -> str:
        """How it is called in tables."""
        words = [self.backend]
        if self.num_processes == self.num_envs:
            words.append("a process per env")
        elif self.num_processes:
            words.append(f"num_processes={self.num_processes}")
        if self.caller:
            words.append("caller_steps=True")
        if self.wait_num:
            words.append(f"wait_num={self.wait_num}")
        return ", ".join(words)


@dataclass
class Tuning:
    """What was found out.

    Attributes:
        profile: of one env.
        measured: every setting that was tried, and its measurements.
        errors: why a setting has none.
    """

    profile: Profile
    measured: dict[Setting, list[Measurement]] = field(default_factory=dict)
    errors: dict[Setting, str] = field(default_factory=dict)


def first_settings(num_envs: int, num_cores: int, max_processes: int) -> list[Setting]:
    """Settings that wait for all rows, the likeliest first."""
    likely = (num_cores, num_envs, 2 * num_cores, max(1, num_cores // 2))
    best, *others = dict.fromkeys(min(count, num_envs, max_processes) for count in likely)
    return [
        Setting("shmem", num_envs, best),
        Setting("dummy", num_envs, 0),
        *([Setting("shmem", num_envs, best - 1, caller=True)] if best > 1 else []),
        *(Setting("shmem", num_envs, count) for count in others),
        *(Setting("subproc", num_envs, count) for count in [best, *others[:1]]),
    ]


def partial_settings(tuning: Tuning) -> list[Setting]:
    """Partial batches for the two fastest of the settings with processes."""
    fastest = [
        setting for setting in ranked(tuning) if setting.num_processes > 1 and not setting.caller
    ][:2]
    return [
        setting._replace(wait_num=setting.num_envs // part)
        for part in (2, 4)
        for setting in fastest
        if setting.num_envs >= 2 * part
    ]


def try_settings(
    tuning: Tuning,
    settings: list[Setting],
    measure: Callable[[Setting, float], Measurement],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[float, Setting]]:
    """Measure settings, partial batches of the best, and the best again, until the time is over.

    Args:
        tuning: where the measurements go.
        settings: those that wait for all rows.
        measure: measures one for so many seconds.
        seconds: for everything.
        clock: of the time that is over.

    Yields:
        The seconds that are over, and what is measured next.
    """
    started = clock()
    each = min(max(_PART * seconds, _SHORTEST), _LONGEST)

    def measured(some: list[Setting], end: float) -> Iterator[tuple[float, Setting]]:
        for setting in some:
            over = clock() - started
            if over > end and tuning.measured:
                return
            yield over, setting
            try:
                measurement = measure(setting, each)
            except MeasurementError as error:
                tuning.errors[setting] = str(error)
            else:
                tuning.measured.setdefault(setting, []).append(measurement)

    yield from measured(settings, _FIRST_ROUND * seconds)
    yield from measured(partial_settings(tuning), _FIRST_ROUND * seconds)
    finalists = ranked(tuning)[:_FINALISTS]
    while finalists and clock() - started < seconds:
        yield from measured(finalists, seconds)
        finalists = [setting for setting in finalists if setting not in tuning.errors]


def rate(measurements: list[Measurement]) -> float:
    """Steps per second, the median."""
    return median(each.steps / each.seconds for each in measurements)


def ranked(tuning: Tuning) -> list[Setting]:
    """The settings that were measured, the fastest first."""
    return sorted(tuning.measured, key=lambda setting: rate(tuning.measured[setting]), reverse=True)


def recommended(tuning: Tuning) -> Setting:
    """The simplest of those that are about as fast as the fastest.

    Raises:
        ValueError: nothing was measured.
    """
    waiting_for_all = [setting for setting in tuning.measured if setting.wait_num is None]
    partial = [setting for setting in tuning.measured if setting.wait_num is not None]
    if not waiting_for_all:
        raise ValueError("no setting was measured")
    best = max(rate(tuning.measured[setting]) for setting in waiting_for_all)
    best_partial = max((rate(tuning.measured[setting]) for setting in partial), default=0.0)
    if best_partial > (1 + _PARTIAL_GAIN) * best:
        waiting_for_all, best = partial, best_partial
    fast = [
        setting
        for setting in waiting_for_all
        if rate(tuning.measured[setting]) >= (1 - _WITHIN) * best
    ]
    return min(fast, key=_complexity)


def code(env_id: str, setting: Setting) -> str:
    """The line that makes the pool."""
    module, _, name = env_id.rpartition(":")
    if name.startswith("ALE/"):
        module = module or "ale_py"
    words = [f'"{name}"', str(setting.num_envs), f'backend="{setting.backend}"']
    if setting.num_processes == setting.num_envs:
        words.append("num_processes=None")
    elif setting.num_processes:
        words.append(f"num_processes={setting.num_processes}")
    if setting.caller:
        words.append("caller_steps=True")
    if setting.wait_num:
        words.append(f"wait_num={setting.wait_num}")
    imports = f"{module}, envpool_py" if module else "envpool_py"
    return f"import {imports}; pool = envpool_py.make({', '.join(words)})"


def waits(profile: Profile) -> bool:
    """Whether the env mostly waits rather than computes."""
    return profile.busy < _WAITS


def _complexity(setting: Setting) -> tuple[bool, int, int, int]:
    """Isolation comes first, fewer processes are simpler, ``shmem`` is preferred to ``subproc``."""
    return (
        setting.caller,
        setting.num_processes,
        ("dummy", "shmem", "subproc").index(setting.backend),
        -(setting.wait_num or 0),
    )
