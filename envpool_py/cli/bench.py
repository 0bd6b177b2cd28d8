"""``envpool-py bench``: compare pools, Gymnasium's vector envs and a plain loop for an env."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from envpool_py.bench.measure import WARM_UP, Caller, Job, Results, carry_out
from envpool_py.bench.settings import ASYNC, LOOP, MAKE, NAMES, SYNC, Setting, all_settings
from envpool_py.bench.tune import WITHIN, recommended
from envpool_py.cli import arguments
from envpool_py.cli.arguments import CALLERS, add_shared, complain, complain_if_busy, counted
from envpool_py.cli.naming import UsageError, add_env, env_fn_of
from envpool_py.cli.progress import showing
from envpool_py.cli.tables import duration, rate_of, records, show_results, text_of
from envpool_py.worker.cores_and_threads import usable_cores

HELP = "compare our pools, Gymnasium's vector envs and a plain loop for an env"
EPILOG = """\
loop is a plain loop over the envs, make the pool that envpool_py.make chooses.
Only our pools have partial batches: with --wait-num the others step whole ones.

Each pool is measured in a fresh process, one after the other and over again.
After Ctrl-C the command shows and writes the measurements so far; the exit
status is 130. examples/benchmark in the repository measures other libraries.

example: envpool-py bench mine.py:MyEnv --env-kwarg size=3 --num-envs 32
"""

_NAMED = {LOOP: "a loop", SYNC: "Gymnasium's SyncVectorEnv", ASYNC: "Gymnasium's AsyncVectorEnv"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    text = f"measure only this pool: {', '.join(NAMES)}; may be repeated"
    parser.add_argument("--backend", action="append", choices=NAMES, metavar="NAME", help=text)
    text = "how many copies of the env; may be repeated; default: 16"
    add_shared(parser, "--num-envs", action="append", help=text)
    text = "seconds of a measurement, after its warm-up; default: %(default)s"
    add_shared(parser, "--seconds", default=0.5, help=text)
    text = "measurements of each pool; default: %(default)s"
    parser.add_argument("--repeats", type=arguments.at_least(1), default=3, metavar="N", help=text)
    add_shared(parser, "--wait-num", *CALLERS, "--max-processes", "--context", "--on-error")


def run(args: argparse.Namespace) -> int:
    env_fn, callers = env_fn_of(args), arguments.callers_of(args)
    plan = {num_envs: _settings(args, num_envs) for num_envs in args.num_envs or [16]}
    pools = sum(map(len, plan.values()))
    if not pools:
        raise UsageError("--max-processes leaves no pool to measure")
    complain_if_busy()
    each = len(callers) * args.seconds * (1 + WARM_UP) + 1.5  # about, for imports
    complain(
        f"{counted(pools, 'pool')} of {' and '.join(map(str, plan))} envs x"
        f" {counted(len(callers), 'policy')} x {counted(args.repeats, 'repeat')}: about"
        f" {duration(pools * args.repeats * each)}, and the time to make the envs"
    )
    results = {num_envs: Results() for num_envs in plan}
    # In turns, so that a change of the machine's speed affects all.
    settings = [each for found in plan.values() for each in found * args.repeats]
    now = 0.0, ""

    def show() -> None:
        for num_envs, found in results.items():
            title = f"{args.env} x {num_envs}"
            print(*headlines(title, found, callers), "", sep="\n")  # noqa: T201
            show_results(title, found, callers)
            for setting, (first, *_) in found.measured.items():
                if setting.pool == MAKE:
                    print(f"  make has chosen {first.made}")  # noqa: T201

    try:
        with showing(len(settings), lambda: now):
            for k, setting in enumerate(settings):
                now = k, f"{k} of {len(settings)}: {setting.text}"
                job = Job(setting, env_fn, callers, args.seconds)
                results[setting.num_envs].add(job, carry_out)
    finally:  # after Ctrl-C too
        rows = [row for found in results.values() for row in records(found)]
        arguments.report(args, rows, show)
    failed = [setting.pool for found in results.values() for setting in found.errors]
    return int(not {SYNC, ASYNC}.issuperset(failed))


def headlines(title: str, results: Results, callers: Sequence[Caller]) -> Iterator[str]:
    """For each caller the simplest of the fast pools, compared with the pools of others."""
    for caller in callers if results.measured else ():
        best = recommended(results, caller)
        yield f"{title}, {text_of(caller)}: {best.text}, {rate_of(results, best, caller)} steps/s"
        if best.pool == LOOP:
            yield f"  no difference: no pool is more than {WITHIN:.0%} faster than a loop"
            continue
        for other in results.measured:
            if other.pool in _NAMED and other != best:
                gain = results.rate(best, caller) / results.rate(other, caller)
                yield f"  {gain:.2f} times the steps of {_NAMED[other.pool]}"


def _settings(args: argparse.Namespace, num_envs: int) -> list[Setting]:
    arguments.check_wait_num(args.wait_num, num_envs)
    wait_num = None if args.wait_num == num_envs else args.wait_num
    found = []
    for each in all_settings(num_envs, len(usable_cores()), wait_num):
        if each.pool not in (args.backend or NAMES):
            continue
        if each.started_processes <= args.max_processes:
            found.append(each.with_options(args.on_error, args.context))
        else:
            why = f"it would start {each.started_processes} processes, and --max-processes is"
            complain(f"{each.text} is left out: {why} {args.max_processes}")
    return found
