"""What the commands share: a parser with short messages, options, and types of arguments."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.util
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from envpool_py.collector.file import check_path
from envpool_py.errors import describe

if TYPE_CHECKING:
    from collections.abc import Callable

#: The exit status after Ctrl-C, as shells have it: 128 + SIGINT.
INTERRUPTED = 130

#: Python writes these with a capital letter; as bare words they would pass for strings.
_NEARLY_LITERALS = {"true": "True", "false": "False", "none": "None", "null": "None"}


class UsageError(Exception):
    """Bad input on the command line: one line that says what is wrong."""


class Imported(NamedTuple):
    """What ``module:callable`` names."""

    name: str
    value: Callable[..., Any]


class Parser(argparse.ArgumentParser):
    """Raises ``UsageError`` where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        raise UsageError(f"{message}; see {self.prog} --help")


def complain(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"envpool-py: {text}\n")


def installed_version(package: str) -> str | None:
    """The version of a package; None where it runs from a checkout that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def integer(least: int) -> Callable[[str], int]:
    """The type of an int that is ``least`` or more; ``50_000`` is one."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an int, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {value}")
        return value

    return parse


def seconds(text: str) -> float:
    """The type of a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def key_value(text: str) -> tuple[str, Any]:
    """The type of ``key=value``: a Python literal, or a bare word, which is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"must be key=value, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        pass
    if value.lower() in _NEARLY_LITERALS:
        raise argparse.ArgumentTypeError(
            f"{key} is {value}; Python writes {_NEARLY_LITERALS[value.lower()]}"
        )
    if not re.fullmatch(r"[\w./:-]+", value):
        raise argparse.ArgumentTypeError(f"the value of {key} is no Python literal: {value!r}")
    return key, value


def find_in_working_directory() -> None:
    """Let modules in the working directory be imported, as ``python -m`` does."""
    if os.getcwd() not in sys.path and "" not in sys.path:  # noqa: PTH109 - a str, for sys.path
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


def imported(text: str) -> Imported:
    """The type of ``module:callable``; modules in the working directory are found too."""
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise argparse.ArgumentTypeError(f"must be module:callable, got {text!r}")
    find_in_working_directory()
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - importing runs the user's code
        raise argparse.ArgumentTypeError(
            f"can't import {module_name!r}: {describe(error)}"
        ) from None
    try:
        value = functools.reduce(getattr, path.split("."), value)
    except AttributeError:
        raise argparse.ArgumentTypeError(f"{module_name!r} has no {path!r}") from None
    if not callable(value):
        raise argparse.ArgumentTypeError(f"{text} is a {type(value).__name__}, not a callable")
    return Imported(text, value)


def add_env_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--wrapper`` and ``--env-kwarg``, which say how an env is made."""
    parser.add_argument(
        "--wrapper",
        type=imported,
        action="append",
        default=[],
        metavar="MODULE:CALLABLE",
        help="wrapper(env) -> env, put around each env; may be repeated, the innermost first",
    )
    parser.add_argument(
        "--env-kwarg",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for gymnasium.make, the value a Python literal; may be repeated",
    )


def add_measurement_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--think`` and ``--max-processes``, which ``bench`` and ``tune`` share."""
    parser.add_argument(
        "--think",
        type=integer(0),
        action="append",
        metavar="US",
        help="CPU time, in microseconds, that the caller computes before each batch, as a policy"
        " does; may be repeated; default: 0, 300 and 1000",
    )
    parser.add_argument(
        "--max-processes",
        type=integer(1),
        default=256,
        metavar="N",
        help="start no more; default: %(default)s",
    )


def thinks_of(args: argparse.Namespace) -> list[float]:
    """What ``--think`` asks for, in seconds."""
    return [think / 1e6 for think in dict.fromkeys(args.think or (0, 300, 1000))]


def check_writable(option: str, path: str) -> None:
    """Check that the file of an option can be written; change nothing.

    Raises:
        UsageError: it can't.
    """
    try:
        check_path(path)
    except OSError as error:
        raise UsageError(f"{option}: {error}") from None


def check_picture(option: str, path: str) -> None:
    """Check that a picture can be drawn to the file of an option.

    Raises:
        UsageError: it can't be written, is no ``.png``, or matplotlib is missing.
    """
    check_writable(option, path)
    if not path.endswith(".png"):
        raise UsageError(f"{option}: must end in .png, got {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError('can\'t import matplotlib; it comes with: pip install "envpool-py[bench]"')
