"""An env that failed: why and when it is recreated, and where it is on its way back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from envpool_py.env.request import Request
from envpool_py.errors import EnvError
from envpool_py.options import RecoveryOptions

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 5.0


class Phase(enum.Enum):
    """Where an env is on its way back: each phase follows the one before, or WAITS again."""

    WAITS = "until its back-off is over"
    CLOSES = "its process was asked to close it and to end"  # only with ``fresh_process``
    STARTS = "its process was restarted, and makes it"  # only if the process has ended
    CONFIGURES = "it was sent options and position, and recreates itself unless it is new"
    READY = "it is recreated, or is not to be recreated"


class WhyRecreated(enum.Enum):
    """Why an env is recreated; ``REQUESTED`` and ``RAISED`` are not tried again."""

    FAILED = "it has failed, which its next row reports"
    REQUESTED = "``pool.restart``: nothing is reported, and no failure tried again"
    RAISED = "as REQUESTED, if at all: its row in flight raises its error"
    PLANNED = "it is recycled in a new process"
    STOPPED = "a session has stopped it: as FAILED, but nobody is told"

    @property
    def is_requested(self) -> bool:
        return self in (WhyRecreated.REQUESTED, WhyRecreated.RAISED)


@dataclass
class Failed:
    """An env that is to be recreated, or whose errors are not reported yet.

    Attributes:
        errors: the errors that its next row reports, or raises: the first, and later ones.
        due: the time at which it may be recreated, of ``time.monotonic``.
        request: the request in flight, which reports the errors; None: there is none to send.
        token: that of the request of CONFIGURES; if it is not current, the env WAITS.
        is_restart_counted: whether this restart is in ``pool.restarts``.
    """

    errors: list[EnvError]
    due: float = 0.0
    request: Request | None = None
    why: WhyRecreated = WhyRecreated.FAILED
    phase: Phase = Phase.WAITS
    token: int = -1
    is_restart_counted: bool = False


def delay(options: RecoveryOptions, failures: int, *, works: bool) -> float | None:
    """Return the seconds until a failed env is recreated; None: its error is raised.

    ``failures``: how often it had failed in a row before: without an episode completed between.
    ``works``: whether it ever completed a reset; else its code or its arguments are wrong.
    """
    limit = options.max_restarts
    if options.on_error != "restart" or not works or (limit is not None and failures >= limit):
        return None
    return backoff(options, failures)


def backoff(options: RecoveryOptions, failures: int) -> float:
    """Return the seconds that an env waits after a failure that follows so many others."""
    if not failures:
        return 0.0
    return min(options.restart_backoff * 2.0 ** min(failures - 1, 60), LONGEST_BACKOFF)


def raised_message(options: RecoveryOptions, failures: int, message: str) -> str:
    """Return the message of an error that is raised after this number of failures in a row."""
    limit = options.max_restarts
    if options.on_error != "restart" or limit is None or failures < limit:
        return message
    restarts = "1 restart" if limit == 1 else f"{limit} restarts"
    return message.replace(": ", f" failed again after {restarts} (max_restarts={limit}): ", 1)


def log_line(i: int, restarts: int, total: int, message: str) -> str:
    """Return the line for a restart of env ``i``; ``message``: that of its error.

    Logged are the restarts 1 to 3 of a pool, then 10, 20 ..., 100, 200 ...; else "" is returned.
    """
    if total > 3 and (total < 10 or total % 10 ** (len(str(total)) - 1)):
        return ""
    cause = message.partition("\n")[0].partition(": ")[2]
    return f"env {i} restarted (restart {restarts} of this env, {total} of the pool): {cause}"
