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
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from envpool_py.env import spaces
from envpool_py.env.request import KINDS
from envpool_py.options import ALWAYS, FIRST, OFF, autoreset_mode_of
from envpool_py.record import plain_codec
from envpool_py.record.untrusted_files import field, is_int, open_file, require

MAGIC = b"envpool_py record\n"
#: Incremented with every change that an older reader cannot read.
VERSION = 6

CHUNK_HEAD = struct.Struct("<IIc")

# The kinds of chunks. The comments say what an event holds for each env.
HEADER = b"h"
STEPS = b"s"  #: steps are sent: the leaves of the action; in the file an array for each leaf
REQUESTS = b"r"  #: other requests with a row: kind, arguments, error, ``no_autoreset`` if True
ROWS = b"o"  #: rows are returned: ``Row``; in the file column by column
RESET_ROWS = b"i"  #: ``reset`` has returned rows: likewise; their infos have no ``is_reset``
RAISED = b"e"  #: errors are raised: the name of the class, the text, the request, all env ids
RECOVERED = b"x"  #: an error is handled by recovery: likewise
RECREATED = b"m"  #: envs are recreated: some arguments of ``Executor.configure``
CANCELLED = b"c"  #: requests are cancelled: whether the request is carried out anyway
ASKED = b"a"  #: requests without a row have ended: as ``REQUESTS``, and whether it failed
CLOSED = b"z"  #: the pool is closed

_LEAST_ARGUMENTS = {"step": 1, "set_attr": 2, "call": 1, "apply": 1, "env_fn": 1}  # positional

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


def is_record(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a record does; ValueError if it is no regular file."""
    with open_file(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Generator[Event, None, None]]:
    """Read the facts of a recorded pool, and its events up to the last complete chunk.

    ValueError: no record, of another version, or damaged; the iterator raises it at a bad chunk.
    """
    chunks = _chunks(Path(path))
    kind, _, body = next(chunks, (b"", 0, b""))
    if kind != HEADER:
        raise ValueError(f"{path}: not a record of a pool, or cut off within its first chunk")
    with field(f"{path}: damaged: the first chunk"):
        header = json.loads(body)
        version = header["version"]
    if version != VERSION:
        text = f"{path}: a record of version {version!r:.80}, not {VERSION}"
        raise ValueError(f"{text}; read it with the release that wrote it")
    _check_header(header, path)
    return header, _events(path, chunks, header["num_envs"])


def is_env(env: Any) -> bool:
    """Whether this is the name of an env in a header: the texts that make it."""
    if not isinstance(env, dict):
        return False
    kinds = [type(env.get(name)) for name in ("env", "wrappers", "env_kwargs")]
    if kinds != [str, list, dict]:
        return False
    return all(isinstance(text, str) for text in [*env["wrappers"], *env["env_kwargs"].values()])


def _check_header(header: dict[str, Any], path: Any) -> None:
    num_envs = len(header["roots"]) if isinstance(header.get("roots"), list) else 0
    checks: dict[str, Callable[[Any], object]] = {
        "roots": lambda roots: all(root is None or is_int(root) for root in roots),
        "num_envs": lambda number: is_int(number, 1) and number == num_envs,
        "autoreset_mode": lambda mode: mode is None or autoreset_mode_of(mode) == mode,
        "validate": lambda rows: rows in (FIRST, ALWAYS, OFF),
        "recycle": lambda number: number is None or is_int(number, 1),
        **dict.fromkeys(("columns", "reset_first", "episode_seeds"), lambda one: one in (0, 1)),
        **dict.fromkeys(
            ("on_error", "pool", "observations", "actions"),
            lambda text: isinstance(text, str),
        ),
    }
    for name, check in checks.items():
        with field(f"{path}: damaged: {name}"):
            require(check(header[name]), f"got {header[name]!r:.80}")


def count_batches(path: str | os.PathLike[str]) -> int:
    """Count the batches of a record, up to the last chunk that is not corrupt."""
    count = 0
    with contextlib.suppress(ValueError):
        for kind, _, _ in _chunks(Path(path)):
            count += kind in (ROWS, RESET_ROWS)
    return count


def _events(path: Any, chunks: Iterable[Any], num_envs: int) -> Generator[Event, None, None]:
    for kind, at, body in chunks:
        with field(f"{path}: the chunk at byte {at} is corrupt"):
            ids, data = plain_codec.decode(body)
            ids = list(range(num_envs)) if ids is None else ids
            require(all(is_int(i, 0, num_envs) for i in ids), "the ids of envs")
            require(len(set(ids)) == len(ids), "an id is there twice")
            if kind == STEPS:
                require(all(len(column) == len(ids) for column in data), "the number of actions")
                data = [[column[k] for column in data] for k in range(len(ids))]
            elif kind in (ROWS, RESET_ROWS):
                kinds = ["".join(column.dtype.kind for column in data)]
                require(kinds[0] in ("ubbf", "ubbu", "ubbi"), f"dtypes of rows: {kinds}")
                columns = [column.tolist() for column in data]
                data = [Row(*row) for _, *row in zip(ids, *columns, strict=True)]
            else:
                require(len(data) == len(ids), f"{len(data)} entries for {len(ids)} envs")
                for entry in data:
                    _check_entry(kind, entry)
        yield kind, ids, data


def _check_entry(kind: bytes, entry: Any) -> None:
    """Check what an event other than steps and rows holds for one env."""
    if kind in (RAISED, RECOVERED):
        *texts, ids = entry
        require(list(map(type, texts)) == [str] * 3 and ids, "the facts of an error")
        require(all(map(is_int, ids)), "the ids of an error")
    elif kind in (REQUESTS, ASKED):
        asked, args, kwargs = entry[:3]
        types = [type(each) for each in entry]
        flags = ([bool],) if kind == ASKED else ([], [bool])
        require(types[:4] == [str, tuple, dict, str] and types[4:] in flags, f"fields {types}")
        require(asked in KINDS, f"the request {asked!r:.80}")
        is_asked = KINDS[asked].recorded
        require(is_asked if kind == ASKED else KINDS[asked].has_row, f"the request {asked}")
        require(all(type(name) is str for name in kwargs), "the names of arguments")
        require(len(args) >= _LEAST_ARGUMENTS.get(asked, 0), f"the arguments of {asked}")
        seed = kwargs.get("seed")
        require(seed is None or is_int(seed), f"the seed {seed!r:.80}")
        if is_asked:  # a file must not reach into Python's own methods
            is_name = type(args[0]) is str and args[0].isprintable() and args[0][:2] != "__"
            require(is_name, f"{asked} of {args[0]!r:.80}")
    elif kind == RECREATED:
        require(entry.keys() == {"root", "episode", "restarts"}, "the facts of a restart")
        is_known = is_int(entry["restarts"], 0, 1 << 32) and is_int(entry["root"] or 0)
        is_known &= is_int(entry["episode"], -1, 1 << 32)  # -1: before the first reset
        require(is_known, f"the facts of a restart: {entry!r:.80}")
    else:
        require(kind == CANCELLED and type(entry) is bool, f"an entry of the kind {kind!r}")


def _chunks(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the kind, the position in the file and the body of each complete chunk."""
    with open_file(path) as file:
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
