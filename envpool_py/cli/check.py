"""``envpool-py check``: a report whether agents can be trained on an environment."""

from __future__ import annotations

import argparse
import sys
import warnings

from envpool_py.cli.arguments import add_json, add_num_envs, counted, print_json
from envpool_py.cli.env_argument import add_env, env_fn_of
from envpool_py.cli.env_checks import Finding, stages

HELP = "check an env against Gymnasium, pools and the usual policies"
EPILOG = """\
An error makes training impossible. A warning may make it fail, or the usual policies do not support
the env. The exit status is 1 if there is an error, or, with --strict, a warning.

example: envpool-py check mine.py:MyEnv --env-kwarg size=3
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_env(parser)
    add_num_envs(parser, 2)
    text = "exit with status 1 after a warning too"
    parser.add_argument("--strict", action="store_true", help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    env_fn = env_fn_of(args)
    found: list[tuple[str, list[Finding]]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks catch those that matter
        for name, findings in stages([env_fn] * args.num_envs):
            found.append((name, findings))
            if not args.json:
                _show(name, findings)
    levels = [finding.level for _, findings in found for finding in findings]
    errors, warned = levels.count("error"), levels.count("warning")
    if args.json:
        listed = [
            {"stage": name, "findings": [finding._asdict() for finding in findings]}
            for name, findings in found
        ]
        print_json({"env": args.env, "errors": errors, "warnings": warned, "stages": listed})
    else:
        counts = f"{counted(errors, 'error')}, {counted(warned, 'warning')}"
        sys.stdout.write(f"\n{args.env}: {counts}\n")
    return int(errors > 0 or (args.strict and warned > 0))


def _show(name: str, findings: list[Finding]) -> None:
    for text in [f"{finding.level}: {finding.message}" for finding in findings] or ["ok"]:
        sys.stdout.write(f"{name:<26}{text}\n")
    sys.stdout.flush()
