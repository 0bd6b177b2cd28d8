"""Shared by the commands: a parser with short messages, options, and types of arguments."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import math
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

from envpool_py import extras
from envpool_py.bench.measure import Caller, busy_part
from envpool_py.cli.naming import UsageError, imported, printable
from envpool_py.collector.file import earlier
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import FOREIGN_NAMES, OWN_NAMES
from envpool_py.pool.pool_classes import BACKENDS, pool_class
from envpool_py.record import file_format
from envpool_py.worker.cores_and_threads import usable_cores

#: The exit status after Ctrl-C, and after the end of the output's reader, as shells have them: 128
#: and the number of SIGINT or SIGPIPE.
INTERRUPTED, BROKEN_PIPE = 130, 141


class Parser(argparse.ArgumentParser):
    """Keeps the lines of its texts; raises ``UsageError`` instead of printing the usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def refuse(parser: Parser, argument: str, known: Collection[str]) -> NoReturn:
    """Raise ``UsageError`` for an argument that a command does not take; ``known``: its options."""
    name = argument.lstrip("-").partition("=")[0].replace("-", "_")
    ours = FOREIGN_NAMES.get(name, name)
    if like := difflib.get_close_matches(ours if ours in known else name, known, 1, 0.8):
        why = f"did you mean --{like[0].replace('_', '-')}?"
    elif name in FOREIGN_NAMES:
        why = f"in pools it is {FOREIGN_NAMES[name]}"
    else:
        why = "only pools in Python take it" if name in OWN_NAMES else "there is no such option"
    parser.error(f"{argument}: {parser.prog} does not take it; {why}")


def exact(count: int) -> str:
    """All digits, the thousands separated: ``12 345``."""
    return f"{count:,}".replace(",", " ")


def complain(text: str) -> None:
    sys.stderr.write(f"envpool-py: {printable(text)}\n")


def complain_if_busy() -> None:
    """Say so if other programs use the machine, because figures then vary."""
    busy = busy_part(0.2)
    if busy is not None and busy > 0.15:  # less makes no difference
        complain(f"the machine is busy: other programs use {busy:.0%} of its cores; figures vary")


def counted(count: int, what: str) -> str:
    """``1 error``, ``2 errors``, ``2 policies`` or ``2 batches``."""
    if count != 1:
        what = re.sub("y$", "ie", what)
        what += "es" if what.endswith("ch") else "s"
    return f"{exact(count)} {what}"


# A ValueError of a type becomes "invalid integer value: 'x'", with the name of its function.


def at_least(least: int) -> Callable[[str], int]:
    """The type of an int that is ``least`` or more; ``50_000`` and ``5e4`` are one."""

    def integer(text: str) -> int:
        value = float(text) if "e" in text.lower() else int(text)
        if not float(value).is_integer():
            raise UsageError(f"must be an integer, got {text}")
        if value < least:
            raise UsageError(f"must be {least} or more, got {int(value)}")
        return int(value)

    return integer


def count_or_auto(text: str) -> int | str:
    try:
        return text if text == "auto" else at_least(1)(text)
    except ValueError:
        raise UsageError(f"must be an integer or auto, got {text!r}") from None


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise UsageError(f"must be a positive number of seconds, got {text}")
    return value


def writable(path: str) -> str:
    """The type of a file that can be written, or ``-``; nothing is changed."""
    file = Path(os.path.realpath(path))
    if path != "-":
        if file.exists() and not file.is_file():
            raise UsageError(f"{path}: is not a regular file")
        if file.exists() and not os.access(file, os.W_OK):
            raise UsageError(f"{path}: is write-protected")
        if file.exists() and file_format.is_record(file):
            raise UsageError(f"{path}: is a record, and is not overwritten")
        _check_folder(file)
    return path


def episodes_folder(path: str) -> str:
    """The type of a folder to which episodes can be written; nothing is changed."""
    folder = Path(path)
    try:
        earlier(folder)
    except (OSError, ValueError) as error:
        raise UsageError(str(error).replace("append to them (append=True), or ", "")) from None
    if folder.is_file():
        raise UsageError(f"{path}: is a file; episodes are written to a folder")
    _check_folder(Path(os.path.realpath(folder)))  # ``resolve`` refuses a link to itself
    return path


