"""The file of ``record="FILE"``: what a pool asked of its envs, and what came of it, as it ran.

The file begins with ``MAGIC``; then come chunks: the length of the body and the CRC-32 of all that
follows it (two unsigned 32-bit numbers), one byte that says what it is, and the body. A chunk goes
to the system in one write: that of a request before it is sent, that of a batch before it is handed
out. So what was finished when the program was killed is there, and a last chunk that is cut is
known by its length. Numbers are little-endian; nothing is pickled, see ``envpool_py.plain``.

======= ====================== ====================================================================
chunk   what                   body
======= ====================== ====================================================================
``h``   the pool               JSON; the first chunk, and no other
``s``   steps are sent         ids, then the actions leaf by leaf
``p``   the same               ids, then the actions one by one, as a plain list
``r``   resets are sent        ids, then their arguments, as a plain list of dicts
``o``   rows are handed out    ids, digests (u4), flags (u1), rewards (f4, f8), and what is told
``e``   errors are raised      plain list of ``Fault`` as tuples
``x``   an error is taken out  the same
``m``   envs are made anew     ids
``c``   requests are given up  ids, then for each whether it was carried out all the same (u1)
``a``   attributes and calls   plain (kind, ids, one (args, kwargs) for each, ids that failed)
``z``   the pool was closed    nothing
======= ====================== ====================================================================

Ids are their number (u4), all ones for all envs in order, and then each (u4).
"""

from __future__ import annotations

import json
import os
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py import digest, plain, spaces
from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.ids import IdArray
from envpool_py.journal import Journal, Rows, Steps
from envpool_py.rows import Shape
from envpool_py.spaces import Array
from envpool_py.worker.base import Request

MAGIC = b"envpool_py record\n"
#: Raised with every change that a reader must know of.
VERSION = 1

HEADER, STEPS, PLAIN_STEPS, RESETS, ROWS = b"h", b"s", b"p", b"r", b"o"
RAISED, TAKEN, MADE, CANCELLED, ASKS, CLOSED = b"e", b"x", b"m", b"c", b"a", b"z"

_HEAD = struct.Struct("<IIc")
_COUNT = struct.Struct("<I")
_EVERYTHING = 0xFFFFFFFF
_NO_COUNT = _COUNT.pack(_EVERYTHING)
# In the byte that follows the ids of rows.
_MARKED, _PLAIN_REWARDS, _TOLD, _SHORT_REWARDS = 1, 2, 4, 8
# How the actions of one leaf are written: in their dtype, or in one byte each.
_AS_THEY_ARE, _AS_BYTES = b"=", b"B"
# What is asked without a row and may change an env. What can't be written of it is its name alone.
_EFFECTS = frozenset({"seed", "set_attr", "call", "apply"})


class Fault(NamedTuple):
    """The error of one env; ``met``: the env raised it, and will raise it again.

    ``env_ids``: those of the error, which the death of a process has more of.
    """

    env_id: int
    kind: str
    text: str
    met: bool
    env_ids: tuple[int, ...]


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a record that is to be written.

    Raises:
        FileExistsError: there is a file; a record is never overwritten.
        FileNotFoundError: there is no such directory.
        TypeError: no path.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"record must be the path of a file, got {type(path).__name__}")
    found = Path(path)
    if os.path.lexists(found):
        raise FileExistsError(
            f"record: {found} exists, and a record is never overwritten; move it, or name another"
        )
    if not found.parent.is_dir():
        raise FileNotFoundError(f"record: {found.parent} is no directory")
    return found


# -------------------------------------------------------------------------------------- writing


