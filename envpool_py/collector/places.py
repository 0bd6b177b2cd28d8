"""Where a file of episodes grows, and what a killed writer leaves beside it.

::

    NAME                  complete: an .npz; or a folder of episodes, which is complete at any time
    NAME.npz.partial      the folder in which an .npz grows
    NAME.npz.packed       the same folder, once packed.npz in it is complete
    .NAME.01234567.tmp    a folder that is being filled or removed

Each of these becomes the next by one rename, so a kill leaves either the one or the other:
``.tmp`` becomes ``.partial``, ``.partial`` becomes ``.packed``, ``packed.npz`` in ``.packed``
becomes NAME, and ``.packed`` becomes ``.tmp``. ``finish`` goes on from there, and ``load`` reads
``packed.npz``. A folder is removed only under a name that no reader knows.

A writer locks its folder until the folder is removed, or its process ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import weakref
from collections.abc import Callable
from glob import escape
from pathlib import Path

from envpool_py.record.untrusted_files import read_json

try:
    import fcntl
except ImportError:  # Windows cannot lock a folder: there nothing refuses a second writer
    fcntl = None  # type: ignore[assignment]

#: The format in the metadata of every file.
FORMAT = "envpool_py episodes"
#: In the folder: the metadata, and the file that it is packed into.
METADATA, PACKED = "metadata.json", "packed.npz"


def folder_of(path: Path) -> Path:
    """The folder in which the arrays of a file grow."""
    return path.with_name(f"{path.name}.partial") if path.suffix == ".npz" else path


def packed_of(path: Path) -> Path:
    """That folder, once the file is complete in it but not yet at ``path``."""
    return path.with_name(f"{path.name}.packed")


def temporary_of(path: Path) -> Path:
    """A new name for a folder that is being filled or removed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


class Lock:
    """Locks a folder until ``release``, until it is deleted, or until the process ends.

    BlockingIOError if another writer has locked it.
    """

    def __init__(self, folder: Path) -> None:
        self.release: Callable[[], object] = lambda: None
        if fcntl is None:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        self.release = weakref.finalize(self, _unlock, descriptor, os.getpid())
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(descriptor), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        except OSError:  # a file system without locks
            is_there = True
        if not is_there:
            self.release()
            raise BlockingIOError(f"{folder}: another EpisodeWriter is writing there; close it")


def _unlock(descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process shares the lock, and must not end it
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def remove(folder: Path, path: Path) -> None:
    """Remove a folder, which the caller has locked, of the file at ``path``."""
    folder = folder.rename(temporary_of(path))
    shutil.rmtree(folder)


def finish(path: Path) -> None:
    """Complete the file that a killed writer had packed; remove what else it left.

    BlockingIOError if a writer is just closing the file.
    """
    if packed_of(path).is_dir():
        lock = Lock(packed_of(path))
        publish(path)
        lock.release()
    for folder in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        try:
            lock = Lock(folder)
        except OSError:  # of another writer, or removed by one
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def publish(path: Path) -> None:
    """Give the packed file its name, and remove its folder, which the caller has locked."""
    packed = packed_of(path)
    if (packed / PACKED).exists():
        (packed / PACKED).replace(path)
    remove(packed, path)


def remove_unfinished(path: Path) -> None:
    """Remove the folder of an unfinished run beside an ``.npz``.

    FileExistsError if it holds something that no writer wrote, BlockingIOError if a writer is
    writing there.
    """
    folder = folder_of(path)
    if folder == path or not folder.exists():
        return
    try:
        is_ours = read_json(folder / METADATA)["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        is_ours = False
    for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        has_our_name = file.suffix in (".npy", ".tmp") or file.name in (METADATA, PACKED)
        if not (is_ours and file.is_file() and has_our_name):
            raise FileExistsError(
                f"{folder}: holds {file.name}, which is no part of a file of episodes; move it away"
            )
    lock = Lock(folder)
    remove(folder, path)
    lock.release()
