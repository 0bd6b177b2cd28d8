"""File descriptors: of anonymous shared memory, and those that only the parent may hold.

With ``memfd_create`` (Linux) the memory is a file without a name. ``/dev/shm`` does not limit it,
it is freed however the processes end, and no other program can open it. On other systems the memory
is an unlinked temporary file.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import tempfile


def create_memory() -> int:
    """Return a descriptor of new, empty shared memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("envpool_py", os.MFD_CLOEXEC)
        except OSError as error:  # a sandbox may refuse the call
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def allocate_memory(fd: int, nbytes: int) -> mmap.mmap:
    """Set the size of the memory, reserve every page and map it.

    MemoryError if the system has too little: without this check, a later step would get SIGBUS.
    """
    nbytes = max(nbytes, 1)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
        else:
            os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            raise
        text = f"cannot get {nbytes} bytes of shared memory for observations and actions"
        raise MemoryError(f"{text}: {error}") from error


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait until ``fd`` has data or its other end is closed; False after ``seconds``."""
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


# Descriptors that only this process may hold; every fork closes its copies. A copy of the parent's
# end of a pipe would keep the workers alive after the parent has ended.
_owned: set[int] = set()


def claim(fd: int) -> int:
    """Close ``fd`` in every process forked from now on."""
    _owned.add(fd)
    return fd


def release(fd: int) -> None:
    """Close a descriptor, claimed or not; -1: there is none."""
    _owned.discard(fd)
    if fd >= 0:
        os.close(fd)


def _close_in_fork() -> None:
    for fd in list(_owned):
        with contextlib.suppress(OSError):
            release(fd)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
