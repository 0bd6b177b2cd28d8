"""``envpool-py timeline``: a picture of which env stepped and which waited."""

from __future__ import annotations

import argparse

import numpy as np

from envpool_py.bench import timeline
from envpool_py.bench.timeline import Timeline
from envpool_py.cli import arguments
from envpool_py.cli.env_argument import add_env, env_fn_of
from envpool_py.cli.tables import duration

HELP = "draw which env of a pool stepped and which waited"

_WARM_UP = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_env(parser)
    text = "the file of the picture"
    parser.add_argument(
        "--out", type=arguments.picture, metavar="FILE.png", required=True, help=text
    )
    arguments.add_num_envs(parser, 8)
    arguments.add_wait_num(parser)
    arguments.add_backend_options(parser)
    arguments.add_seconds(parser, 0.05, "seconds to draw")


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    env_fn = timeline.noted(env_fn_of(args))
    with arguments.pool_of(args, env_fn, autoreset_mode="same_step") as pool:
        found = timeline.record(pool, args.seconds, _WARM_UP)
    timeline.draw(found._replace(title=f"{args.env}: {found.title}"), args.out)
    for line in [*summary(found), f"drawn to {args.out}"]:
        print(line)  # noqa: T201
    return 0


def summary(found: Timeline) -> list[str]:
    """The parts of the time, and the env that was most often the last of its batch."""
    parts = [f"{np.mean(part):.0%} {kind}" for kind, part in timeline.shares(found).items()]
    text = f"{len(found.batches)} batches in {duration(found.seconds)}; an env on average: "
    lines = [text + ", ".join(parts)]
    last = timeline.last_of_batches(found)
    straggler = int(np.argmax(last))
    if last[straggler] > 0:
        text = f"env {straggler} was the last of its batch most often: in {last[straggler]:.0%} of"
        lines.append(f"{text} the batches of several rows")
    return lines
