"""``envpool-py tune``: find the best pool for an env on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from rich import filesize

from envpool_py.auto import Probe, probe
from envpool_py.bench import tune
from envpool_py.bench.measure import Caller, Results, carry_out
from envpool_py.bench.settings import Setting
from envpool_py.cli import tables
from envpool_py.cli.arguments import add_json, add_num_envs, add_seconds, complain, print_json
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
    add_seconds(parser, 30.0, "seconds to try pools; a measurement that has begun is finished")
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
            profile = probe(env_fn, None, min(_PROFILE * args.seconds, _LONGEST_PROFILE))
            tries = tune.try_settings(results, settings, callers, carry_out, env_fn, args.seconds)
            for over, setting in tries:
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
        facts = {"env": args.env, "num_envs": args.num_envs, "one_env": profile._asdict()}
        print_json({**facts, "recommendations": found, "measurements": tables.records(results)})
        return
    tables.show_results(f"{args.env} x {args.num_envs}", results, callers)
    lines = list(costs(profile))
    for each in found:
        lines += ["", f"# {each['policy']}", each["code"], *(f"# {why}" for why in each["reasons"])]
    sys.stdout.writelines(f"{line}\n" for line in lines)  # not wrapped by rich: it is pasted


def costs(profile: Probe) -> Iterator[str]:
    """Describe the cost of one env."""
    wall = max(profile.wall, 1e-9)
    step = f"median {duration(profile.step_p50)}, p99 {duration(profile.step_p99)}"
    yield f"step: {duration(wall)} with resets ({step}), {profile.cpu / wall:.0%} of it on the CPU"
    if profile.resets_per_step:
        share = profile.reset_mean * profile.resets_per_step / wall
        yield f"resets: {duration(profile.reset_mean)} each, {share:.0%} of the time"
    else:
        yield "resets: none until the time was over"
    yield f"observation: {filesize.decimal(profile.obs_bytes)}"


def recommendations(
    args: argparse.Namespace, results: Results, profile: Probe, callers: list[Caller]
) -> Iterator[dict[str, Any]]:
    """The best pools: one code, with reasons, for all callers ("policy") with the same pool."""
    best = [tune.recommended(results, caller) for caller in callers]
    for setting in dict.fromkeys(best):
        of = [caller for caller, own in zip(callers, best, strict=True) if own == setting]
        why = list(reasons(results, profile, setting, of[0]))
        yield {"policy": text_of(*of), "code": code_of(args, setting), "reasons": why}


def reasons(results: Results, profile: Probe, best: Setting, caller: Caller) -> Iterator[str]:
    """The reasons for a setting, a line for each choice."""

    def compared(option: str, text: str) -> str:
        """The text, and the gain over the fastest setting that has the option or has it not."""
        for other in results.ranked(caller):
            if bool(getattr(other, option)) != bool(getattr(best, option)):
                gain = results.rate(best, caller) / results.rate(other, caller)
                return f"{text}; {gain:.2f} times the steps of {other.text}"
        return text

    used = str(best.num_processes or "none")
    if best.num_processes:
        used += f" on {len(usable_cores())} cores"
    if profile.waits:
        used += "; steps wait rather than compute, and with a process per env they wait at once"
    yield "processes: " + compared("num_processes", used)
    if best.wait_num or any(setting.wait_num for setting in results.measured):
        yield "wait_num: " + compared("wait_num", str(best.wait_num or "all rows"))
