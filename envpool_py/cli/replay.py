"""``envpool-py replay``: repeat a recorded run in this process, up to where it failed."""

from __future__ import annotations

import argparse
import pdb  # noqa: T100 - the command opens it
import sys

from envpool_py.cli.arguments import (
    UsageError,
    complain,
    existing,
    first_line,
    integer,
)
from envpool_py.cli.env_argument import add_env, env_fn_of, take_recorded
from envpool_py.cli.importing import line_of
from envpool_py.errors import EnvError, ReplayError
from envpool_py.record import recorder
from envpool_py.record.replay import Replay, replay

HELP = "repeat a recorded run in this process, and debug where it failed"
EPILOG = """\
All envs run in this process, without waiting for anything; each row is checked against the record.
The exit status is 0 if the run ended well, 1 if an env failed or a row differs.

examples:
  envpool-py replay run.record --env 7 --pdb
  envpool-py replay run.record mine.py:MyEnv --env-kwarg size=3
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", type=existing, metavar="FILE", help="the record")
    add_env(parser, "; or PettingZoo's name; default: that which the record names", nargs="?")
    parser.add_argument(
        "--env",
        dest="env_ids",
        type=integer(0),
        action="append",
        metavar="I",
        help="repeat this env only; may be repeated",
    )
    parser.add_argument(
        "--pdb", action="store_true", help="open the debugger where the first env failed"
    )
    parser.add_argument(
        "--deaths",
        action="store_true",
        help="also carry out the request in which an env's process died or timed out: it may end or"
        " block this process",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    with _replay_of(args) as batches:
        try:
            errors = _repeat(args, batches)
        except KeyboardInterrupt as error:
            if args.pdb:
                pdb.post_mortem(error.__traceback__)
            raise
        except ValueError as error:  # the record is corrupt from there on
            complain(str(error))
            return 1
    end = "the run ended well" if batches.complete else "the record ends here, without a close()"
    if errors:
        end = "1 error" if errors == 1 else f"{errors} errors"
    sys.stdout.write(f"{args.file}: batches repeated: {batches.num_batches}; {end}\n")
    return int(errors > 0)


def _replay_of(args: argparse.Namespace) -> Replay:
    try:
        header = recorder.read_header(args.file)
        num_envs, recorded = header["num_envs"], header.get("env")
        if args.env is None:
            if recorded is None:
                raise UsageError(
                    f"{args.file} does not name the env of its {num_envs} envs; name that of the"
                    f" run: envpool-py replay {args.file} ENV"
                )
            take_recorded(args, recorded)
        env_fns = [env_fn_of(args, pettingzoo=True)] * num_envs
        return replay(args.file, env_fns, env_ids=args.env_ids, deaths=args.deaths)
    except EnvError as error:
        raise UsageError(first_line(error.message)) from None
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(str(error)) from None


def _repeat(args: argparse.Namespace, batches: Replay) -> int:
    """Repeat the run; returns the number of its errors, at most one with ``--pdb``."""
    errors = 0
    while True:
        try:
            for _ in batches:
                for recovered in batches.recovered[errors:]:
                    errors += 1
                    if _show(args, batches, recovered, "; on_error went on"):
                        return errors
            break
        except ReplayError as error:
            sys.stdout.write(f"{error}\n")
            _debug(args, error)
            return errors + 1
        except EnvError as error:
            errors += 1
            if _show(args, batches, error):
                break
    return errors


def _show(args: argparse.Namespace, batches: Replay, error: EnvError, more: str = "") -> bool:
    """Print the error and its place, open the debugger with ``--pdb``; return whether it did."""
    episode, step = batches.position(error.env_id)
    what = first_line(error.message) + line_of(_cause(error))
    sys.stdout.write(f"{what}; episode {episode}, step {step}{more}\n")
    return _debug(args, error)


def _debug(args: argparse.Namespace, error: Exception) -> bool:
    """Open the debugger where the env raised, with ``--pdb``; return whether it did."""
    if not args.pdb:
        return False
    cause = _cause(error)
    if cause is error:
        complain("no env raised here, so there is nothing to debug; see --deaths")
    else:
        pdb.post_mortem(cause.__traceback__)
    return True


def _cause(error: BaseException) -> BaseException:
    """The exception that the env raised, or the error itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
