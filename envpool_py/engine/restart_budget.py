"""The policy for errors of envs: raise an error, or recreate the env, and when. Pure functions."""

from __future__ import annotations

from envpool_py.options import RecoveryOptions

#: Longest back-off, in seconds.
LONGEST_BACKOFF = 5.0


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
