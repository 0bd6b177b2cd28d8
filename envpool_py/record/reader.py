"""The file format of ``record="FILE"``, and the functions that read such a file.

A record holds every request that a pool sent to its envs and, for each row, enough to check a
replay: the reward, the flags and a digest of the observation. The file begins with ``MAGIC``,
followed by chunks. A chunk is the length of its body and the CRC-32 of its kind and body (two
unsigned 32-bit numbers), one byte for its kind, and the body. Numbers are little-endian, and
structured values are encoded by ``plain_codec``: nothing is pickled.

Each chunk is written with one system call: that of a request before the request is sent, that of a
batch before the batch is returned. If the program is killed, everything that was finished is in the
file, and an incomplete last chunk is recognised by its length.

===== ================================ ==========================================================
kind  written when                     body
===== ================================ ==========================================================
``h`` the pool is created              JSON; the first chunk, and the only one of its kind
``s`` steps are sent                   ids, then the actions leaf by leaf
``p`` likewise, without fixed shape    ids, then a plain list of the actions
``r`` resets are sent                  ids, then a plain list of their keyword arguments, or None
``o`` rows are returned                ids, format flags (u1), digests (u4), row flags (u1),
                                       rewards (f4, f8 or plain), and plain notes
``e`` errors are raised                plain list of the fields of ``Fault``
``x`` an error is handled by recovery  likewise
``m`` envs are recreated               ids; with a seed schedule also a plain list of (root seed,
                                       episode), one per env
``c`` requests are cancelled           ids, then for each whether it is carried out anyway (u1)
``a`` a request without a row ended    plain (kind, ids, one (args, kwargs) per env, failed ids)
``z`` the pool is closed               nothing
===== ================================ ==========================================================

Ids are their number (u4) and then each id (u4), or the number ``ALL_ENVS`` alone for all envs in
order.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.record import plain_codec

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 1

HEADER, STEPS, PLAIN_STEPS, RESETS, ROWS = b"h", b"s", b"p", b"r", b"o"
RAISED, RECOVERED, RECREATED, CANCELLED, ASKED, CLOSED = b"e", b"x", b"m", b"c", b"a", b"z"

CHUNK_HEAD = struct.Struct("<IIc")
COUNT = struct.Struct("<I")
ALL_ENVS = 0xFFFFFFFF
#: Format flags of the rows of a batch.
RESETS_MARKED, PLAIN_REWARDS, HAS_NOTES, SHORT_REWARDS = 1, 2, 4, 8
#: How the actions of one leaf are written: in their own dtype, or in one byte each.
OWN_DTYPE, ONE_BYTE = b"=", b"B"
#: Requests without a row that may change an env. Of ``apply`` only the function's name is written.
EFFECTS = frozenset({"seed", "set_attr", "call", "apply"})

#: (root seed, number of the last episode) of an env under ``episode_seeds`` or ``reset_fn``.
Schedule: TypeAlias = "tuple[int | None, int]"
#: (episode, seed, options): what ``reset_fn`` returned for an episode.
ResetFnResult: TypeAlias = "tuple[int, int | None, Any]"
_Leaves: TypeAlias = "Sequence[tuple[tuple[int, ...], np.dtype[Any] | None]]"


class Fault(NamedTuple):
    """The error of one env.

    ``from_env``: the env itself raised the error, so the env raises it in a replay too.
    ``env_ids``: the ids of the error; the death of a process concerns all envs of the process.
    """

    env_id: int
    kind: str
    text: str
    from_env: bool
    env_ids: tuple[int, ...]


class Notes(NamedTuple):
    """The part of a recorded row beside reward, flags and digest.

    ``lost``: the row replaces that of a lost step. ``info``: what recovery added to the info.
    ``resets``: what ``reset_fn`` returned since the last row.
    """

    lost: bool
    info: dict[str, Any]
    resets: list[ResetFnResult]


class Batch(NamedTuple):
    """The recorded rows of a batch; ``resets_marked``: infos of resets have ``is_reset``."""

    digests: NDArray[np.uint32]
    reward: Any
    flags: NDArray[np.uint8]
    resets_marked: bool
    notes: dict[int, Notes]


class Asked(NamedTuple):
    """A request without a row to one env, and whether it failed."""

    kind: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    failed: bool


class Event(NamedTuple):
    """One chunk: its kind, the env ids, and data.

    The data is a list with one entry per id: of ``PLAIN_STEPS`` the action, of ``RESETS`` the
    keyword arguments, of ``RAISED`` and ``RECOVERED`` a ``Fault``, of ``RECREATED`` a ``Schedule``
    or None, of ``CANCELLED`` whether the request is carried out anyway, of ``ASKED`` an ``Asked``.
    Of ``STEPS`` it is a list of one array per leaf, and of ``ROWS`` a ``Batch``.
    """

    kind: bytes
    ids: list[int]
    data: Any


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the facts of the recorded pool.

    Raises:
        ValueError: the file is not a record, or of another version.
        OSError: the file cannot be read.
    """
    for kind, _, body in _chunks(Path(path)):
        if kind != HEADER:
            break
        header = json.loads(body)
        if header["version"] != VERSION:
            raise ValueError(f"{path}: a record of version {header['version']}, not {VERSION}")
        return dict(header)
    raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Read the events of a run, in order, up to the last complete chunk.

    Raises:
        ValueError: a chunk is corrupt; the chunks before it have been yielded.
        OSError: the file cannot be read.
    """
    header = read_header(path)
    leaves = [
        (tuple(shape), None if dtype is None else np.dtype(dtype))
        for _, shape, dtype, _ in header["actions"]
    ]
    for kind, at, body in _chunks(Path(path)):
        if kind == HEADER:
            continue
        try:
            yield _parsed(kind, body, header["num_envs"], leaves)
        except (ValueError, LookupError, struct.error, TypeError) as error:
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
            if len(body) < length:
                return
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise ValueError(f"{path}: the chunk at byte {at} is corrupt")
            yield kind, at, body


def _parsed(kind: bytes, body: bytes, num_envs: int, leaves: _Leaves) -> Event:
    if kind in (RAISED, RECOVERED):
        faults = [Fault(*fields) for fields in plain_codec.decode(body)]
        return Event(kind, _checked_ids([fault.env_id for fault in faults], num_envs), faults)
    if kind == ASKED:
        request, ids, arguments, failed = plain_codec.decode(body)
        if request not in EFFECTS:
            raise ValueError("not a request that can be recorded")
        asked = [
            Asked(request, tuple(args), kwargs, i in failed)
            for i, (args, kwargs) in zip(ids, arguments, strict=True)
        ]
        return Event(kind, _checked_ids(ids, num_envs), asked)
    if kind == CLOSED:
        return Event(kind, [], None)
    ids, start = _parsed_ids(body, num_envs)
    data: Any
    if kind == STEPS:
        data = _parsed_actions(body, start, len(ids), leaves)
    elif kind == PLAIN_STEPS:
        data = _checked_list(plain_codec.decode(body[start:]), len(ids))
    elif kind == RESETS:
        data = plain_codec.decode(body[start:])
        data = [{}] * len(ids) if data is None else _checked_list(data, len(ids))
    elif kind == ROWS:
        data = _parsed_rows(body, start, len(ids))
    elif kind == CANCELLED:
        if len(body) < start + len(ids):
            raise ValueError("the body is too short")
        data = [bool(byte) for byte in body[start : start + len(ids)]]
    elif kind == RECREATED:
        data = plain_codec.decode(body[start:]) if len(body) > start else [None] * len(ids)
        data = _checked_list(data, len(ids))
    else:
        raise ValueError(f"unknown kind {kind!r}")
    return Event(kind, ids, data)


def _checked_ids(ids: Sequence[Any], num_envs: int) -> list[int]:
    if not all(type(i) is int and 0 <= i < num_envs for i in ids):
        raise ValueError("an env id is out of range")
    return list(ids)


def _parsed_ids(body: bytes, num_envs: int) -> tuple[list[int], int]:
    """The ids at the start of a body, and where they end."""
    (count,) = COUNT.unpack_from(body)
    if count == ALL_ENVS:
        return list(range(num_envs)), COUNT.size
    ids = np.frombuffer(body, "<u4", count, COUNT.size).tolist()
    return _checked_ids(ids, num_envs), COUNT.size + 4 * count


def _checked_list(values: Any, count: int) -> list[Any]:
    if type(values) is not list or len(values) != count:
        raise ValueError("not one entry for each env")
    return values


def _parsed_actions(body: bytes, at: int, count: int, leaves: _Leaves) -> list[NDArray[Any]]:
    columns = []
    for shape, dtype in leaves:
        if dtype is None:
            raise ValueError("actions in columns, but the action space has no fixed shape")
        size = count * int(np.prod(shape, dtype=np.int64))
        written = np.dtype(np.uint8) if body[at : at + 1] == ONE_BYTE else dtype
        column = np.frombuffer(body, written, size, at + 1).reshape(count, *shape)
        at += 1 + column.nbytes
        columns.append(column.astype(dtype, copy=False))
    return columns


def _parsed_rows(body: bytes, at: int, count: int) -> Batch:
    form = body[at]
    digests = np.frombuffer(body, "<u4", count, at + 1)
    at += 1 + 4 * count
    flags = np.frombuffer(body, np.uint8, count, at)
    (size,) = COUNT.unpack_from(body, at + count)
    at += count + COUNT.size
    reward: Any
    if form & PLAIN_REWARDS:
        reward = plain_codec.decode(body[at : at + size])
        at += size
    else:
        dtype = "<f4" if form & SHORT_REWARDS else "<f8"
        reward = np.frombuffer(body, dtype, count * size, at).reshape(count, size)
        at += reward.nbytes
    notes: Mapping[int, Any] = plain_codec.decode(body[at:]) if form & HAS_NOTES else {}
    for lost, info, resets in notes.values():
        if (type(lost), type(info), type(resets)) != (bool, dict, list):
            raise ValueError("the notes have another form")
    return Batch(
        digests,
        reward,
        flags,
        bool(form & RESETS_MARKED),
        {i: Notes(*fields) for i, fields in notes.items()},
    )
