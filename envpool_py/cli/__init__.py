"""The command line: ``envpool-py COMMAND``. One module per command.

A command's module has ``HELP``, maybe ``EPILOG``, ``add_options(parser)``, and ``run(args)``, which
carries the command out and returns the exit status. ``run`` raises ``UsageError`` for bad input,
``EnvError`` where an env can't be made or stepped and ``OSError`` where a file can't be written.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import envpool_py
from envpool_py.cli import bench, check, collect, info, replay, show, timeline, tune
from envpool_py.cli.arguments import BROKEN_PIPE, INTERRUPTED, Parser, add_shared, complain, refuse
from envpool_py.cli.naming import UsageError
from envpool_py.errors import EnvError

_COMMANDS = (check, tune, timeline, bench, collect, replay, show, info)

_EPILOG = """\
ENV is an id of Gymnasium, or a class or function of yours that makes the env.
No file is edited.

examples:
  envpool-py check mine.py:MyEnv --env-kwarg size=3   is the env sound?
  envpool-py tune mine.py:MyEnv --num-envs 16         which pool is the fastest?
  envpool-py collect CartPole-v1 --episodes 100 --out cartpole
  envpool-py show cartpole

exit status: 0 done, 1 something failed, 2 bad input, 130 after Ctrl-C, 141 if
the program that reads the output has ended
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command with these arguments, or those of the process; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack letters of the env's names
            stream.reconfigure(errors="backslashreplace")
    parser = Parser("envpool-py", description="Work with pools of environments.", epilog=_EPILOG)
    version = f"envpool-py {envpool_py.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        own = commands.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.HELP,
            description=f"{command.HELP[0].upper()}{command.HELP[1:]}.",
            epilog=getattr(command, "EPILOG", None),
        )
        command.add_options(own)
        add_shared(own, "--json")
        own.set_defaults(run=command.run, parser=own)
    try:
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            refuse(getattr(args, "parser", parser), unknown[0], vars(args))
        if "run" in args:
            status = int(args.run(args))
            sys.stdout.flush()  # here a BrokenPipeError is caught; as Python exits, it is not
            return status
        parser.print_help()
    except EnvError as error:
        complain(error.message.partition("\n")[0])
        return 1 if error.request in ("reset", "step") else 2  # else an env could not be made
    except BrokenPipeError:
        # Python writes the rest of the output as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (UsageError, OSError) as error:
        complain(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except SystemExit as end:  # of --help, --version, or of the user's code
        if end.code:
            raise
    return 0
