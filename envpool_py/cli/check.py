"""``envpool-py check``: a report whether agents can be trained on an environment."""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from textwrap import TextWrapper
from typing import Any

from envpool_py.cli.arguments import add_shared, counted, report
from envpool_py.cli.env_checks import Finding, stages_beside
from envpool_py.cli.naming import add_env, env_fn_of

HELP = "check an env against Gymnasium, pools and the usual policies"
EPILOG = """\
An error makes training impossible. A warning may make it fail, or the usual
policies do not support the env. The exit status is 1 if there is an error, or,
with --strict, a warning.

example: envpool-py check mine.py:MyEnv --env-kwarg size=3
"""

#: Columns for the name of a stage.
_INDENT = 19


def add_options(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    add_shared(parser, "--num-envs", default=2)
    text = "the longest time of a stage; after that it counts as hanging; default: %(default)s"
    add_shared(parser, "--seconds", default=60.0, help=text)
    text = "exit with status 1 after a warning too"
    parser.add_argument("--strict", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    env_fn = env_fn_of(args)
    shown: list[dict[str, Any]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks catch those that matter
            for stage, found in stages_beside([env_fn] * args.num_envs, args.seconds):
                if found is not None:
                    shown.append({"stage": stage, "findings": [each._asdict() for each in found]})
                if args.json != "-":
                    _show(stage, found)
    finally:  # after Ctrl-C too
        levels = [each["level"] for stage in shown for each in stage["findings"]]
        errors, warned = levels.count("error"), levels.count("warning")
        facts = {"env": args.env, "errors": errors, "warnings": warned, "stages": shown}
        text = f"\n{args.env}: {counted(errors, 'error')}, {counted(warned, 'warning')}\n"
        report(args, facts, lambda: sys.stdout.write(text))
    return int(errors > 0 or (args.strict and warned > 0))


def _show(stage: str, findings: list[Finding] | None) -> None:
    """Write the name of a stage that begins, or the findings of one that has ended."""
    if findings is None:
        print(f"{stage:<{_INDENT}}", end="", flush=True)  # noqa: T201
        return
    indent = " " * _INDENT
    # Elsewhere than on a terminal, each finding is one line.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    wrapper = TextWrapper(
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    texts = [f"{level}: {message}" for level, message in findings] or ["ok"]
    print("\n".join(map(wrapper.fill, texts)).removeprefix(indent), flush=True)  # noqa: T201
