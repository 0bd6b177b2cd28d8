"""The file of ``record="FILE"``: its format, and the functions that read it.

A record holds every request of a pool that may change an env and, for each row, enough to check a
replay: the reward, the flags and a digest of the observation. The file begins with ``MAGIC``,
followed by chunks. A chunk is the length of its body and the CRC-32 of its kind and body (two
unsigned 32-bit numbers, little-endian), one byte for its kind, and the body: of the first chunk the
facts of the pool as JSON, of any other ``[ids, data]`` as ``plain_codec`` encodes it, with None for
the ids of all envs in order. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from envpool_py.env import spaces
from envpool_py.record import plain_codec

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 5

CHUNK_HEAD = struct.Struct("<IIc")

# The kinds of chunks. The comments say what an event holds for each env.
HEADER = b"h"
STEPS = b"s"  #: steps are sent: the leaves of the action; in the file an array for each leaf
REQUESTS = b"r"  #: other requests with a row are sent: kind, arguments, error, ``single`` if True
ROWS = b"o"  #: rows are returned: ``Row``; in the file column by column
RAISED = b"e"  #: errors are raised: the name of the class, the text, the request, all env ids
RECOVERED = b"x"  #: an error is handled by recovery: likewise
RECREATED = b"m"  #: envs are recreated: some arguments of ``Executor.configure``
CANCELLED = b"c"  #: requests are cancelled: whether the request is carried out anyway
ASKED = b"a"  #: requests without a row have ended: as ``REQUESTS``, and whether it failed
CLOSED = b"z"  #: the pool is closed

#: One chunk: its kind, the env ids, and the data of each of these envs.
Event: TypeAlias = "tuple[bytes, list[int], list[Any]]"


class Row(NamedTuple):
    """A recorded row."""

    digest: int
    terminated: bool
    truncated: bool
    reward: Any


def describe(layout: Any) -> str:
    """Describe the leaves of a layout; layouts with equal texts have equal leaves."""
    texts = []
    for leaf in spaces.leaves(layout):
        name = "/".join(str(key) for key in leaf.path) or "values"
        if leaf.dtype is None:
            texts.append(f"{name} of no fixed shape")
        else:
            scalar = " (scalar)" if leaf.scalar else ""
            texts.append(f"{name} of shape {leaf.shape} and dtype {leaf.dtype}{scalar}")
    return ", ".join(texts)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Generator[Event, None, None]]:
    """Read the facts of a recorded pool, and its events up to the last complete chunk.

    ValueError: no record, or of another version; the iterator raises it where a chunk is corrupt.
    """
    chunks = _chunks(Path(path))
    kind, _, body = next(chunks, (b"", 0, b""))
    if kind != HEADER:
        raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")
    header = json.loads(body)
    if header["version"] != VERSION:
        text = f"{path}: a record of version {header['version']}, not {VERSION}"
        raise ValueError(f"{text}; read it with the release that wrote it")
    return header, _events(path, chunks, header["num_envs"])


def count_batches(path: str | os.PathLike[str]) -> int:
    """Count the batches of a record, up to the last chunk that is not corrupt."""
    count = 0
    with contextlib.suppress(ValueError):
        for kind, _, _ in _chunks(Path(path)):
            count += kind == ROWS
    return count


def _events(path: Any, chunks: Iterable[Any], num_envs: int) -> Generator[Event, None, None]:
    for kind, at, body in chunks:
        try:
            ids, data = plain_codec.decode(body)
            ids = list(range(num_envs)) if ids is None else ids
            if kind == STEPS:
                data = [[column[k] for column in data] for k in range(len(ids))]
            elif kind == ROWS:
                columns = [column.tolist() for column in data]
                data = [Row(*row) for _, *row in zip(ids, *columns, strict=True)]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path}: the chunk at byte {at} is corrupt: {error}") from error
        yield kind, ids, data


def _chunks(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the kind, the position in the file and the body of each complete chunk."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path}: not a record of a pool")
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(CHUNK_HEAD.size)) == CHUNK_HEAD.size:
            length, crc, kind = CHUNK_HEAD.unpack(head)
            at = file.tell() - len(head)
            # Checked before the read, so that a wrong length does not allocate memory.
            if at + len(head) + length > size:
                return
            body = file.read(length)
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise ValueError(f"{path}: the chunk at byte {at} is corrupt")
            yield kind, at, body
