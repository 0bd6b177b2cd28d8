"""The file format of ``record="FILE"``, and the functions that read such a file.

A record holds every request that a pool sent to its envs and, for each row, enough to check a
replay: the reward, the flags and a digest of the observation. The file begins with ``MAGIC``,
followed by chunks. A chunk is the length of its body and the CRC-32 of its kind and body (two
unsigned 32-bit numbers, little-endian), one byte for its kind, and the body: of the first chunk the
facts of the pool as JSON, of any other ``[ids, data]`` as ``plain_codec`` encodes it. The ids are
None for all envs in order. Nothing is pickled.

Each chunk is written with one system call: that of a request before the request is sent, that of a
batch before the batch is returned. If the program is killed, everything that was finished is in the
file, and an incomplete last chunk is recognised by its length.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from envpool_py import spaces
from envpool_py.record import plain_codec

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 2
CHUNK_HEAD = struct.Struct("<IIc")

# The kinds of chunks. The comments say what the data holds for each env.
HEADER = b"h"
STEPS = b"s"  #: steps are sent: the action; on disk an array for each leaf
PLAIN_STEPS = b"p"  #: likewise, without fixed shape
RESETS = b"r"  #: resets are sent: the keyword arguments
ROWS = b"o"  #: rows are returned: ``Row``; on disk column by column
RAISED = b"e"  #: errors are raised: ``Fault``
RECOVERED = b"x"  #: an error is handled by recovery: ``Fault``
RECREATED = b"m"  #: envs are recreated: (root seed, episode) in the schedule of seeds
CANCELLED = b"c"  #: requests are cancelled: whether the request is carried out anyway
ASKED = b"a"  #: a request without a row has ended: ``Asked``
CLOSED = b"z"  #: the pool is closed
#: Requests without a row that may change an env. Of ``apply`` only the function's name is written.
EFFECTS = frozenset({"seed", "set_attr", "call", "apply"})


class Fault(NamedTuple):
    """The error of an env; its ``env_ids`` may be those of all envs of a process that died."""

    kind: str
    text: str
    request: str
    env_ids: tuple[int, ...]


class Row(NamedTuple):
    """A recorded row.

    ``flags``: 1 for terminated, plus 2 for truncated. ``marked``: infos of resets in this batch
    have ``is_reset``. ``lost``: the row replaces that of a lost step. ``info``: what recovery added
    to the info. ``resets``: (episode, seed, options) for each call of ``reset_fn`` since the last
    row.
    """

    digest: int
    flags: int
    reward: Any
    marked: bool
    lost: bool
    info: dict[str, Any]
    resets: list[tuple[int, int | None, Any]]


class Asked(NamedTuple):
    """A request without a row to one env, and whether it failed."""

    kind: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    failed: bool


class Event(NamedTuple):
    """One chunk: its kind, the env ids, and the data of each of these envs."""

    kind: bytes
    ids: list[int]
    data: list[Any]


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the facts of the recorded pool; ValueError: no record, or of another version."""
    for kind, _, body in _chunks(Path(path)):
        if kind != HEADER:
            break
        header = json.loads(body)
        if header["version"] != VERSION:
            raise ValueError(f"{path}: a record of version {header['version']}, not {VERSION}")
        return dict(header)
    raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Read the events of a run, in order, up to the last complete chunk; ValueError: corrupt."""
    num_envs = read_header(path)["num_envs"]
    for kind, at, body in _chunks(Path(path)):
        if kind == HEADER:
            continue
        try:
            yield _parsed(kind, body, num_envs)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path}: the chunk at byte {at} is corrupt: {error}") from error


def layout_json(layout: Any) -> list[Any]:
    """The leaves of a layout as JSON: lists of path, shape, dtype and whether it is a scalar."""
    return [
        [
            "/".join(str(key) for key in leaf.path),
            list(leaf.shape),
            None if leaf.dtype is None else leaf.dtype.newbyteorder("<").str,
            leaf.scalar,
        ]
        for leaf in spaces.leaves(layout)
    ]


def _chunks(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """The kind, the place in the file and the body of each complete chunk."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path}: not a record of a pool")
        size = os.fstat(file.fileno()).st_size
        while True:
            at = file.tell()
            head = file.read(CHUNK_HEAD.size)
            if len(head) < CHUNK_HEAD.size:
                return
            length, crc, kind = CHUNK_HEAD.unpack(head)
            # Checked before the read, so that a wrong length does not allocate memory.
            if at + CHUNK_HEAD.size + length > size:
                return
            body = file.read(length)
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise ValueError(f"{path}: the chunk at byte {at} is corrupt")
            yield kind, at, body


def _parsed(kind: bytes, body: bytes, num_envs: int) -> Event:
    ids, data = plain_codec.decode(body)
    ids = list(range(num_envs)) if ids is None else ids
    if not all(type(i) is int and 0 <= i < num_envs for i in ids):
        raise ValueError("an env id is out of range")
    if kind == STEPS:
        data = [tuple(column[k] for column in data) for k in range(len(ids))]
    elif kind == ROWS:
        *columns, marked, notes = data
        rows = zip(ids, *columns, strict=True)
        data = [Row(*row, marked, *notes.get(i, (False, {}, []))) for i, *row in rows]
    elif kind in (RAISED, RECOVERED):
        data = [Fault(*fields) for fields in data]
    elif kind == ASKED:
        data = [Asked(*fields) for fields in data]
        if not all(asked.kind in EFFECTS for asked in data):
            raise ValueError("not a request that can be recorded")
    elif kind not in (PLAIN_STEPS, RESETS, RECREATED, CANCELLED, CLOSED):
        raise ValueError(f"unknown kind {kind!r}")
    if type(data) is not list or len(data) != len(ids):
        raise ValueError("not one entry for each env")
    return Event(kind, ids, data)
