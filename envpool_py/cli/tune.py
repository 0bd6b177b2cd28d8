"""``envpool-py tune``: which pool is best for an environment on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from envpool_py.bench import table, tune
from envpool_py.bench.interpreters import MeasurementError, carry_out, here, profiled
from envpool_py.bench.job import Job, Measurement
from envpool_py.bench.profile import Profile
from envpool_py.bench.table import Table
from envpool_py.bench.tune import Setting, Tuning
from envpool_py.cli.arguments import complain, integer, missing, seconds
from envpool_py.cli.env_id import env_spec
from envpool_py.worker.limits import usable_cores

#: The exit status after Ctrl-C, as shells have it: 128 + SIGINT.
_INTERRUPTED = 130

#: The part of the time that goes to one env by itself, and the most seconds for it.
_PROFILE = 0.05
_LONGEST_PROFILE = 2.0


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "tune",
        help="find the best pool for an environment on this machine",
        description="Try backends, numbers of processes and partial batches, and recommend one.",
        epilog="Ctrl-C ends it early, with the recommendation that there is until then.",
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="as gymnasium.make takes it")
    parser.add_argument(
        "--num-envs", type=integer(1), default=16, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=30.0,
        help="how long to try; what has begun is finished; default: %(default)s",
    )
    parser.add_argument(
        "--max-processes",
        type=integer(1),
        default=256,
        metavar="N",
        help="try no more; default: %(default)s",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py tune``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    try:
        from envpool_py.cli.progress import Steps  # noqa: PLC0415 - rich is an extra
        from envpool_py.cli.show_table import show  # noqa: PLC0415
    except ImportError as error:
        raise missing(str(error.name), "cli") from None
    env_spec(args.env_id)
    cores = len(usable_cores())
    settings = tune.first_settings(args.num_envs, cores, args.max_processes)
    interpreter = here()

    def measure(setting: Setting, how_long: float) -> Measurement:
        job = Job(
            "shmem_caller" if setting.caller else setting.backend,
            args.env_id,
            setting.num_envs,
            setting.wait_num,
            setting.num_processes + setting.caller,
            how_long,
        )
        return carry_out(interpreter, job, ours=True)

    status = 0
    steps = Steps(args.seconds, " s")
    try:
        with steps.showing():
            steps.at(0, "one env by itself")
            how_long = min(_PROFILE * args.seconds, _LONGEST_PROFILE)
            tuning = Tuning(profiled(interpreter, args.env_id, how_long))
    except MeasurementError as error:
        complain(f"{args.env_id}: {error}")
        return 1
    try:
        with steps.showing():
            for over, setting in tune.try_settings(tuning, settings, measure, args.seconds):
                steps.at(over, setting.text)
    except KeyboardInterrupt:
        complain("interrupted")
        status = _INTERRUPTED
    if not tuning.measured:
        for error_text in dict.fromkeys(tuning.errors.values()):
            complain(error_text)
        return status or 1
    show(_settings(tuning, args.num_envs))
    best = tune.recommended(tuning)
    for line in [tune.code(args.env_id, best), *reasons(tuning, best, cores)]:
        print(line)  # noqa: T201 - not wrapped: it is pasted
    return status


def _settings(tuning: Tuning, num_envs: int) -> Table:
    fastest = tune.rate(tuning.measured[tune.ranked(tuning)[0]])
    rows = [
        [
            setting.text,
            table.count(tune.rate(measured)),
            table.ratio(tune.rate(measured) / fastest),
            table.duration(median(each.latency_p50 for each in measured)),
            table.duration(median(each.latency_p99 for each in measured)),
            _memory([each.memory_bytes for each in measured]),
        ]
        for setting in tune.ranked(tuning)
        for measured in [tuning.measured[setting]]
    ]
    header = ["pool", "steps/s", "of the best", "batch p50", "p99", "memory"]
    notes = [f"{setting.text} failed: {error}" for setting, error in tuning.errors.items()]
    return Table(f"{num_envs} envs", header, rows, notes)


def _memory(sizes: list[int | None]) -> str:
    known = [each for each in sizes if each is not None]
    return table.size(max(known)) if known else "-"


def reasons(tuning: Tuning, best: Setting, num_cores: int) -> Iterator[str]:
    """Why that one, a line for each thing that was measured."""
    profile = tuning.profile
    yield ""
    yield (
        f"step: {table.duration(profile.step_mean)} (median {table.duration(profile.step_p50)},"
        f" p99 {table.duration(profile.step_p99)}), {profile.busy:.0%} of it on the CPU"
    )
    yield _resets(profile)
    if profile.memory_bytes is not None:
        held = _memory([each.memory_bytes for each in tuning.measured[best]])
        yield f"memory: {profile.memory_bytes / 1e6:.1f} MB for one more env, {held} for this pool"
    yield from _why(tuning, best, num_cores)


def _resets(profile: Profile) -> str:
    if not profile.resets:
        return "resets: none until the time was over"
    return (
        f"resets: {table.duration(profile.reset_mean)} each, {profile.reset_share:.0%} of the time"
    )


def _why(tuning: Tuning, best: Setting, num_cores: int) -> Iterator[str]:
    """How it compares with what else was tried."""
    profile = tuning.profile

    def fastest(of: Callable[[Setting], bool]) -> Setting | None:
        return next(filter(of, tune.ranked(tuning)), None)

    def times(setting: Setting) -> str:
        gain = tune.rate(tuning.measured[best]) / tune.rate(tuning.measured[setting])
        return f"{gain:.2f} times the steps of {setting.text}"

    if best.num_processes:
        other = fastest(lambda setting: not setting.num_processes)
        number = f"{best.num_processes} on {num_cores} cores"
    else:
        other = fastest(lambda setting: bool(setting.num_processes))
        number = "none"
    if tune.waits(profile):
        number += "; steps wait rather than compute, and with a process per env they wait at once"
    yield f"processes: {number}" + (f"; {times(other)}" if other else "")
    all_rows = fastest(lambda setting: setting.wait_num is None)
    some_rows = fastest(lambda setting: setting.wait_num is not None)
    if best.wait_num and all_rows:
        yield f"wait_num: {times(all_rows)}"
    elif some_rows:
        yield f"wait_num: all rows; {times(some_rows)}"
