"""``envpool-py timeline``: a picture of which env stepped and which waited."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np

from envpool_py.bench import timeline
from envpool_py.bench.timeline import Timeline
from envpool_py.cli.arguments import add_shared, counted, picture, pool_of, report
from envpool_py.cli.naming import add_env, env_fn_of
from envpool_py.cli.tables import duration

HELP = "draw which env of a pool stepped and which waited"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    text = "the file of the picture"
    parser.add_argument("--out", type=picture, metavar="FILE.png", required=True, help=text)
    add_shared(parser, "--num-envs", default=8)
    add_shared(parser, "--wait-num", "--backend", "--num-processes", "--context", "--on-error")
    add_shared(parser, "--seconds", default=0.05, help="seconds to draw; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    options = {"autoreset_mode": "same_step", "on_error": args.on_error}
    with pool_of(args, timeline.noted(env_fn_of(args)), **options) as pool:
        found = timeline.record(pool, args.seconds, warm_up=0.2)
    timeline.draw(found._replace(title=f"{args.env}: {found.title}"), args.out)
    facts = {"env": args.env, "file": args.out, "seconds": found.seconds}
    facts |= {"batches": len(found.batches), "shares": timeline.shares(found)}
    facts["last_of_batch"] = timeline.last_of_batches(found)
    text = "\n".join([*summary(found), f"drawn to {args.out}\n"])
    report(args, facts, lambda: sys.stdout.write(text))
    return 0


def summary(found: Timeline) -> Iterator[str]:
    """The parts of the time, and the env that was most often the last of its batch."""
    parts = [f"{np.mean(part):.0%} {kind}" for kind, part in timeline.shares(found).items()]
    time = f"{counted(len(found.batches), 'batch')} in {duration(found.seconds)}"
    yield f"{time}; an env on average: {', '.join(parts)}"
    last = timeline.last_of_batches(found)
    straggler = int(np.argmax(last))
    if last[straggler] > 0:
        often = f"in {last[straggler]:.0%} of the batches of several rows"
        yield f"env {straggler} was the last of its batch most often: {often}"
