"""``envpool-py tune``: find the best pool for an env on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich import filesize

from envpool_py.bench import tune
from envpool_py.bench.measure import Caller, Results, carry_out
from envpool_py.bench.settings import Setting
from envpool_py.cli import arguments, tables
from envpool_py.cli.arguments import CALLERS, add_shared, complain
from envpool_py.cli.naming import add_env, code_of, env_fn_of
from envpool_py.cli.progress import showing
from envpool_py.cli.tables import duration
from envpool_py.pool.backend_choice import Probe, probe
from envpool_py.worker.cores_and_threads import usable_cores

HELP = "try pools for an env on this machine, and recommend one"
EPILOG = """\
Ctrl-C ends it early: the recommendation then uses what was measured before.

examples:
  envpool-py tune mine.py:MyEnv --env-kwarg size=3 --num-envs 32
  envpool-py tune mine.py:MyEnv --policy-us 500 --policy-row-us 10
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    add_shared(parser, "--num-envs", default=16)
    text = "seconds to try pools; a measurement that has begun is finished; default: %(default)s"
    add_shared(parser, "--seconds", default=30.0, help=text)
    add_shared(parser, *CALLERS, "--max-processes", "--context", "--on-error")


def run(args: argparse.Namespace) -> int:
    env_fn, callers = env_fn_of(args), arguments.callers_of(args)
    profile = probe(env_fn, args.context, min(0.05 * args.seconds, 2.0), args.num_envs)
    if profile.disturbed:
        complain("two of these envs in one process disturb each other: give each its own process")
    sizes = args.num_envs, len(usable_cores()), args.max_processes
    settings = tune.first_settings(*sizes, callers, waits=profile.waits)
    settings = [each.with_options(args.on_error, args.context) for each in settings]
    arguments.complain_if_busy()
    results, now = Results(), (0.0, "the first pool")
    try:
        with showing(args.seconds, lambda: now):
            tries = tune.try_settings(results, settings, callers, carry_out, env_fn, args.seconds)
            for over, setting in tries:
                now = over, f"{over:.0f} s of {args.seconds:.0f} s: {setting.text}"
    finally:  # after Ctrl-C too
        if results.measured:
            _show(args, results, profile, callers)
    if not results.measured:
        complain("; ".join(dict.fromkeys(results.errors.values())))
    return int(not results.measured)


def _show(
    args: argparse.Namespace, results: Results, profile: Probe, callers: list[Caller]
) -> None:
    found = list(recommendations(args, results, profile, callers))
    facts = {"env": args.env, "num_envs": args.num_envs, "one_env": profile._asdict()}
    facts |= {"recommendations": found, "measurements": tables.records(results)}

    def show() -> None:
        for each in found:
            why = (f"# {reason}" for reason in each["reasons"])
            print(f"# {each['policy']}", wrapped(each["code"]), *why, "", sep="\n")  # noqa: T201
        print(*costs(profile), "", sep="\n")  # noqa: T201 - rich would wrap what is pasted
        tables.show_results(f"{args.env} x {args.num_envs}", results, callers)

    arguments.report(args, facts, show)


def wrapped(code: str) -> str:
    """The code with the arguments of a last line that is too long in a line of their own."""
    *before, last = code.splitlines()
    if len(last) > 80:
        opening, _, arguments_ = last.removesuffix(")").partition("(")
        indent = " " * (len(last) - len(last.lstrip()))
        last = f"{opening}(\n{indent}    {arguments_}\n{indent})"
    return "\n".join([*before, last])


def costs(profile: Probe) -> Iterator[str]:
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
    by_setting: dict[Setting, list[Caller]] = {}
    for caller in callers:
        by_setting.setdefault(tune.recommended(results, caller), []).append(caller)
    for setting, own in by_setting.items():
        why = list(reasons(results, profile, setting, own))
        yield {"policy": tables.text_of(*own), "code": code_of(args, setting), "reasons": why}


def reasons(
    results: Results, profile: Probe, best: Setting, callers: list[Caller]
) -> Iterator[str]:
    """The reasons for a setting: its speed with each caller, as the tables have it."""
    if profile.waits and (best.num_processes or best.in_threads):
        place = "in threads" if best.in_threads else "with a process per env"
        yield f"steps wait rather than compute; {place} they wait at once"
    for caller in callers:
        rate = f"{tables.rate_of(results, best, caller)} steps/s"
        yield ": ".join([best.text, rate] if len(callers) == 1 else [tables.text_of(caller), rate])
        others: dict[Setting, None] = {}  # the best one without, or with, each of these
        for option in ("num_processes", "in_threads", "wait_num"):
            has, ranked = bool(getattr(best, option)), results.ranked(caller)
            unlike = [each for each in ranked if bool(getattr(each, option)) != has]
            others |= dict.fromkeys(unlike[:1])
        for other in others:
            gain = results.rate(best, caller) / results.rate(other, caller)
            if not 1 / (1 + tune.WITHIN) <= gain <= 1 + tune.WITHIN:
                needs_loop = gain < 1 and other.wait_num and not best.wait_num
                but = ", which needs a loop for partial batches" if needs_loop else ""
                yield f"  {gain:.2f} times the steps of {other.text}{but}"
            elif other.in_caller and not best.in_caller:
                but = "where a crash of an env ends your program"
                yield f"  no difference from {other.text}, {but}"
            else:
                yield f"  no difference from {other.text}: take the simplest"
