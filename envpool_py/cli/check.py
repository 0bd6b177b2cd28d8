"""``envpool-py check``: a report whether agents can be trained on an environment."""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from envpool_py.cli.arguments import add_num_envs
from envpool_py.cli.env_argument import add_env_argument, add_env_options, env_fn_of
from envpool_py.cli.env_checks import stages

_EPILOG = """\
An error makes training impossible. A warning may make it fail, or the usual policies do not support
the env. The check ends after a stage with an error. The exit status is 1 if there is an error, or,
with --strict, a warning.
"""


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "check",
        help="check whether agents can be trained on an environment",
        description="Check an environment against Gymnasium, pools and the usual policies.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_env_argument(parser)
    add_num_envs(parser, 2)
    add_env_options(parser)
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 after a warning too"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py check``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    env_fn = env_fn_of(args)
    counts = {"error": 0, "warning": 0, "note": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks catch those that matter
        for name, findings in stages([env_fn] * args.num_envs):
            for finding in findings:
                counts[finding.level] += 1
            for text in [f"{finding.level}: {finding.message}" for finding in findings] or ["ok"]:
                sys.stdout.write(f"{name:<26}{text}\n")
    sys.stdout.write(
        f"\n{args.env_id}: {_counted(counts['error'], 'error')},"
        f" {_counted(counts['warning'], 'warning')}\n"
    )
    return int(counts["error"] > 0 or (args.strict and counts["warning"] > 0))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
