"""``envpool-py check``: a report whether agents can be trained on an environment."""

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
from envpool_py.cli.env_checks import Finding, stages
from envpool_py.cli.env_id import env_spec

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
    parser.add_argument("env_id", metavar="ENV_ID", help="as gymnasium.make takes it")
    parser.add_argument(
        "--num-envs",
        type=integer(1),
        default=2,
        metavar="N",
        help="the number of envs, which must be alike; default: %(default)s",
    )
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
    env_fn = functools.partial(
        make_env,
        env_spec(args.env_id),
        {"disable_env_checker": True, **dict(args.env_kwarg)},
        [wrapper.value for wrapper in args.wrapper],
    )
    counts = {"error": 0, "warning": 0, "note": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks catch those that matter
        for name, findings in stages([env_fn] * args.num_envs):
            sys.stdout.write(_shown(name, findings))
            for finding in findings:
                counts[finding.level] += 1
    sys.stdout.write(
        f"\n{args.env_id}: {_counted(counts['error'], 'error')},"
        f" {_counted(counts['warning'], 'warning')}\n"
    )
    return int(counts["error"] > 0 or (args.strict and counts["warning"] > 0))


def _shown(name: str, findings: list[Finding]) -> str:
    """A stage and its findings, in lines that fit the terminal."""
    width = max(shutil.get_terminal_size().columns, 60)
    texts = [f"{finding.level}: {finding.message}" for finding in findings] or ["ok"]
    names = [name] + [""] * (len(texts) - 1)
    return "".join(
        textwrap.fill(
            text,
            width,
            initial_indent=f"{first:<26}",
            subsequent_indent=" " * 28,
            break_on_hyphens=False,
        )
        + "\n"
        for first, text in zip(names, texts, strict=True)
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
