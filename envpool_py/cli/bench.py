"""``envpool-py bench``: the same work, stepped by our pools and by those of other libraries."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envpool_py.bench import report as reports
from envpool_py.bench import schedule, table
from envpool_py.bench.contestants import (
    AGENT_CONTESTANTS,
    BARE,
    CEILINGS,
    CONTESTANTS,
    OURS,
    PACKAGES,
    Contestant,
    takes_part,
)
from envpool_py.bench.interpreters import Interpreter, MeasurementError, find
from envpool_py.bench.report import Report
from envpool_py.bench.schedule import Entry
from envpool_py.bench.workloads import AGENT_WORKLOADS, WORKLOADS, Workload
from envpool_py.cli.arguments import (
    UsageError,
    check_picture,
    check_writable,
    complain,
    installed_version,
    integer,
    missing,
    seconds,
)
from envpool_py.cli.env_id import env_spec
from envpool_py.worker.limits import usable_cores

if TYPE_CHECKING:
    from envpool_py.cli.progress import Steps

#: The exit status after Ctrl-C, as shells have it: 128 + SIGINT.
_INTERRUPTED = 130

_ALL = CONTESTANTS + AGENT_CONTESTANTS

#: Envs of an ENV_ID unless told otherwise.
_NUM_ENVS = 16

_EPILOG = f"""\
workloads: {", ".join(workload.name for workload in WORKLOADS)};
  the name of an env (cartpole) stands for all of its workloads

backends: {", ".join(contestant.name for contestant in CONTESTANTS)};
  the name of a library (tianshou, {OURS}) stands for all of its backends. Without -each, subproc
  and shmem are spread over a process per core.

How much is left without a pool is measured where it is asked for: --backend ceiling, or one of
{", ".join(contestant.name for contestant in CEILINGS)}. The envs of
processes that never meet; that begin and end each batch together; that also hand rows on through
shared memory; from where the caller copies them; and partial batches.

PettingZoo's envs are measured where they are asked for:
  --workload: {", ".join(workload.name for workload in AGENT_WORKLOADS)};
  --backend: {", ".join(contestant.name for contestant in AGENT_CONTESTANTS)}.
  Their steps are those of agents.

Each measurement is made in a fresh process, one backend after the other and over again. The limit
is the number of cores times one bare env in a tight loop, resets included; for envs that wait, the
number of envs times that. Ctrl-C ends it: what was measured is shown and written, and the exit
status is 130.
"""


def register(commands: Any) -> None:
    """Add the parser of this command to ``commands``."""
    parser = commands.add_parser(
        "bench",
        help="measure pools side by side, those of other libraries too",
        description="Step the same work with our pools and with those of the libraries that are"
        " installed, and compare.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "env_id",
        metavar="ENV_ID",
        nargs="?",
        help="as gymnasium.make takes it; default: the workloads below",
    )
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="may be repeated"
    )
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="measure these only; may be repeated",
    )
    parser.add_argument(
        "--num-envs",
        type=integer(1),
        action="append",
        default=[],
        metavar="N",
        help=f"may be repeated; default: {_NUM_ENVS}, or what the workload says",
    )
    parser.add_argument(
        "--wait-num",
        type=integer(1),
        metavar="K",
        help="rows that a batch waits for; default: all, or what the workload says",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=1.0,
        help="how long a measurement takes, after its warm-up; default: %(default)s",
    )
    parser.add_argument(
        "--repeats", type=integer(1), default=3, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--python",
        type=_python,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the Python of the environment that a library is installed in; NAME is one of"
        f" {', '.join(PACKAGES)}; may be repeated",
    )
    parser.add_argument(
        "--max-processes",
        type=integer(1),
        default=256,
        metavar="N",
        help="leave out backends that would start more; default: %(default)s",
    )
    parser.add_argument("--json", metavar="FILE", help="write all measurements")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the figures; needs matplotlib")
    parser.add_argument(
        "--read",
        action="append",
        default=[],
        metavar="FILE",
        help="measure nothing and show what --json has written; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``envpool-py bench``; returns the exit status.

    Raises:
        UsageError: bad input.
    """
    try:
        from envpool_py.cli.progress import Steps  # noqa: PLC0415 - rich is an extra
        from envpool_py.cli.show_table import show  # noqa: PLC0415
    except ImportError as error:
        raise missing(str(error.name), "cli") from None
    _check_files(args)
    if args.read:
        report = _read(args.read)
        for workload in report.workloads():
            show(table.of_workload(report, workload))
        status = 0
    else:
        chosen, workloads = _backends(args.backend), _workloads(args)
        for workload in workloads:
            if not any(takes_part(each, workload) for each in chosen):
                raise UsageError(f"--backend: none of them steps the envs of {workload.name}")
        try:
            found = find(dict(args.python))
        except MeasurementError as error:
            raise UsageError(f"--python: {error}") from None
        report = _new_report(args, found, chosen)
        plan = [
            (workload, *schedule.entries(workload, chosen, found, args.max_processes))
            for workload in workloads
        ]
        steps = Steps(args.repeats * sum(len(taking_part) for _, taking_part, _ in plan))
        done = itertools.count()
        status = 0
        try:
            for workload, taking_part, skipped in plan:
                report.skipped += skipped
                try:
                    _measure(report, workload, taking_part, args.repeats, steps, done)
                finally:
                    show(table.of_workload(report, workload))
        except KeyboardInterrupt:
            complain("interrupted; what was measured until now is kept")
            status = _INTERRUPTED
        status = status or _status(report)
    if not report.results:
        return status
    for each in (table.small_batches(report), table.summary(report), table.versions(report)):
        if each is not None:
            show(each)
    return _write(args, report) or status


