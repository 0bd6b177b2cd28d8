"""``envpool-py tune``: which pool is best for an environment on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from envpool_py.auto import Probe, probe
from envpool_py.bench import tune
from envpool_py.bench.measure import Results, carry_out
from envpool_py.bench.settings import Setting, env_fns_of
from envpool_py.cli import tables
from envpool_py.cli.arguments import (
    add_measurement_options,
    add_num_envs,
    complain,
    seconds,
    thinks_of,
)
from envpool_py.cli.env_argument import add_env_argument, whole_id
from envpool_py.cli.progress import showing
from envpool_py.cli.tables import duration, per_batch
from envpool_py.worker.limits import usable_cores

#: The part of the time that goes to one env by itself, and the most seconds for it.
_PROFILE, _LONGEST_PROFILE = 0.05, 2.0


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "tune",
        help="find the best pool for an environment on this machine",
        description="Try backends, numbers of processes and partial batches, and recommend one.",
        epilog="Ctrl-C ends it early: the recommendation then uses what was measured before.",
    )
    add_env_argument(parser)
    add_num_envs(parser, 16)
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=30.0,
        help="how long to try; what has begun is finished; default: %(default)s",
    )
    add_measurement_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py tune``; returns the exit status.

    Raises:
        UsageError: bad input.
        EnvError: the env can't be made, or raised.
    """
    env_id, thinks = whole_id(args.env_id), thinks_of(args)
    settings = tune.first_settings(args.num_envs, len(usable_cores()), args.max_processes)
    results = Results()
    now = 0.0, "one env by itself"
    try:
        with showing(args.seconds, lambda: now):
            how_long = min(_PROFILE * args.seconds, _LONGEST_PROFILE)
            profile = probe(env_fns_of(env_id, 1)[0], None, how_long)
            for over, setting in tune.try_settings(
                results, settings, thinks, carry_out, env_id, args.seconds
            ):
                now = over, f"{over:.0f} s of {args.seconds:.0f} s: {setting.text}"
    finally:  # after Ctrl-C too
        if results.measured:
            tables.show_results(f"{args.env_id} x {args.num_envs}", results, thinks)
            for line in [*costs(profile), *recommendations(env_id, results, profile, thinks)]:
                print(line)  # noqa: T201 - not wrapped: it is pasted
    if not results.measured:
        for text in dict.fromkeys(results.errors.values()):
            complain(text)
    return int(not results.measured)


def costs(profile: Probe) -> Iterator[str]:
    """What one env costs."""
    yield (
        f"step: {duration(profile.wall)} with resets (median {duration(profile.step_p50)}, p99"
        f" {duration(profile.step_p99)}), {profile.cpu / max(profile.wall, 1e-9):.0%} of it on the"
        " CPU"
    )
    share = profile.reset_mean * profile.resets_per_step / max(profile.wall, 1e-9)
    yield (
        f"resets: {duration(profile.reset_mean)} each, {share:.0%} of the time"
        if profile.resets_per_step
        else "resets: none until the time was over"
    )
    yield f"observation: {tables.size(profile.obs_bytes)}"


def recommendations(
    env_id: str, results: Results, profile: Probe, thinks: list[float]
) -> Iterator[str]:
    """The code that makes the best pool, and reasons; once for all callers with the same pool."""
    best = {think: tune.recommended(results, think) for think in thinks}
    for setting in dict.fromkeys(best.values()):
        of = [think for think in thinks if best[think] == setting]
        yield ""
        yield f"# If your program computes {per_batch(*of)}:"
        yield tune.code(env_id, setting)
        yield from reasons(results, profile, setting, of[0])


def reasons(results: Results, profile: Probe, best: Setting, think: float) -> Iterator[str]:
    """Why that one, a line for each choice."""

    def compared(text: str, of: Callable[[Setting], bool]) -> str:
        other = next(filter(of, results.ranked(think)), None)
        if other is None:
            return text
        gain = results.rate(best, think) / results.rate(other, think)
        return f"{text}; {gain:.2f} times the steps of {other.text}"

    used = str(best.num_processes or "none")
    if best.num_processes:
        used += f" on {len(usable_cores())} cores"
    if profile.waits:
        used += "; steps wait rather than compute, and with a process per env they wait at once"
    yield "processes: " + compared(
        used, lambda setting: bool(setting.num_processes) != bool(best.num_processes)
    )
    if best.wait_num or any(setting.wait_num for setting in results.measured):
        yield "wait_num: " + compared(
            str(best.wait_num or "all rows"),
            lambda setting: bool(setting.wait_num) != bool(best.wait_num),
        )
