"""Which library is installed where, and how a job is carried out by another interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from envpool_py.bench import process_tree
from envpool_py.bench.contestants import CEILING, OURS, PACKAGES
from envpool_py.bench.job import Job, Measurement
from envpool_py.bench.profile import Profile

_SCRIPT = Path(__file__).with_name("standalone.py")

#: A measurement may take so much longer than asked for: imports, the start, warm-up, the end.
_ALLOWANCE = 120.0

#: With less memory left on the machine than this a measurement is ended, bytes.
_LEAST_AVAILABLE = 1 << 30

#: How often that is looked at, seconds.
_BETWEEN_LOOKS = 0.5

#: Of what a failed process wrote.
_LONGEST_MESSAGE = 200


class MeasurementError(Exception):
    """A measurement that failed; the text says why, in one line."""


class Interpreter(NamedTuple):
    """A Python that measures some libraries."""

    name: str
    """Of the libraries that it was given for; this process's own is called ``here``."""
    path: str
    versions: dict[str, str]


def here() -> Interpreter:
    """The interpreter of this process.

    Raises:
        MeasurementError: it can't be run.
    """
    return _look_at("here", sys.executable)


def find(pythons: dict[str, str]) -> dict[str, Interpreter]:
    """Who measures which library: those given, else the interpreter of this process.

    Args:
        pythons: the path of an interpreter for some of the libraries.

    Returns:
        An interpreter for each library that is installed, ours included.

    Raises:
        MeasurementError: a path that was given is no interpreter, or lacks the library.
    """
    own = here()
    found = {OURS: own, CEILING: own}
    known: dict[str, Interpreter] = {}
    for library, package in PACKAGES.items():
        interpreter = own
        if library in pythons:
            path = pythons[library]
            sharing = "+".join(name for name in PACKAGES if pythons.get(name) == path)
            if path not in known:
                known[path] = _look_at(sharing, path)
            interpreter = known[path]
            if package not in interpreter.versions:
                raise MeasurementError(f"{library}: {package} is not installed for {path}")
        if package in interpreter.versions:
            found[library] = interpreter
    return found


def carry_out(interpreter: Interpreter, job: Job, *, ours: bool) -> Measurement:
    """Measure in a fresh process.

    Raises:
        MeasurementError: the process failed, took too long or too much memory.
    """
    told = {"job": job._asdict(), "ours": ours}
    return Measurement(**_ask(interpreter.path, told, _ALLOWANCE + 3 * job.seconds))


def profiled(interpreter: Interpreter, env: str, seconds: float) -> Profile:
    """Measure one env in a fresh process.

    Raises:
        MeasurementError: as ``carry_out``.
    """
    told = {"profile": {"env": env, "seconds": seconds}}
    return Profile(**_ask(interpreter.path, told, _ALLOWANCE + seconds))


def _look_at(name: str, path: str) -> Interpreter:
    return Interpreter(name, path, _ask(path, {"versions": True}, _ALLOWANCE))


def _ask(path: str, told: dict[str, Any], limit: float) -> dict[str, Any]:
    """Run the script; returns its answer."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the interpreter is the user's choice
            [path, str(_SCRIPT), json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that all it has started can be ended
        )
    except OSError as error:
        raise MeasurementError(f"can't run {path}: {error.strerror}") from None
    with process:
        try:
            answer, complaints = _communicate(process, time.monotonic() + limit)
        finally:
            _end(process)
    if process.returncode:
        raise MeasurementError(_why(process.returncode, complaints))
    try:
        told_back: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise MeasurementError(f"{path} is no Python interpreter") from None
    return told_back


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it has started, where the system keeps them together."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _communicate(process: subprocess.Popen[str], end: float) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            available = process_tree.available_bytes()
            if available is not None and available < _LEAST_AVAILABLE:
                raise MeasurementError("took more memory than there is") from None
            if time.monotonic() > end:
                raise MeasurementError("took too long") from None


def _why(status: int, complaints: str) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    lines = [line for line in complaints.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit status {status}").strip()[:_LONGEST_MESSAGE]
