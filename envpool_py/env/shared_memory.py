"""Anonymous shared memory, for the block.

With ``memfd_create`` (Linux) the memory is a file without a name. ``/dev/shm`` does not limit it,
it is freed however the processes end, and no other program can open it. On other systems the memory
is an unlinked temporary file.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile


def create() -> int:
    """Return a descriptor of new, empty shared memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("envpool_py", os.MFD_CLOEXEC)
        except OSError as error:  # a sandbox may refuse the call
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def allocate(fd: int, nbytes: int) -> mmap.mmap:
    """Set the size of the memory, reserve every page and map it.

    MemoryError if the system has too little: without this check, a later step would get SIGBUS.
    """
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
