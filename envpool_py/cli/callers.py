"""The policy that ``bench`` and ``tune`` measure with: ``--policy-us`` and the like."""

from __future__ import annotations

import argparse

from envpool_py.bench.measure import Caller
from envpool_py.cli.arguments import UsageError, at_least
from envpool_py.cli.importing import imported


def add_measurement_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a policy, and ``--max-processes``."""
    parser.add_argument(
        "--policy-us",
        type=at_least(0),
        action="append",
        metavar="US",
        help="CPU time of your policy per batch, in microseconds; may be repeated;"
        " default: 0, 300 and 1000",
    )
    text = "additional CPU time of your policy per row, in microseconds; default: 0"
    parser.add_argument("--policy-row-us", type=at_least(0), metavar="US", help=text)
    parser.add_argument(
        "--policy",
        type=imported,
        metavar="MODULE:CALLABLE",
        help="call this policy(obs, env_ids) before each batch instead, and ignore its actions; a"
        " class is called with (pool, seed) to make one",
    )
    text = "leave out pools with more processes; default: 256"
    parser.add_argument("--max-processes", type=at_least(1), default=256, metavar="N", help=text)


def callers_of(args: argparse.Namespace) -> list[Caller]:
    """The callers of the options; UsageError: a policy and its time are given."""
    row = args.policy_row_us
    if args.policy is not None:
        if args.policy_us or row is not None:
            raise UsageError("--policy: not allowed with --policy-us or --policy-row-us")
        return [Caller(policy=args.policy.value, name=args.policy.name)]
    default = (0, 300, 1000) if row is None else (0,)
    times = dict.fromkeys(args.policy_us or default)
    return [Caller(each / 1e6, (row or 0) / 1e6) for each in times]


def text_of(*callers: Caller) -> str:
    """``policy: 0 or 300 µs per batch``; the callers differ by that time only."""
    if callers[0].policy is not None:
        return f"policy: {callers[0].name}"
    text = "policy: " + " or ".join(f"{1e6 * each.per_batch:g}" for each in callers)
    row = callers[0].per_row
    return f"{text} µs per batch" + (f" and {1e6 * row:g} µs per row" if row else "")
