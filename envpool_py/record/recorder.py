"""``record="FILE"``: the file format, the observer that writes it, the functions that read it.

A record holds every request that a pool sent to its envs and, for each row, enough to check a
replay: the reward, the flags and a digest of the observation. The file begins with ``MAGIC``,
followed by chunks. A chunk is the length of its body and the CRC-32 of its kind and body (two
unsigned 32-bit numbers, little-endian), one byte for its kind, and the body: of the first chunk the
facts of the pool as JSON, of any other ``[ids, data]`` as ``plain_codec`` encodes it, with None for
the ids of all envs in order. Nothing is pickled.

Each chunk is written with one system call: that of a request before the request is sent, that of a
batch before the batch is returned. If the program is killed, everything that was finished is in the
file, and an incomplete last chunk is recognised by its length.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envpool_py.env import spaces
from envpool_py.env.block import Block
from envpool_py.env.request import KINDS, Request
from envpool_py.env.spaces import Array
from envpool_py.errors import EnvError, warn
from envpool_py.ids import IdArray
from envpool_py.record import digest, plain_codec
from envpool_py.record.observer import Observer

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 4

_CHUNK_HEAD = struct.Struct("<IIc")

# The kinds of chunks. The comments say what an event holds for each env.
HEADER = b"h"
STEPS = b"s"  #: steps are sent: the leaves of the action; in the file an array for each leaf
PLAIN_STEPS = b"p"  #: likewise, without a fixed shape: the action
RESETS = b"r"  #: resets are sent: the keyword arguments
SEEDS = b"d"  #: resets by ``pool.seed`` are sent: likewise
ROWS = b"o"  #: rows are returned: ``Row``; in the file column by column
RAISED = b"e"  #: errors are raised: the name of the class, the text, the request, all env ids
RECOVERED = b"x"  #: an error is handled by recovery: likewise
RETRIED = b"l"  #: requests are sent in place of lost ones: (kind, kwargs, text of the error)
RECREATED = b"m"  #: envs are recreated: the arguments ``LIFE`` of ``Executor.configure``
CANCELLED = b"c"  #: requests are cancelled: whether the request is carried out anyway
#: A request without a row has ended: (kind, args, kwargs, whether it failed). Of a function only
#: its name is written.
ASKED = b"a"
CLOSED = b"z"  #: the pool is closed
LIFE = ("root", "episode", "restarts")
_PER_ENV = {PLAIN_STEPS, RESETS, SEEDS, RAISED, RECOVERED}
_PER_ENV |= {RETRIED, RECREATED, CANCELLED, ASKED, CLOSED}


class Row(NamedTuple):
    """A recorded row."""

    digest: int
    flags: int  # 1 for terminated, plus 2 for truncated
    reward: Any


class Event(NamedTuple):
    """One chunk: its kind, the env ids, and the data of each of these envs."""

    kind: bytes
    ids: list[int]
    data: list[Any]


class Recorder(Observer):
    """Write the record of one pool to a new file, ``path``; only its owner can read it."""

    watches = True

    def __init__(self, block: Block, path: Path, header: Mapping[str, Any]) -> None:
        self._block = block
        self._path = path
        spec = block.spec
        self._all = list(range(spec.num_envs))
        self._leaves = spaces.leaves(spec.obs)
        layouts = {"observations": describe(spec.obs), "actions": describe(spec.action)}
        facts = {"version": VERSION, **header, **layouts}
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd: int | None = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        self._append(HEADER, json.dumps(facts).encode(), before=MAGIC)

    def close(self) -> None:
        """Write that the run has ended here, and close the file."""
        self._write(CLOSED, [], [])
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, kind: bytes, ids: Sequence[int] | IdArray, data: Any) -> None:
        listed = [int(i) for i in ids]
        self._append(kind, plain_codec.encode([None if listed == self._all else listed, data]))

    def _append(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
        if self._fd is None:
            return
        crc = zlib.crc32(body, zlib.crc32(kind))
        data = before + _CHUNK_HEAD.pack(len(body), crc, kind) + body
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            # A full disk must not end the run.
            os.close(self._fd)
            self._fd = None
            text = f"record: {self._path} ends here, the pool goes on without it: {error}"
            warn(text, RuntimeWarning)

    def steps(self, ids: IdArray, actions: Any, *, stored: bool) -> None:
        """Write the actions; TypeError: an action has a type that only pickle supports."""
        if stored:
            layout = self._block.spec.action
            columns = spaces.batch_actions(layout, actions, ids.tolist()) or ()
            self._write(STEPS, ids, [_narrowed(column) for column in columns])
        else:
            _check(ids, actions, "action")
            self._write(PLAIN_STEPS, ids, actions)

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """Write the arguments; TypeError: an option has a type that only pickle supports."""
        arguments = [dict(request.kwargs) for request in requests]
        _check(ids, arguments, "reset")
        self._write(SEEDS if requests and requests[0].kind == "seed" else RESETS, ids, arguments)
        for i, request in zip(ids, requests, strict=True):
            if request.error:
                self.retried(i, request)

    def rows(
        self, ids: IdArray, obs: Sequence[Any], reward: Array, terminated: Array, truncated: Array
    ) -> None:
        digests = digest.of_observations(self._leaves, obs, len(ids))
        flags = terminated.view(np.uint8) + 2 * truncated.view(np.uint8)
        self._write(ROWS, ids, [np.array(digests, np.uint32), flags, _narrowed(reward)])

    def retried(self, i: int, request: Request) -> None:
        self._write(RETRIED, [i], [(request.kind, dict(request.kwargs), request.error)])

    def failed(self, errors: Mapping[int, EnvError], *, raised: bool) -> None:
        kind = RAISED if raised else RECOVERED
        facts = [(type(e).__name__, e.text, e.request, e.env_ids) for e in errors.values()]
        self._write(kind, list(errors), facts)

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        self._write(CANCELLED, ids, list(carried_out))

    def recreated(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        lives = [{name: request.kwargs[name] for name in LIFE} for request in requests]
        self._write(RECREATED, ids, lives)

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """Write a request that may change an env, after it has ended; TypeError as ``resets``."""
        kind = requests[0].kind if requests else ""
        if not kind or not KINDS[kind].recorded:
            return None
        arguments = [(tuple(request.args), dict(request.kwargs)) for request in requests]
        if kind in ("apply", "env_fn"):
            functions = [request.args[0] for request in requests]
            arguments = [((getattr(f, "__qualname__", repr(f)),), {}) for f in functions]
        _check(ids, arguments, kind)

        def write(failed: Sequence[int]) -> None:
            pairs = zip(ids, arguments, strict=True)
            self._write(ASKED, ids, [(kind, *one, i in failed) for i, one in pairs])

        return write


def _check(ids: Sequence[int] | IdArray, values: Sequence[Any], what: str) -> None:
    """Raise a TypeError that names the env of a value that only pickle supports."""
    for i, value in zip(ids, values, strict=True):
        try:
            plain_codec.encode(value)
        except TypeError as error:
            raise TypeError(
                f"env {i}: {what} can't be recorded: {error}, which only pickle supports;"
                " a record holds numbers, strings, arrays, and lists, tuples and dicts of them"
            ) from error


def _narrowed(column: Array) -> Array:
    """Return the numbers as float32 or uint8 if that changes none of them."""
    narrow = np.dtype(np.float32 if column.dtype.kind == "f" else np.uint8)
    if column.dtype.kind not in "iuf" or column.dtype.itemsize <= narrow.itemsize:
        return column
    with np.errstate(over="ignore"):
        short = column.astype(narrow)
    return short if (short == column).all() else column


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


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the facts of the recorded pool; ValueError: no record, or of another version."""
    for kind, _, body in _chunks(Path(path)):
        if kind != HEADER:
            break
        header = json.loads(body)
        if header["version"] != VERSION:
            text = f"{path}: a record of version {header['version']}, not {VERSION}"
            raise ValueError(f"{text}; read it with the release that wrote it")
        return dict(header)
    raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")


