"""``envpool-py tune``: find the best pool for an env on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from envpool_py.auto import Probe, probe
from envpool_py.bench import tune
from envpool_py.bench.measure import Caller, Results, carry_out
from envpool_py.bench.settings import Setting
from envpool_py.cli import tables
from envpool_py.cli.arguments import (
    add_json,
    add_num_envs,
    complain,
    print_json,
    seconds,
)
from envpool_py.cli.callers import add_measurement_options, callers_of, text_of
from envpool_py.cli.env_argument import add_env, code_of, env_fn_of
from envpool_py.cli.progress import showing
from envpool_py.cli.tables import duration
from envpool_py.worker.limits import usable_cores

#: The part of the time that goes to one env by itself, and the most seconds for it.
_PROFILE, _LONGEST_PROFILE = 0.05, 2.0

HELP = "try pools for an env on this machine, and recommend one"
EPILOG = """\
Ctrl-C ends it early: the recommendation then uses what was measured before.

examples:
  envpool-py tune mine.py:MyEnv --env-kwarg size=3 --num-envs 32
  envpool-py tune mine.py:MyEnv --policy-us 500 --policy-row-us 10
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_env(parser)
    add_num_envs(parser, 16)
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=30.0,
        help="seconds to try pools; a measurement that has begun is finished; default: %(default)s",
    )
    add_measurement_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    env_fn, callers = env_fn_of(args), callers_of(args)
    cores = len(usable_cores())
    settings = tune.first_settings(args.num_envs, cores, args.max_processes, callers)
    results = Results()
    now = 0.0, "one env by itself"
    try:
        with showing(args.seconds, lambda: now):
            how_long = min(_PROFILE * args.seconds, _LONGEST_PROFILE)
            profile = probe(env_fn, None, how_long)
            for over, setting in tune.try_settings(
                results, settings, callers, carry_out, env_fn, args.seconds
            ):
                now = over, f"{over:.0f} s of {args.seconds:.0f} s: {setting.text}"
    finally:  # after Ctrl-C too
        if results.measured:
            _show(args, results, profile, callers)
    if not results.measured:
        for text in dict.fromkeys(results.errors.values()):
            complain(text)
    return int(not results.measured)


def _show(
    args: argparse.Namespace, results: Results, profile: Probe, callers: list[Caller]
) -> None:
    found = list(recommendations(args, results, profile, callers))
    if args.json:
        print_json(
            {
                "env": args.env,
                "num_envs": args.num_envs,
                "one_env": profile._asdict(),
                "recommendations": [each._asdict() for each in found],
                "measurements": tables.records(results),
            }
        )
        return
    tables.show_results(f"{args.env} x {args.num_envs}", results, callers)
    lines = list(costs(profile))
    for each in found:
        lines += ["", f"# {each.policy}", each.code, *(f"# {reason}" for reason in each.reasons)]
    for line in lines:
        print(line)  # noqa: T201 - not wrapped: it is pasted


def costs(profile: Probe) -> Iterator[str]:
    """Describe the cost of one env."""
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


class Recommendation(NamedTuple):
    """The code that makes the best pool for some callers, and reasons."""

    policy: str
    code: str
    reasons: list[str]


def recommendations(
    args: argparse.Namespace, results: Results, profile: Probe, callers: list[Caller]
) -> Iterator[Recommendation]:
    """The best pools; one recommendation for all callers with the same pool."""
    best = [tune.recommended(results, caller) for caller in callers]
    for setting in dict.fromkeys(best):
        of = [caller for caller, own in zip(callers, best, strict=True) if own == setting]
        why = list(reasons(results, profile, setting, of[0]))
        yield Recommendation(text_of(*of), code_of(args, setting), why)


def reasons(results: Results, profile: Probe, best: Setting, caller: Caller) -> Iterator[str]:
    """Return the reasons for a setting, a line for each choice."""

    def compared(text: str, of: Callable[[Setting], bool]) -> str:
        other = next(filter(of, results.ranked(caller)), None)
        if other is None:
            return text
        gain = results.rate(best, caller) / results.rate(other, caller)
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
