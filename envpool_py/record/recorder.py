"""``record="FILE"``: the file format, the recorder that writes it, the function that reads it.

A record holds every request of a pool that may change an env and, for each row, enough to check a
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

import contextlib
import functools
import json
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from envpool_py.env import spaces
from envpool_py.env.block import Block
from envpool_py.env.request import KINDS, Request
from envpool_py.env.spaces import Array
from envpool_py.errors import EnvError, warn
from envpool_py.ids import IdArray
from envpool_py.record import digest, plain_codec

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 5

_CHUNK_HEAD = struct.Struct("<IIc")

# The kinds of chunks. The comments say what an event holds for each env.
HEADER = b"h"
STEPS = b"s"  #: steps are sent: the leaves of the action; in the file an array for each leaf
REQUESTS = b"r"  #: other requests with a row are sent: the first four fields of ``Request``
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


class Recorder:
    """Write the record of one pool to ``path``, which must not exist; only its owner can read it.

    The calls for each env are in the order of events: ``requests`` before a request is sent; then
    exactly one of ``rows``, ``failed`` and ``cancelled``, unless the env is ``recreated``. A
    TypeError, of a value that only pickle supports, refuses the requests of the call.
    """

    def __init__(self, block: Block, path: Path, header: Mapping[str, Any]) -> None:
        self._block = block
        self._path = path
        spec = block.spec
        self._all = list(range(spec.num_envs))
        layouts = {"observations": describe(spec.obs), "actions": describe(spec.action)}
        facts = {"version": VERSION, **header, **layouts}
        private = functools.partial(os.open, mode=0o600)
        self._file = open(path, "xb", buffering=0, opener=private)  # noqa: SIM115 - see close
        self._append(HEADER, json.dumps(facts).encode(), before=MAGIC)

    def close(self) -> None:
        """Write that the run has ended here, close the file, and let go of the block."""
        self._write(CLOSED, [], [])
        self._file.close()
        vars(self).pop("_block", None)

    def _write(self, kind: bytes, ids: Sequence[int] | IdArray, data: Any) -> None:
        listed = [int(i) for i in ids]
        self._append(kind, plain_codec.encode([None if listed == self._all else listed, data]))

    def _append(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
        if self._file.closed:
            return
        crc = zlib.crc32(body, zlib.crc32(kind))
        data = memoryview(before + _CHUNK_HEAD.pack(len(body), crc, kind) + body)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            # A full disk must not end the run.
            self._file.close()
            text = f"record: {self._path} ends here, the pool goes on without it: {error}"
            warn(text, RuntimeWarning)

    def requests(self, ids: IdArray, requests: Sequence[Request] | None) -> None:
        """Write requests that are answered by a row; None: steps whose actions are in the block."""
        if requests is None:
            arrays = [array for array in self._block.actions if array is not None]
            self._write(STEPS, ids, [_narrowed(array[ids]) for array in arrays])
        else:
            self._write(REQUESTS, ids, _entries(ids.tolist(), requests))

    def rows(
        self, ids: IdArray, parts: list[Any], reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Write rows before they are returned; ``parts``: an array ``(k, ...)`` per leaf."""
        digests = digest.of_observations(self._block.obs_leaves, parts, len(ids))
        columns = [np.array(digests, np.uint32), terminated, truncated, _narrowed(reward)]
        self._write(ROWS, ids, columns)

    def failed(self, errors: Mapping[int, EnvError], *, raised: bool) -> None:
        """Write errors before they are raised, or when recovery handles them."""
        kind = RAISED if raised else RECOVERED
        facts = [(type(e).__name__, e.text, e.request, e.env_ids) for e in errors.values()]
        self._write(kind, list(errors), facts)

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Write that requests were cancelled; some are carried out anyway."""
        self._write(CANCELLED, ids, list(carried_out))

    def recreated(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Write that envs were recreated and configured by these requests."""
        names = ("root", "episode", "restarts")
        lives = [{name: request.kwargs[name] for name in names} for request in requests]
        self._write(RECREATED, ids, lives)

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """Check requests without a row; the result is called with the envs that failed.

        If the requests may change an env, they are written then. A request that timed out in the
        caller has not failed if a process still carries it out. A request that was interrupted has
        failed.
        """
        if not requests or not KINDS[requests[0].kind].recorded:
            return None
        entries = _entries(ids, requests)

        def write(failed: Sequence[int]) -> None:
            pairs = zip(ids, entries, strict=True)
            self._write(ASKED, ids, [(*entry, i in failed) for i, entry in pairs])

        return write


def _entries(ids: Sequence[int], requests: Sequence[Request]) -> list[tuple[Any, ...]]:
    """Return kind, arguments and error of each request; a function is replaced by its name."""
    entries: list[tuple[Any, ...]] = []
    for i, request in zip(ids, requests, strict=True):
        kind, args, kwargs, error, _ = request
        if kind in ("apply", "env_fn"):
            args, kwargs = (getattr(args[0], "__qualname__", repr(args[0])),), {}
        elif kind == "lose":  # a replay has its own observation
            args = ()
        entries.append((kind, args, dict(kwargs), error))
        try:
            plain_codec.encode(entries[-1])
        except TypeError as reason:
            what = "action" if kind == "step" else kind
            raise TypeError(
                f"env {i}: {what} can't be recorded: {reason}, which only pickle supports;"
                " a record holds numbers, strings, arrays, and lists, tuples and dicts of them"
            ) from reason
    return entries


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


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Generator[Event, None, None]]:
    """Read the facts of a recorded pool, and its events up to the last complete chunk.

    ValueError: no record, or of another version; the iterator raises it where a chunk is corrupt.
    """
    kind, _, body = next(_chunks(Path(path)), (b"", 0, b""))
    if kind != HEADER:
        raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")
    header = json.loads(body)
    if header["version"] != VERSION:
        text = f"{path}: a record of version {header['version']}, not {VERSION}"
        raise ValueError(f"{text}; read it with the release that wrote it")
    return header, _events(Path(path), header["num_envs"])


def count_batches(path: str | os.PathLike[str]) -> int:
    """Count the batches of a record, up to the last chunk that is not corrupt."""
    count = 0
    with contextlib.suppress(ValueError):
        for kind, _, _ in _chunks(Path(path)):
            count += kind == ROWS
    return count


def _events(path: Path, num_envs: int) -> Generator[Event, None, None]:
    for kind, at, body in _chunks(path):
        if kind == HEADER:
            continue
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
        while len(head := file.read(_CHUNK_HEAD.size)) == _CHUNK_HEAD.size:
            length, crc, kind = _CHUNK_HEAD.unpack(head)
            at = file.tell() - len(head)
            # Checked before the read, so that a wrong length does not allocate memory.
            if at + len(head) + length > size:
                return
            body = file.read(length)
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise ValueError(f"{path}: the chunk at byte {at} is corrupt")
            yield kind, at, body
