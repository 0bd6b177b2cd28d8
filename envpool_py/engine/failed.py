"""An env that failed: why it is recreated, and where it is on its way back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from envpool_py.env.request import Request
from envpool_py.errors import EnvError, warn


class Phase(enum.Enum):
    """Where an env is on its way back: each phase follows the one before, or WAITS again."""

    WAITS = "until its back-off is over"
    CLOSES = "its process was asked to close it and to end"  # only with ``fresh_process``
    STARTS = "its process was restarted, and makes it"  # only if the process has ended
    CONFIGURES = "it was sent options and position, and recreates itself unless it is new"
    READY = "it is recreated, or is not to be recreated"


class Why(enum.Enum):
    """Why an env is recreated; ``REQUESTED`` and ``LOST`` are not tried again."""

    FAILED = "it has failed, which its next row reports"
    REQUESTED = "``pool.restart``: nothing is reported, and no failure tried again"
    LOST = "as REQUESTED, if at all: its row in flight raises its error"
    PLANNED = "it is recycled in a new process"
    STOPPED = "a session has stopped it: as FAILED, but nobody is told"

    @property
    def is_requested(self) -> bool:
        return self in (Why.REQUESTED, Why.LOST)


@dataclass
class Failed:
    """An env that is to be recreated, or whose errors are not reported yet.

    Attributes:
        errors: the errors that its next row reports, or raises: the first, and later ones.
        due: the time at which it may be recreated, of ``time.monotonic``.
        request: the request in flight, which reports the errors; None: the env is idle.
        token: that of the request of CONFIGURES; if it is not current, the env WAITS.
        is_counted: whether this restart is in ``pool.restarts``.
    """

    errors: list[EnvError]
    due: float = 0.0
    request: Request | None = None
    why: Why = Why.FAILED
    phase: Phase = Phase.WAITS
    token: int = -1
    is_counted: bool = False


def warn_of_close(i: int, error: EnvError) -> None:
    """Warn that the ``close`` of env ``i`` has hung, or has ended its process."""
    cause = error.message.partition("\n")[0].partition(": ")[2]
    warn(f"env {i}: close: {cause}; the env is recreated", RuntimeWarning)
