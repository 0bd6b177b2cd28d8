"""Forks within code of an env: the copy of the process ends when it leaves that code.

Else the copy would go on as a second worker, or run the caller's program a second time: it would
write rows into the shared memory and take messages from the socket of the worker.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

#: The number of forks between the first process and this one, as the only item.
FORK_COUNT = [0]
#: The step loops of this process, which guard their rows in a copy.
STEP_LOOPS: weakref.WeakSet[Any] = weakref.WeakSet()


def _count_fork() -> None:
    FORK_COUNT[0] += 1
    for loop in STEP_LOOPS:
        loop.guard_rows()


class EndOfCopy:
    """In place of the row of an env: writing it ends the process."""

    def __setitem__(self, *_: object) -> None:
        os._exit(0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def end_copy(forks: int, error: BaseException | None = None) -> None:
    """End this process, without output, if it is a copy: if ``FORK_COUNT[0]`` was ``forks`` before.

    ``error``: the exception that has left the env's code; the code of a SystemExit is kept.
    """
    if FORK_COUNT[0] != forks:
        code = error.code if isinstance(error, SystemExit) else None if error is None else 1
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


class EndingCopies:
    """Code of an env runs in this block; a copy of the process does not leave it."""

    def __enter__(self) -> None:
        self._forks = FORK_COUNT[0]

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        end_copy(self._forks, error)