def read_events(path: str | os.PathLike[str]) -> Generator[Event, None, None]:
    """Read the events of a run, in order, up to the last complete chunk; ValueError: corrupt."""
    num_envs = read_header(path)["num_envs"]
    for kind, at, body in _chunks(Path(path)):
        if kind == HEADER:
            continue
        try:
            yield _parsed(kind, body, num_envs)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path}: the chunk at byte {at} is corrupt: {error}") from error


def _chunks(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the kind, the position in the file and the body of each complete chunk."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path}: not a record of a pool")
        size = os.fstat(file.fileno()).st_size
        while True:
            at = file.tell()
            head = file.read(_CHUNK_HEAD.size)
            if len(head) < _CHUNK_HEAD.size:
                return
            length, crc, kind = _CHUNK_HEAD.unpack(head)
            # Checked before the read, so that a wrong length does not allocate memory.
            if at + _CHUNK_HEAD.size + length > size:
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
        data = [[column[k] for column in data] for k in range(len(ids))]
    elif kind == ROWS:
        data = [Row(*row) for _, *row in zip(ids, *data, strict=True)]
    elif kind == ASKED and not all(KINDS[request].recorded for request, *_ in data):
        raise ValueError("not a request that can be recorded")
    elif kind not in _PER_ENV:
        raise ValueError(f"unknown kind {kind!r}")
    if len(data) != len(ids):
        raise ValueError("not one entry for each env")
    return Event(kind, ids, data)
