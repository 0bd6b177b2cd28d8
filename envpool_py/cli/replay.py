"""``envpool-py replay``: repeat a recorded run in this process, up to where it failed."""

from __future__ import annotations

import argparse
import ast
import faulthandler
import pdb  # noqa: T100 - the command opens it
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from envpool_py.cli.arguments import at_least, complain, counted, exact, report
from envpool_py.cli.naming import UsageError, add_env, env_fn_of, imported, is_registered, printable
from envpool_py.cli.progress import showing
from envpool_py.errors import EnvError, ReplayError, name_ids
from envpool_py.record import file_format
from envpool_py.record.untrusted_files import require
from envpool_py.replayer import Replay, replay

HELP = "repeat a recorded run in this process, and debug where it failed"
EPILOG = """\
All envs run in this process, without waiting for anything; each row is checked
against the record. The exit status is 0 if no env failed, 1 if an env failed or
a row differs.

Without ENV, only an id in Gymnasium's registry is made: a file that names a
module or a function runs nothing, unless you pass --trust.

examples:
  envpool-py replay run.record --env-id 7 --pdb
  envpool-py replay run.record mine.py:MyEnv --env-kwarg size=3
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the record")
    add_env(parser, "; or a name of PettingZoo; default: the env that the record names", nargs="?")
    add = parser.add_argument
    text = "repeat this env only; may be repeated"
    add("--env-id", dest="env_ids", type=at_least(0), action="append", metavar="I", help=text)
    text = "make the env that the record names, whatever it is: its code and its module's are run"
    add("--trust", action="store_true", help=text)
    text = "open the debugger at each failure of an env in turn; q goes on to the next"
    add("--pdb", action="store_true", help=text)
    text = "also carry out requests in which a process died or timed out: they may end this one"
    add("--deaths", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    errors: list[str] = []
    with _replay_of(args) as batches:

        def progress() -> tuple[float, str]:
            return batches.num_batches, f"{counted(batches.num_batches, 'batch')} repeated"

        # The debugger needs the terminal.
        bar = nullcontext() if args.pdb else showing(file_format.count_batches(args.file), progress)
        try:
            with bar:
                for error, text in _errors_of(batches):
                    errors.append(text)
                    if args.json != "-":
                        sys.stdout.write(f"{printable(text)}\n")
                    if args.pdb:
                        _debug(error)
        except KeyboardInterrupt as error:
            if args.pdb:
                pdb.post_mortem(error.__traceback__)
            _report(args, batches, errors, "interrupted")
            raise
        except ValueError as error:  # the record is corrupt from there on
            complain(str(error))
            return 1
    if errors:
        end = counted(len(errors), "error") + (", and nothing more to debug" if args.pdb else "")
    elif batches.complete:
        end = "the record is complete"
    else:
        end = "the record ends here, without a close()"
    _report(args, batches, errors, end)
    return int(bool(errors))


def _report(args: argparse.Namespace, batches: Replay, errors: list[str], end: str) -> None:
    facts = {"file": args.file, "env": args.env, "batches": batches.num_batches}
    facts |= {"complete": batches.complete, "errors": errors}
    text = f"{args.file}: batches repeated: {exact(batches.num_batches)}; {end}\n"
    report(args, facts, lambda: sys.stdout.write(text))


def _debug(error: BaseException) -> None:
    """Open the debugger where the env raised; the error itself has the frames of the pool."""
    if error.__cause__ is None:
        text = "no env raised here, so there is nothing to debug"
        if isinstance(error, EnvError):
            text = f"{name_ids(error.env_ids)}: the process died or hung here, without an exception"
            text += "; to repeat that: --deaths"
        complain(text)
        return
    while error.__cause__ is not None:
        error = error.__cause__
    pdb.post_mortem(error.__traceback__)


def _replay_of(args: argparse.Namespace) -> Replay:
    try:
        header, _ = file_format.read(args.file)
        num_envs, recorded = header["num_envs"], header.get("env")
        if args.env is None:
            if recorded is None:
                text = f"{args.file} does not name the env of its {num_envs} envs; name that of the"
                raise UsageError(f"{text} run: envpool-py replay {args.file} ENV")
            _take_recorded(args, recorded)
        env_fns = [env_fn_of(args, pettingzoo=True)] * num_envs
        if args.deaths:
            faulthandler.enable(2, all_threads=False)  # shows the line of a crash
        return replay(args.file, env_fns, env_ids=args.env_ids, deaths=args.deaths)
    except EnvError:  # which may be an OSError or a ValueError as well
        raise
    except OSError as error:
        raise UsageError(f"{args.file}: {error.strerror}") from None
    except (ValueError, IndexError) as error:
        raise UsageError(str(error)) from None


def _take_recorded(args: argparse.Namespace, recorded: dict[str, Any]) -> None:
    """Set ENV to that of a record; ``--env-kwarg`` and ``--wrapper`` change it.

    UsageError if the record names the code of a module, and is not trusted.
    """
    try:
        require(file_format.is_env(recorded), "no name")
        env, wrappers = recorded["env"], recorded["wrappers"]
        texts = recorded["env_kwargs"]
        require(all(len(text) < 10_000 for text in texts.values()), "a value is too long")
        kwargs = {key: ast.literal_eval(text) for key, text in texts.items()}
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise UsageError(f"{args.file}: the name of its env is corrupt; pass ENV") from error
    if not args.trust and (wrappers or not is_registered(env)):
        words = [env, *(f"--env-kwarg {key}={value!r}" for key, value in kwargs.items())]
        words += [f"--wrapper {name}" for name in wrappers]
        text = f"{args.file} names {' '.join(words)}, which is run only if you ask for it"
        raise UsageError(f"{text}: pass this as ENV, or --trust")
    args.env = env
    args.env_kwarg = list({**kwargs, **dict(args.env_kwarg)}.items())
    args.wrapper = args.wrapper or [imported(name) for name in wrappers]


def _errors_of(batches: Replay) -> Iterator[tuple[Exception, str]]:
    """Repeat the run; yields each error as it happens, and its text with the place."""
    num_recovered, goes_on = 0, True
    while goes_on:
        raised: list[tuple[Exception, str]] = []
        try:
            goes_on = next(batches, None) is not None
        except ReplayError as error:
            raised, goes_on = [(error, str(error))], False
        except EnvError as error:
            raised = [(error, _text_of(error, batches.failed_at[error.env_id]))]
        for k in range(num_recovered, len(batches.recovered)):
            handled = batches.recovered[k]
            yield handled, f"{_text_of(handled, batches.recovered_at[k])}; on_error went on"
        num_recovered = len(batches.recovered)
        yield from raised


def _text_of(error: EnvError, place: tuple[int, int]) -> str:
    episode, step = place
    return error.message.partition("\n")[0] + f"; episode {episode}, step {step}"
