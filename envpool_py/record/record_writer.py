"""``RecordWriter`` writes the record of a pool; ``file_format`` has the format.

Each chunk is written with one system call: that of a request before the request is sent, that of a
batch before the batch is returned. If the program is killed, everything that was finished is in the
file, and an incomplete last chunk is recognised by its length.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py.env.block import Block
from envpool_py.env.request import KINDS, Request
from envpool_py.env.spaces import Array
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError, warn
from envpool_py.interrupts import ordinary
from envpool_py.record import digest, file_format, plain_codec
from envpool_py.record.file_format import describe


class RecordWriter:
    """Write the record of one pool to ``path``, which must not exist; only its owner can read it.

    The calls for each env are in the order of events: ``requests`` before a request is sent; then
    exactly one of ``rows``, ``failed`` and ``cancelled``, unless the env is ``recreated``. A
    TypeError, of a value that only pickle supports, refuses the requests of the call.
    """

    def __init__(self, block: Block, path: Path, header: Mapping[str, Any]) -> None:
        self._block = block
        self._path = path
        spec = block.spec
        self._all_ids = list(range(spec.num_envs))
        layouts = {"observations": describe(spec.obs), "actions": describe(spec.action)}
        facts = {"version": file_format.VERSION, **header, **layouts}
        private = functools.partial(os.open, mode=0o600)
        self._file = open(path, "xb", buffering=0, opener=private)  # noqa: SIM115 - see close
        self._append(file_format.HEADER, json.dumps(facts).encode(), before=file_format.MAGIC)
        self._start_position = 0 if self._file.closed else self._file.tell()

    def close(self) -> None:
        """Write that the run has ended here, close the file, and let go of the block.

        Without a request, as if its pool could not be made, the file is removed.
        """
        if not self._file.closed and self._file.tell() == self._start_position:
            self._path.unlink(missing_ok=True)
        self._write(file_format.CLOSED, [], [])
        self._file.close()
        vars(self).pop("_block", None)

    def _write(self, kind: bytes, ids: Sequence[int] | IdArray, data: Any) -> None:
        listed = [int(i) for i in ids]
        self._append(kind, plain_codec.encode([None if listed == self._all_ids else listed, data]))

    def _append(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
        if self._file.closed:
            return
        crc = zlib.crc32(body, zlib.crc32(kind))
        data = memoryview(before + file_format.CHUNK_HEAD.pack(len(body), crc, kind) + body)
        try:
            while data:
                data = data[self._file.write(data) :]
        except ordinary(OSError) as error:
            # A full disk must not end the run.
            self._file.close()
            text = f"record: {self._path} ends here, the pool goes on without it: {error}"
            warn(text, RuntimeWarning)

    def requests(self, ids: IdArray, requests: Sequence[Request] | None) -> None:
        """Write requests that are answered by a row; None: steps whose actions are in the block."""
        if requests is None and (actions := self._block.object_actions) is not None:
            requests = [Request("step", (actions[i],)) for i in ids.tolist()]
        if requests is None:
            arrays = [array for array in self._block.actions if array is not None]
            self._write(file_format.STEPS, ids, [_narrowed(array[ids]) for array in arrays])
        else:
            self._write(file_format.REQUESTS, ids, _entries(ids.tolist(), requests))

    def rows(
        self,
        ids: IdArray,
        parts: list[Any],
        reward: Array,
        terminated: Array,
        truncated: Array,
        *,
        resets: bool,
    ) -> None:
        """Write rows before they are returned; ``parts``: an array ``(k, ...)`` per leaf.

        ``resets``: the infos of rows of resets have ``is_reset``.
        """
        digests = digest.of_observations(self._block.obs_leaves, parts, len(ids))
        columns = [np.array(digests, np.uint32), terminated, truncated, _narrowed(reward)]
        self._write(file_format.ROWS if resets else file_format.RESET_ROWS, ids, columns)

    def failed(self, errors: Mapping[int, EnvError], *, raised: bool) -> None:
        """Write errors before they are raised, or when recovery handles them."""
        kind = file_format.RAISED if raised else file_format.RECOVERED
        facts = [(type(e).__name__, e.text, e.request, e.env_ids) for e in errors.values()]
        self._write(kind, list(errors), facts)

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Write that requests were cancelled; some are carried out anyway."""
        self._write(file_format.CANCELLED, ids, list(carried_out))

    def recreated(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Write that envs were recreated and configured by these requests."""
        names = ("root", "episode", "restarts")
        facts = [{name: request.kwargs[name] for name in names} for request in requests]
        self._write(file_format.RECREATED, ids, facts)

    def ask_writer(self, ids: Sequence[int], requests: Sequence[Request]) -> Callable[..., object]:
        """Check requests without a row; the result, ``write(failed, dropped)``, is called later.

        If the requests may change an env, they are written then, but for those of envs that
        ``dropped`` them. Those that ``failed`` have raised, or nobody has seen their reply.
        """
        if not requests or not KINDS[requests[0].kind].recorded:
            return lambda *_: None
        entries = dict(zip(ids, _entries(ids, requests), strict=True))

        def write(failed: Collection[int] = (), dropped: Collection[int] = ()) -> None:
            begun = [i for i in ids if i not in dropped]
            self._write(file_format.ASKED, begun, [(*entries[i], i in failed) for i in begun])

        return write


def _entries(ids: Sequence[int], requests: Sequence[Request]) -> list[tuple[Any, ...]]:
    """Return the fields of each request; a function is replaced by its name."""
    entries: list[tuple[Any, ...]] = []
    for i, request in zip(ids, requests, strict=True):
        kind, args, kwargs, error, no_autoreset = request
        if kind in ("apply", "env_fn"):
            args, kwargs = (getattr(args[0], "__qualname__", repr(args[0])),), {}
        elif kind == "lost_step":  # a replay has its own observation
            args = ()
        entries.append((kind, args, dict(kwargs), error, *((True,) if no_autoreset else ())))
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