def _measure(
    report: Report,
    workload: Workload,
    taking_part: list[Entry],
    repeats: int,
    steps: Steps,
    done: Iterator[int],
) -> None:
    with steps.showing():
        for entry in schedule.run(report, workload, taking_part, repeats):
            who = table.label(entry.contestant, report.num_cores)
            steps.at(next(done), f"{workload.name}: {who}")


def _status(report: Report) -> int:
    """1 where one of our pools failed, or the bare env did."""
    ours = {BARE, *(each.name for each in _ALL if each.library == OURS)}
    return int(any(result.error and result.contestant in ours for result in report.results))


def _new_report(
    args: argparse.Namespace, found: dict[str, Interpreter], chosen: list[Contestant]
) -> Report:
    libraries = {contestant.library for contestant in chosen}
    used = {each.name: each for library, each in found.items() if library in libraries}
    versions = {name: dict(each.versions) for name, each in used.items()}
    own = installed_version("envpool-py")
    if "here" in versions and own:
        versions["here"]["envpool-py"] = own
    return Report(_command(args), len(usable_cores()), _machine(), args.seconds, versions)


def _command(args: argparse.Namespace) -> str:
    """What was typed, without the paths, which are nobody else's."""
    words = ["envpool-py bench", *([args.env_id] if args.env_id else [])]
    for name in ("workload", "backend", "num_envs", "wait_num"):
        given = getattr(args, name)
        values = given if isinstance(given, list) else [given] if given else []
        words += [f"--{name.replace('_', '-')} {value}" for value in values]
    words += [f"--seconds {args.seconds:g}", f"--repeats {args.repeats}"]
    words += [f"--python {name}=PYTHON" for name, _ in args.python]
    return " ".join(words)


def _machine() -> str:
    """The kind of processor, as Linux names it, and the system."""
    processor = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{processor}, {platform.system()}"


def _backends(names: list[str]) -> list[Contestant]:
    offered = (*_ALL, *CEILINGS)
    known = {name for each in offered for name in (each.name, each.library)}
    for name in names:
        if name not in known:
            raise UsageError(f"--backend: there is no {name!r}; see envpool-py bench --help")
    if not names:
        return list(_ALL)
    return [each for each in offered if each.name in names or each.library in names]


def _workloads(args: argparse.Namespace) -> list[Workload]:
    if args.env_id and args.workload:
        raise UsageError("ENV_ID and --workload both say what is stepped; give one of them")
    if args.env_id:
        env_spec(args.env_id)
        chosen = [Workload(args.env_id, _NUM_ENVS)]
    else:
        if not args.workload and (args.num_envs or args.wait_num):
            raise UsageError("--num-envs and --wait-num ask for ENV_ID or --workload")
        known = WORKLOADS + AGENT_WORKLOADS
        names = {name for each in known for name in (each.name, each.env)}
        for name in args.workload:
            if name not in names:
                raise UsageError(f"--workload: there is no {name!r}; see envpool-py bench --help")
        chosen = [
            each
            for each in (known if args.workload else WORKLOADS)
            if not args.workload or each.name in args.workload or each.env in args.workload
        ]
    return list(dict.fromkeys(_changed(chosen, args.num_envs, args.wait_num)))


def _changed(
    workloads: list[Workload], num_envs: list[int], wait_num: int | None
) -> Iterator[Workload]:
    for workload in workloads:
        for number in num_envs or [workload.num_envs]:
            rows = wait_num or workload.wait_num
            if rows and rows > number:
                raise UsageError(f"--wait-num is {rows}, but there are {number} envs")
            yield Workload(workload.env, number, None if rows == number else rows)


def _python(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not sign or not path or name not in PACKAGES:
        raise argparse.ArgumentTypeError(
            f"must be NAME=PATH, NAME one of {', '.join(PACKAGES)}, got {text!r}"
        )
    return name, os.path.expanduser(path)  # noqa: PTH111 - a str, for a command


def _check_files(args: argparse.Namespace) -> None:
    """What can be known to be wrong before anything is measured."""
    for option in ("json", "markdown", "plot"):
        path = getattr(args, option)
        if path is not None:
            check_writable(f"--{option}", path)
    if args.plot is not None:
        check_picture("--plot", args.plot)


def _read(paths: list[str]) -> Report:
    try:
        report = reports.merged([reports.read(path) for path in paths])
    except OSError as error:
        raise UsageError(f"--read: {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--read: {error}") from None
    if not report.results:
        raise UsageError("--read: nothing was measured")
    return report


def _write(args: argparse.Namespace, report: Report) -> int:
    """Write the files that were asked for; returns the exit status."""
    try:
        if args.json is not None:
            report.write(args.json)
        if args.markdown is not None:
            Path(args.markdown).write_text(table.markdown(report))
        if args.plot is not None:
            from envpool_py.bench import plot  # noqa: PLC0415 - matplotlib is an extra

            plot.draw(report, args.plot)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        return 1
    return 0
