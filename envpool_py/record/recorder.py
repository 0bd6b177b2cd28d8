"""``Recorder``: the observer that writes the file of ``record="FILE"``; see ``reader``."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envpool_py import spaces
from envpool_py.engine import Engine
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.observers import Observer, Rows, Steps
from envpool_py.record import digest, plain_codec, reader
from envpool_py.spaces import Array
from envpool_py.worker.base import Request


class Recorder(Observer):
    """Write the record of one pool to ``path``, which must not exist; only its owner can read it.

    If several observers may refuse a request, put the recorder first: the others then see only
    requests that are sent.

    Args:
        header: the facts of the pool, as JSON values. ``replay`` needs ``num_envs``,
            ``autoreset_mode``, ``columns``, ``validate``, ``reset_first``, ``episode_seeds`` and
            ``reset_fn`` (both bool), and ``roots`` (the root seed of each env, or None).
    """

    def __init__(self, engine: Engine, path: Path, header: Mapping[str, Any]) -> None:
        spec = engine.block.spec
        self._engine = engine
        self._path = path
        self._leaves = spaces.leaves(spec.obs)
        facts = {
            "version": reader.VERSION,
            **header,
            "observations": reader.layout_json(spec.obs),
            "actions": reader.layout_json(spec.action),
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd: int | None = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        self._append(reader.HEADER, json.dumps(facts).encode(), before=reader.MAGIC)

    def close(self) -> None:
        """Write that the run has ended here, and close the file."""
        self._write(reader.CLOSED, [], [])
        self._stop()

    def _stop(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, kind: bytes, ids: Sequence[int] | IdArray, data: Any) -> None:
        listed = None if ids is self._engine.all_ids else [int(i) for i in ids]
        self._append(kind, plain_codec.encode([listed, data]))

    def _append(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
        if self._fd is None:
            return
        crc = zlib.crc32(body, zlib.crc32(kind))
        data = b"".join((before, reader.CHUNK_HEAD.pack(len(body), crc, kind), body))
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            # A full disk must not end the run.
            self._stop()
            text = f"record: {self._path} ends here, the pool goes on without: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def steps(self, ids: IdArray, steps: Steps) -> None:
        """Write the actions; TypeError: an action has a type that only pickle supports."""
        if steps.columns is not None:
            self._write(reader.STEPS, ids, [_narrowed(column) for column in steps.columns])
        else:
            _check(ids, steps.actions, "action")
            self._write(reader.PLAIN_STEPS, ids, steps.actions)

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """Write the arguments; TypeError: an option has a type that only pickle supports."""
        arguments = [dict(request.kwargs) for request in requests]
        _check(ids, arguments, "reset")
        self._write(reader.RESETS, ids, arguments)

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """Write rewards, flags and digests."""
        digests = digest.of_observations(self._leaves, rows.parts, len(ids))
        flags = rows.terminated.view(np.uint8) + 2 * rows.truncated.view(np.uint8)
        if rows.reward.dtype == object:
            reward: Any = [np.asarray(one, np.float64) for one in rows.reward]
        else:
            reward = _narrowed(rows.reward)
        notes = self._notes(ids, rows)
        fields = [np.array(digests, np.uint32), flags, reward, rows.marked, notes]
        self._write(reader.ROWS, ids, fields)

    def _notes(self, ids: IdArray, rows: Rows) -> dict[int, tuple[Any, ...]]:
        if not (rows.notes or rows.asked or rows.lost):
            return {}
        found = {}
        for i in ids.tolist():
            added = dict(rows.notes.get(i, {}))
            if "final_obs" in added:  # a replay has the last observation itself
                added["final_obs"] = None
            resets = [
                (episode, seed, None if options is None else dict(options))
                for episode, seed, options in rows.asked.get(i, [])
            ]
            # A replay calls its own reset_fn for results that a record cannot hold.
            notes = i in rows.lost, added, [one for one in resets if _refusal(one) is None]
            if any(notes):
                found[i] = notes
        return found

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """Write which errors are raised."""
        self._write(reader.RAISED, list(errors), [_fault(error) for error in errors.values()])

    def recovered(self, i: int, error: EnvError) -> None:
        """Write which error is handled by recovery."""
        self._write(reader.RECOVERED, [i], [_fault(error)])

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Write which requests are cancelled."""
        self._write(reader.CANCELLED, ids, list(carried_out))

    def recreated(self, ids: Sequence[int]) -> None:
        """Write which envs were recreated, and with which episode they continue."""
        places = [list(self._engine.block.schedule(i)[:2]) for i in ids]
        self._write(reader.RECREATED, ids, places)

    def asks(
        self, ids: Sequence[int], requests: Sequence[Request]
    ) -> Callable[[Sequence[int]], object] | None:
        """Write a request that may change an env, after it has ended.

        Raises:
            TypeError: an argument has a type that only pickle supports.
        """
        kind = requests[0].kind if requests else ""
        if kind not in reader.EFFECTS:
            return None
        arguments: list[tuple[Any, ...]]
        if kind == "apply":
            function = requests[0].args[0]
            name = getattr(function, "__qualname__", repr(function))
            arguments = [((name,), {})] * len(ids)
        else:
            arguments = [(tuple(request.args), dict(request.kwargs)) for request in requests]
        _check(ids, arguments, kind)

        def write(failed: Sequence[int]) -> None:
            asked = [(kind, *one, i in failed) for i, one in zip(ids, arguments, strict=True)]
            self._write(reader.ASKED, ids, asked)

        return write


def _fault(error: EnvError) -> tuple[Any, ...]:
    return type(error).__name__, str(error), error.request, error.env_ids


def _refusal(value: Any) -> TypeError | None:
    """The error that ``plain_codec`` raises for a value, or None."""
    try:
        plain_codec.encode(value)
    except TypeError as error:
        return error
    return None


def _check(ids: Sequence[int] | IdArray, values: Sequence[Any], what: str) -> None:
    """Raise a TypeError that names the env of a value that only pickle supports."""
    for i, value in zip(ids, values, strict=True):
        error = _refusal(value)
        if error is not None:
            raise TypeError(
                f"env {i}: {what} can't be recorded: {error}, which only pickle supports;"
                " a record holds numbers, strings, arrays, and lists, tuples and dicts of them"
            )


def _narrowed(column: Array) -> Array:
    """The same numbers as float32 or in one byte each, where no number changes."""
    narrow = np.dtype(np.float32 if column.dtype.kind == "f" else np.uint8)
    if column.dtype.kind not in "iuf" or column.dtype.itemsize <= narrow.itemsize:
        return column
    with np.errstate(over="ignore"):
        short = column.astype(narrow)
    return short if (short == column).all() else column