def _check_folder(path: Path) -> None:
    """Check that something can be made beside or at a path."""
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def picture(path: str) -> str:
    """The type of a ``.png`` that can be written; needs matplotlib."""
    if not path.endswith(".png"):
        raise UsageError(f"must end in .png, got {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"needs matplotlib; {extras.hint('bench')}")
    return writable(path)


def report(args: argparse.Namespace, facts: Any, show: Callable[[], object]) -> None:
    """Write the results to the file of ``--json``, and as text, unless JSON is on stdout."""
    if args.json != "-":
        show()  # first, because the file may fail
    if args.json:
        text = json.dumps(facts, indent=1) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text, encoding="utf-8")


_COUNT = {"type": at_least(1), "metavar": "N"}
_MICROSECONDS = {"type": at_least(0), "metavar": "US"}
#: Options that several commands have: the help, and what else ``add_argument`` takes.
_SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "--json": (
        "write the results to a file, as JSON; -: to stdout, in place of the text",
        {"type": writable, "metavar": "FILE"},
    ),
    "--num-envs": ("how many copies of the env; default: %(default)s", _COUNT),
    "--wait-num": ("rows that a batch waits for; default: all", {**_COUNT, "metavar": "K"}),
    "--seconds": ("", {"type": seconds, "metavar": "S"}),
    "--backend": (
        "the kind of pool; default: %(default)s",
        {"choices": [*BACKENDS], "default": "shmem"},
    ),
    "--context": (
        "how worker processes are started; default: as Python does here",
        {"choices": multiprocessing.get_all_start_methods()},
    ),
    "--num-processes": (
        (
            "processes, threads or actors that share the envs; auto: measured, one per env if steps"
            " mostly wait; default: one per core, per env, or what Ray has room for"
        ),
        {"type": count_or_auto, "metavar": "N"},
    ),
    "--policy-us": (
        "CPU time of your policy per batch, in microseconds; repeatable; default: 0, 300 and 1000",
        {**_MICROSECONDS, "action": "append"},
    ),
    "--policy-row-us": (
        "additional CPU time of your policy per row, in microseconds; default: 0",
        _MICROSECONDS,
    ),
    "--policy": (
        "instead: call policy(obs, env_ids), or a class of (pool, seed), and ignore its actions",
        {"type": imported, "metavar": "MODULE:CALLABLE"},
    ),
    "--on-error": (
        "restart: an env that fails is recreated, and its episode is truncated; default: raise",
        {"choices": ("raise", "restart"), "default": "raise"},
    ),
    "--max-processes": (
        "leave out pools with more processes; default: %(default)s",
        {**_COUNT, "default": 256},
    ),
}
#: The options that ``callers_of`` reads.
CALLERS = ("--policy-us", "--policy-row-us", "--policy")


def add_shared(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add options that several commands have; ``changes`` replace what they have in common."""
    for name in names:
        text, settings = _SHARED[name]
        parser.add_argument(name, **{"help": text, **settings, **changes})


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


def check_wait_num(wait_num: int | None, num_envs: int) -> None:
    if wait_num is not None and wait_num > num_envs:
        raise UsageError(f"--wait-num is {wait_num}, but there are {num_envs} envs")


def pool_of(
    args: argparse.Namespace,
    env_fn: Callable[[], Any],
    *,
    first: Callable[[], Any] | None = None,
    **options: Any,
) -> BaseVectorEnv:
    """Make the pool of ``--backend`` and so on, with env 0 by ``first``; EnvError: it can't."""
    check_wait_num(args.wait_num, args.num_envs)
    count = args.num_processes
    if args.backend == "dummy" and count is not None:
        raise UsageError("--num-processes: the dummy backend has no processes")
    if args.context is not None:
        if args.backend not in ("subproc", "shmem"):
            raise UsageError(f"--context: the {args.backend} backend starts no worker processes")
        options["context"] = args.context
    if args.backend == "thread":
        options["num_threads"] = None if count == "auto" else count
    elif args.backend != "dummy":
        default = "auto" if args.backend == "ray" else len(usable_cores())
        options["num_processes"] = count or default
    env_fns = [first or env_fn, *[env_fn] * (args.num_envs - 1)]
    return pool_class(args.backend)(env_fns, args.wait_num, **options)
