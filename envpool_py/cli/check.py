"""``envpool-py check``: whether an environment can be trained on, as a report."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import textwrap
import warnings
from typing import Any

from envpool_py.cli.arguments import add_env_options, integer
from envpool_py.cli.collect import make_env
from envpool_py.cli.env_id import env_spec
from envpool_py.sb3.checks import Stage, stages

_EPILOG = """\
Errors: nothing can be trained on it. Warnings: it may go wrong, or the usual policies don't take
it. The check ends with the stage that has an error. The exit status is 1 where there is one, or,
with --strict, a warning.
"""


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "check",
        help="check that an environment can be trained on",
        description="Check that an environment does what Gymnasium, pools and policies ask of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="as gymnasium.make takes it")
    parser.add_argument(
        "--num-envs",
        type=integer(1),
        default=2,
        metavar="N",
        help="how many are made, to see that they are alike; default: %(default)s",
    )
    add_env_options(parser)
    parser.add_argument("--strict", action="store_true", help="take warnings for errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py check``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    env_fn = functools.partial(
        make_env,
        env_spec(args.env_id),
        {"disable_env_checker": True, **dict(args.env_kwarg)},
        [wrapper.value for wrapper in args.wrapper],
    )
    counts = {"error": 0, "warning": 0, "note": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the env's own; what matters of them is found here
        for stage in stages([env_fn] * args.num_envs, render=True):
            sys.stdout.write(_shown(stage))
            for finding in stage.findings:
                counts[finding.level] += 1
    sys.stdout.write(
        f"\n{args.env_id}: {_counted(counts['error'], 'error')},"
        f" {_counted(counts['warning'], 'warning')}\n"
    )
    return int(counts["error"] > 0 or (args.strict and counts["warning"] > 0))


def _shown(stage: Stage) -> str:
    """A stage and what was found in it, in lines that fit the terminal."""
    if not stage.findings:
        return f"{stage.name:<26}ok\n"
    width = max(shutil.get_terminal_size().columns, 60)
    text = ""
    for k, finding in enumerate(stage.findings):
        name = stage.name if k == 0 else ""
        text += textwrap.fill(
            f"{finding.level}: {finding.message}",
            width,
            initial_indent=f"{name:<26}",
            subsequent_indent=" " * 28,
            break_on_hyphens=False,
        )
        text += "\n"
    return text


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
