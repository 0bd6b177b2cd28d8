"""An env that failed: what its next row reports, and why, when and how far it is recreated."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from envpool_py.env.request import Request
from envpool_py.errors import EnvError
from envpool_py.options import RecoveryOptions

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 5.0


class Phase(enum.Enum):
    """How far an env is recreated: each phase follows the one before, or WAITS again."""

    WAITS = "until its back-off is over"
    CLOSES = "its process was asked to close it and to end"  # only with ``fresh_process``
    STARTS = "its process was restarted, and makes it"  # only if the process has ended
    CONFIGURES = "it was sent options and position, and recreates itself unless it is new"


class WhyRecreated(enum.Enum):
    """Why an env is recreated; if that fails, ``REQUESTED`` is never tried again."""

    FAILED = "it has failed, which its next row reports"
    REQUESTED = "``pool.restart``"
    PLANNED = "it is recycled in a new process"
    STOPPED = "a session has stopped it"


@dataclass
class Report:
    """What the next row of an env reports.

    ``errors``: the first, and later ones; empty if nothing has failed. ``request``: the request in
    flight that has this row; None: it is still to come.
    """

    errors: list[EnvError]
    request: Request | None = None


@dataclass
class Recreating:
    """An env that is being recreated, or is to be.

    Attributes:
        due: the time at which it may be recreated, of ``time.monotonic``.
        token: that of the request of CONFIGURES; if it is not current, the env WAITS.
        is_restart_counted: whether this restart is in ``pool.restarts``.
    """

    due: float = 0.0
    why: WhyRecreated = WhyRecreated.FAILED
    phase: Phase = Phase.WAITS
    token: int = -1
    is_restart_counted: bool = False


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
