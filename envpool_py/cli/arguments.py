"""Shared by the commands: a parser with short messages, options, and types of arguments."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from envpool_py.collector.file import check_path
from envpool_py.errors import EnvError
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import BACKENDS
from envpool_py.worker.limits import usable_cores

#: The exit status after Ctrl-C, as shells have it: 128 + SIGINT.
INTERRUPTED = 130

#: Python writes these with a capital letter; as bare words they would pass for strings.
_NEARLY_LITERALS = {"true": "True", "false": "False", "none": "None", "null": "None"}


class UsageError(Exception):
    """Bad input on the command line; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Raises ``UsageError`` instead of printing the usage and exiting."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(f"{message}; see {self.prog} --help")


def complain(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"envpool-py: {text}\n")


def counted(count: int, what: str) -> str:
    """``1 error`` or ``2 errors``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def first_line(message: str) -> str:
    """The first line of an error's message, without the start of a traceback."""
    return message.partition("\n")[0].removesuffix(" here:")


def installed_version(package: str) -> str | None:
    """The version of a package; None where it runs from a checkout that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# A ValueError of a type becomes "invalid integer value: 'x'", with the name of its function.


def at_least(least: int) -> Callable[[str], int]:
    """The type of an int that is ``least`` or more; ``50_000`` is one."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {value}")
        return value

    return integer


def seconds(text: str) -> float:
    """The type of a positive number of seconds."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def key_value(text: str) -> tuple[str, Any]:
    """The type of ``key=value``: a Python literal, or a bare word, which is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"must be key=value, got {text!r}")
    with contextlib.suppress(ValueError, SyntaxError):
        return key, ast.literal_eval(value)
    if literal := _NEARLY_LITERALS.get(value.lower()):
        raise argparse.ArgumentTypeError(f"{key} is {value}; Python writes {literal}")
    if not re.fullmatch(r"[\w./:-]+", value):
        raise argparse.ArgumentTypeError(f"the value of {key} is no Python literal: {value!r}")
    return key, value


def add_num_envs(parser: argparse.ArgumentParser, default: int) -> None:
    """Add ``--num-envs``."""
    text = f"how many copies of the env; default: {default}"
    parser.add_argument("--num-envs", type=at_least(1), default=default, metavar="N", help=text)


def add_wait_num(parser: argparse.ArgumentParser, default: str = "all") -> None:
    """Add ``--wait-num``; ``default`` describes its default."""
    text = f"rows that a batch waits for; default: {default}"
    parser.add_argument("--wait-num", type=at_least(1), metavar="K", help=text)


def add_seconds(parser: argparse.ArgumentParser, default: float, text: str) -> None:
    """Add ``--seconds``."""
    text += "; default: %(default)s"
    parser.add_argument("--seconds", type=seconds, default=default, help=text)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--backend`` and ``--num-processes``, which ``pool_of`` reads."""
    parser.add_argument("--backend", choices=[*BACKENDS], default="shmem", help="default: shmem")
    parser.add_argument(
        "--num-processes",
        type=at_least(1),
        metavar="N",
        help="number of processes that share the envs; default: one per core. For envs that mostly"
        " wait, pass the number of envs",
    )


def check_wait_num(wait_num: int | None, num_envs: int) -> None:
    """Raise ``UsageError`` if ``--wait-num`` asks for more rows than there are envs."""
    if wait_num is not None and wait_num > num_envs:
        raise UsageError(f"--wait-num is {wait_num}, but there are {num_envs} envs")


def pool_of(args: argparse.Namespace, env_fn: Callable[[], Any], **options: Any) -> BaseVectorEnv:
    """Make the pool of ``--backend`` and so on; UsageError: an env can't be made."""
    check_wait_num(args.wait_num, args.num_envs)
    if args.backend == "ray":
        options["num_processes"] = args.num_processes
    elif args.backend != "dummy":
        cores = len(usable_cores())
        options["num_processes"] = min(args.num_processes or cores, args.num_envs)
    elif args.num_processes is not None:
        raise UsageError("--num-processes: the dummy backend has no processes")
    try:
        return BACKENDS[args.backend]([env_fn] * args.num_envs, args.wait_num, **options)
    except EnvError as error:
        raise UsageError(first_line(error.message)) from None


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, for commands that print one JSON object with it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def print_json(value: Any) -> None:
    """Write one JSON object to stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def writable(path: str) -> str:
    """The type of a file that can be written; nothing is changed. ``--force`` may replace it."""
    try:
        check_path(path, append=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def picture(path: str) -> str:
    """The type of a ``.png`` that can be written; needs matplotlib."""
    if not path.endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png, got {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            'can\'t import matplotlib; it comes with: pip install "envpool-py[bench]"'
        )
    return writable(path)
