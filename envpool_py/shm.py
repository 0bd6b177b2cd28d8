"""Anonymous shared memory: allocate it, and map it in another process.

With ``memfd_create`` (Linux) the memory is a file without a name: no limit of ``/dev/shm`` applies,
nothing is left however the processes end, and no other program can open it. Elsewhere it is an
unlinked temporary file.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile


def create() -> int:
    """A descriptor of new, empty shared memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("envpool_py", os.MFD_CLOEXEC)
        except OSError as error:  # a sandbox may refuse the call
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def allocate(fd: int, nbytes: int, what: str) -> mmap.mmap:
    """Give the memory its size, reserve every page and map it.

    A MemoryError now prevents a SIGBUS in a later step.
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
        raise MemoryError(
            f"cannot get {nbytes} bytes of shared memory for {what}: {error}"
        ) from error


def attach(fd: int) -> mmap.mmap:
    """Map memory that another process has allocated."""
    return mmap.mmap(fd, os.fstat(fd).st_size)
