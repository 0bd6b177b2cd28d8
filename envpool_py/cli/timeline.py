"""``envpool-py timeline``: a picture of which env stepped and which waited."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from envpool_py.bench import timeline
from envpool_py.bench.timeline import DONE, QUEUED, RESET, STEP, Timeline
from envpool_py.cli.arguments import UsageError, check_picture, complain, integer, seconds
from envpool_py.cli.env_id import env_spec
from envpool_py.cli.show_table import duration
from envpool_py.errors import EnvError
from envpool_py.pools import BACKENDS
from envpool_py.worker.limits import usable_cores

_WARM_UP = 0.2


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "timeline",
        help="draw which env stepped and which waited",
        description="Step a pool with random actions and draw what each env did and when.",
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="as gymnasium.make takes it")
    parser.add_argument("--out", metavar="FILE.png", required=True, help="where to draw it")
    parser.add_argument(
        "--num-envs", type=integer(1), default=8, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--wait-num", type=integer(1), metavar="K", help="rows that a batch waits for; default: all"
    )
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="shmem")
    parser.add_argument(
        "--num-processes",
        type=integer(1),
        metavar="N",
        help="processes that the envs are spread over; default: one per core",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=0.05,
        help="how much of it to draw; default: %(default)s",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py timeline``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    check_picture("--out", args.out)
    if args.wait_num is not None and args.wait_num > args.num_envs:
        raise UsageError(f"--wait-num: {args.wait_num} is more than --num-envs, {args.num_envs}")
    spec = env_spec(args.env_id)
    options: dict[str, Any] = {}
    if args.backend != "dummy":
        processes = min(args.num_processes or len(usable_cores()), args.num_envs)
        options["num_processes"] = processes
    elif args.num_processes is not None:
        raise UsageError("--num-processes: the dummy backend has none")
    try:
        pool = BACKENDS[args.backend](
            timeline.noted([spec.make] * args.num_envs),
            args.wait_num,
            autoreset_mode="same_step",
            **options,
        )
        with pool:
            found = timeline.record(pool, args.seconds, _WARM_UP)
        from envpool_py.bench import timeline_plot  # noqa: PLC0415 - matplotlib is an extra

        timeline_plot.draw(found._replace(title=f"{args.env_id}: {found.title}"), args.out)
    except EnvError as error:
        complain(error.message)
        return 1
    except OSError as error:
        complain(f"--out: {error}")
        return 1
    for line in summary(found):
        print(line)  # noqa: T201
    print(f"drawn to {args.out}")  # noqa: T201
    return 0


def summary(found: Timeline) -> list[str]:
    """Where the time went, and which env was the last of its batch most often."""
    parts = timeline.shares(found)
    words = {STEP: "stepping", RESET: "resetting", QUEUED: "waiting for its turn"}
    words[DONE] = "done and waiting for others"
    lines = [
        f"{len(found.batches)} batches in {duration(found.seconds)}; an env was on average "
        + ", ".join(f"{np.mean(parts[kind]):.0%} {word}" for kind, word in words.items())
    ]
    last = timeline.last_of_batches(found)
    straggler = int(np.argmax(last))
    if last[straggler] > 0:
        lines.append(
            f"env {straggler} was the last of its batch most often: in {last[straggler]:.0%} of"
            " the batches of several rows"
        )
    return lines
