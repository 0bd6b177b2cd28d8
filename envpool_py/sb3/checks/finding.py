"""What a check finds."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from envpool_py.errors import describe

Level = Literal["error", "warning", "note"]


class EnvCheckError(AssertionError):
    """An env, or a VecEnv, is not as it should be."""


class EnvSignatureError(EnvCheckError, TypeError):
    """A method of an env does not take what it should."""


class Finding(NamedTuple):
    """One thing that a check has to say.

    ``error``: nothing can be trained on it. ``warning``: it may go wrong, or a policy may not take
    it. ``note``: good to know.
    """

    level: Level
    message: str
    kind: type[EnvCheckError] = EnvCheckError
    cause: BaseException | None = None


def error(message: str) -> Finding:
    """Something that is wrong."""
    return Finding("error", message)


def warning(message: str) -> Finding:
    """Something that may be wrong."""
    return Finding("warning", message)


def note(message: str) -> Finding:
    """Something good to know."""
    return Finding("note", message)


def raised(call: str, exception: BaseException) -> Finding:
    """A call of the env's that raised.

    Args:
        call: what was called, ``"step()"``.
        exception: what it raised.
    """
    return Finding("error", f"{call} raised {describe(exception)}", cause=exception)


def has_errors(findings: list[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(finding.level == "error" for finding in findings)


def named(value: Any) -> str:
    """The type of a value, for messages."""
    return type(value).__name__