class Recorder(Journal):
    """Writes the record of one pool.

    Args:
        path: the file, which must not exist; only its owner may read it.
        header: the facts of the pool, as JSON has them.
        shape: of the pool's block.
        everything: the ids of all envs, in order, by the array that stands for them.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], shape: Shape, everything: IdArray
    ) -> None:
        num_envs = header["num_envs"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._path = path
        self._everything = everything
        # Of each env: whether it carries out a request for a row.
        self._busy = np.zeros(num_envs, dtype=np.bool_)
        facts = {
            "version": VERSION,
            **header,
            "observations": layout_json(shape.obs),
            "actions": layout_json(shape.action),
        }
        text = json.dumps(facts).encode()
        self._fd: int | None = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        self._write(HEADER, text, before=MAGIC)

    def close(self) -> None:
        """Say that the run has ended here, and close the file."""
        self._write(CLOSED, b"")
        self.abandon()

    def abandon(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
        if self._fd is None:
            return
        crc = zlib.crc32(body, zlib.crc32(kind))
        data = b"".join((before, _HEAD.pack(len(body), crc, kind), body))
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            # The run is worth more than its record.
            self.abandon()
            text = f"record: {self._path} ends here, the pool goes on without: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _ids(self, ids: Any) -> bytes:
        if ids is self._everything or (
            len(ids) == len(self._everything) and bool((ids == self._everything).all())
        ):
            return _NO_COUNT
        return _COUNT.pack(len(ids)) + np.asarray(ids, "<u4").tobytes()

    def steps(self, ids: IdArray, steps: Steps) -> Callable[[], object]:
        """Write what these envs are asked for.

        Raises:
            TypeError: an action can't be written without pickle.
        """
        head = self._ids(ids)
        if steps.columns is None:
            # One by one, so that the env can be named.
            parts = [
                _encoded(action, f"env {i}: action")
                for i, action in zip(ids.tolist(), steps.actions, strict=True)
            ]
            body = head + plain.encode(parts)
            return lambda: self._begin(ids, PLAIN_STEPS, body)
        body = head + b"".join([_packed(column) for column in steps.columns])
        return lambda: self._begin(ids, STEPS, body)

    def resets(self, ids: list[int], requests: Sequence[Request]) -> Callable[[], object]:
        """Write what these envs are asked for.

        Raises:
            TypeError: an option can't be written without pickle.
        """
        parts = [
            _encoded(dict(request.kwargs), f"env {i}: reset")
            for i, request in zip(ids, requests, strict=True)
        ]
        body = self._ids(ids) + plain.encode(parts if any(r.kwargs for r in requests) else None)
        return lambda: self._begin(ids, RESETS, body)

    def _begin(self, ids: Any, kind: bytes, body: bytes) -> None:
        self._write(kind, body)
        self._busy[ids] = True

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """Write what is handed out."""
        told: dict[int, Any] = {}
        for i in ids.tolist() if rows.told or rows.asked or rows.lost else ():
            own = (i in rows.lost, _tellable(rows.told.get(i, {})), _known(rows.asked.get(i, [])))
            if any(own):
                told[i] = own
        what = _MARKED * rows.marked
        reward = rows.reward
        if reward.dtype == object:
            what |= _PLAIN_REWARDS
            rewards = plain.encode([np.asarray(one, np.float64) for one in reward])
            rewards = _COUNT.pack(len(rewards)) + rewards
        else:
            size = reward.nbytes // max(len(ids), 1) // 8
            with np.errstate(over="ignore"):
                short = reward.astype(np.float32)
            if (short == reward).all():
                what |= _SHORT_REWARDS
                reward = short
            rewards = _COUNT.pack(size) + _little(reward).tobytes()
        flags = rows.terminated.view(np.uint8) + 2 * rows.truncated.view(np.uint8)
        parts = [
            self._ids(ids),
            bytes([what | _TOLD * bool(told)]),
            digest.fold(rows.digests).tobytes(),
            flags.tobytes(),
            rewards,
        ]
        if told:
            parts.append(plain.encode(told))
        self._write(ROWS, b"".join(parts))
        self._busy[ids] = False

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """Write which errors are raised."""
        self._write(RAISED, plain.encode([self._fault(i, error) for i, error in errors.items()]))

    def taken(self, i: int, error: EnvError) -> None:
        """Write which error is taken out."""
        self._write(TAKEN, plain.encode([self._fault(i, error)]))

    def _fault(self, i: int, error: EnvError) -> tuple[Any, ...]:
        died = isinstance(error, (WorkerDiedError, EnvTimeoutError))
        met = bool(self._busy[i]) and not died and error.request in ("step", "reset")
        self._busy[i] = False
        return i, type(error).__name__, str(error), met, error.env_ids

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Write what is given up."""
        self._write(CANCELLED, self._ids(ids) + bytes(carried_out))
        self._busy[list(ids)] = False

    def made(self, ids: Sequence[int]) -> None:
        """Write which envs are new."""
        self._write(MADE, self._ids(ids))

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object]:
        """Write what may change an env, once it is done.

        Raises:
            TypeError: an argument can't be written without pickle.
        """
        kind = requests[0].kind if requests else ""
        if kind not in _EFFECTS:
            return lambda _: None
        if kind == "apply":
            name = getattr(requests[0].args[0], "__qualname__", repr(requests[0].args[0]))
            own: list[Any] = [((name,), {})] * len(ids)
        else:
            own = [(tuple(request.args), dict(request.kwargs)) for request in requests]
        if kind != "seed":  # one request for all
            _encoded(own[0], f"env {ids[0]}: {kind}")

        def note(failed: Sequence[int]) -> None:
            self._write(ASKS, plain.encode((kind, list(ids), own, list(failed))))

        return note


