"""File descriptors that only the parent may hold, and a wait for one."""

from __future__ import annotations

import contextlib
import os
import select
import socket


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait until ``fd`` has data or its other end is closed; False after ``seconds``."""
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


# Descriptors that only this process may hold; every fork closes its copies. A copy of the parent's
# end of a pipe would keep the workers alive after the parent has ended.
_owned: dict[int, socket.socket | None] = {}


def claim(fd: int, owner: socket.socket | None = None) -> int:
    """Close ``fd``, that of the socket ``owner`` if given, in every process forked from now on."""
    _owned[fd] = owner
    return fd


def release(fd: int) -> None:
    """Close a descriptor, claimed or not; -1: there is none."""
    if (owner := _owned.pop(fd, None)) is not None:
        owner.detach()  # else it would close the descriptor once more
    if fd >= 0:
        os.close(fd)


def _close_in_fork() -> None:
    for fd in list(_owned):
        with contextlib.suppress(OSError):
            release(fd)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