def _encoded(value: Any, what: str) -> Any:
    """``value``, which can be encoded.

    Raises:
        TypeError: it can't.
    """
    try:
        plain.encode(value)
    except TypeError as error:
        raise TypeError(
            f"{what} can't be recorded: {error}, which only pickle could take; a record holds"
            " numbers, strings, arrays, and lists, tuples and dicts of them"
        ) from None
    return value


def _little(column: Array) -> Array:
    """As little-endian numbers, in C order."""
    if sys.byteorder == "little" and column.dtype.isnative:
        return column
    return np.ascontiguousarray(column, column.dtype.newbyteorder("<"))


def _packed(column: Array) -> bytes:
    """The actions of one leaf; most integers take one byte."""
    if column.dtype.kind in "iu" and column.dtype.itemsize > 1:
        short = column.astype(np.uint8)
        if (short == column).all():
            return _AS_BYTES + short.tobytes()
    return _AS_THEY_ARE + _little(column).tobytes()


def _tellable(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, without the last observation: whoever replays has it."""
    return {key: None if key == "final_obs" else value for key, value in told.items()}


def _known(asked: Sequence[tuple[int, int | None, Any]]) -> list[tuple[int, int | None, Any]]:
    """What can be written of what ``reset_fn`` returned."""
    known = []
    for episode, seed, options in asked:
        own = (episode, seed, None if options is None else dict(options))
        try:
            plain.encode(own)
        except TypeError:  # the run goes on; who replays it must bring the function along
            continue
        known.append(own)
    return known


def layout_json(layout: Any) -> list[Any]:
    """The leaves of a layout: (path, shape, dtype, whether it is a scalar)."""
    return [
        [
            "/".join(str(key) for key in leaf.path),
            list(leaf.shape),
            None if leaf.dtype is None else leaf.dtype.newbyteorder("<").str,
            leaf.scalar,
        ]
        for leaf in spaces.leaves(layout)
    ]


# -------------------------------------------------------------------------------------- reading


class Batch(NamedTuple):
    """What is written of a batch; see ``envpool_py.journal.Rows``.

    ``told``: for an env, (whether its row stands for a lost step, what a policy has added to the
    info, what ``reset_fn`` has returned).
    """

    ids: list[int]
    digests: NDArray[np.uint32]
    reward: Any
    flags: NDArray[np.uint8]
    marked: bool
    told: dict[int, tuple[bool, dict[str, Any], list[tuple[int, int | None, Any]]]]


class Event(NamedTuple):
    """One chunk: its kind, the ids, and what else there is; ``at``: its place in the file."""

    kind: bytes
    at: int
    ids: list[int]
    data: Any


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The facts of the pool.

    Raises:
        ValueError: no record, or one of a later version.
        OSError: it can't be read.
    """
    for event in _chunks(Path(path)):
        if event[0] != HEADER:
            break
        header = json.loads(event[2])
        if header["version"] != VERSION:
            raise ValueError(f"{path}: a record of version {header['version']}, not of {VERSION}")
        return dict(header)
    raise ValueError(f"{path}: not a record of a pool, or cut before its first chunk's end")


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """What happened, in order, to the last chunk that is whole.

    Raises:
        ValueError: a chunk is corrupt; what came before it was given.
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
            yield _parsed(kind, at, body, header, leaves)
        except (ValueError, LookupError, struct.error, TypeError) as error:
            raise ValueError(f"{path}: the chunk at byte {at} is corrupt: {error}") from error


def _chunks(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path}: not a record of a pool")
        size = os.fstat(file.fileno()).st_size
        while True:
            at = file.tell()
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, crc, kind = _HEAD.unpack(head)
            if at + _HEAD.size + length > size:
                return  # cut; and no memory is asked for by a length that is wrong
            body = file.read(length)
            if len(body) < length:
                return
            if zlib.crc32(body, zlib.crc32(kind)) != crc:
                raise ValueError(f"{path}: the chunk at byte {at} is corrupt")
            yield kind, at, body


def _parsed(
    kind: bytes,
    at: int,
    body: bytes,
    header: Mapping[str, Any],
    leaves: Sequence[tuple[tuple[int, ...], np.dtype[Any] | None]],
) -> Event:
    if kind in (RAISED, TAKEN):
        faults = [Fault(*entry) for entry in plain.decode(body)]
        ids = [fault.env_id for fault in faults]
        if not _are_ids(ids, header["num_envs"]):
            raise ValueError("no such env")
        return Event(kind, at, ids, faults)
    if kind == ASKS:
        what, ids, own, failed = plain.decode(body)
        if what not in _EFFECTS or len(own) != len(ids) or not _are_ids(ids, header["num_envs"]):
            raise ValueError("no request that could have been made")
        return Event(kind, at, ids, (what, own, failed))
    if kind == CLOSED:
        return Event(kind, at, [], None)
    ids, start = _parsed_ids(body, header["num_envs"])
    count = len(ids)
    if kind == STEPS:
        columns = []
        for shape, dtype in leaves:
            assert dtype is not None  # noqa: S101 - such steps are written of fixed leaves alone
            size = count * int(np.prod(shape, dtype=np.int64))
            short = body[start : start + 1] == _AS_BYTES
            column = np.frombuffer(body, np.uint8 if short else dtype, size, start + 1).reshape(
                count, *shape
            )
            start += 1 + column.nbytes
            columns.append(column.astype(dtype, copy=False))
        return Event(kind, at, ids, columns)
    if kind in (PLAIN_STEPS, RESETS):
        own = plain.decode(body[start:])
        if not (own is None and kind == RESETS) and (type(own) is not list or len(own) != count):
            raise ValueError("not one entry for each env")
        return Event(kind, at, ids, own)
    if kind == CANCELLED:
        if len(body) < start + count:
            raise ValueError("it is too short")
        return Event(kind, at, ids, [bool(byte) for byte in body[start : start + count]])
    if kind == MADE:
        return Event(kind, at, ids, None)
    if kind == ROWS:
        return Event(kind, at, ids, _parsed_rows(body, start, ids))
    raise ValueError(f"unknown kind {kind!r}")


def _are_ids(ids: Sequence[Any], num_envs: int) -> bool:
    return all(type(i) is int and 0 <= i < num_envs for i in ids)


def _parsed_ids(body: bytes, num_envs: int) -> tuple[list[int], int]:
    (count,) = _COUNT.unpack_from(body)
    if count == _EVERYTHING:
        return list(range(num_envs)), _COUNT.size
    ids = np.frombuffer(body, "<u4", count, _COUNT.size).tolist()
    if ids and max(ids) >= num_envs:
        raise ValueError("no such env")
    return ids, _COUNT.size + 4 * count


def _parsed_rows(body: bytes, at: int, ids: list[int]) -> Batch:
    count = len(ids)
    what = body[at]
    digests = np.frombuffer(body, "<u4", count, at + 1)
    at += 1 + 4 * count
    flags = np.frombuffer(body, np.uint8, count, at)
    (size,) = _COUNT.unpack_from(body, at + count)
    at += count + _COUNT.size
    reward: Any
    if what & _PLAIN_REWARDS:
        reward = plain.decode(body[at : at + size])
        at += size
    else:
        own = "<f4" if what & _SHORT_REWARDS else "<f8"
        reward = np.frombuffer(body, own, count * size, at).reshape(count, size)
        at += reward.nbytes
    told = plain.decode(body[at:]) if what & _TOLD else {}
    for lost, added, asked in told.values():
        if (type(lost), type(added), type(asked)) != (bool, dict, list):
            raise ValueError("what is told is of another form")
    return Batch(ids, digests, reward, flags, bool(what & _MARKED), told)
