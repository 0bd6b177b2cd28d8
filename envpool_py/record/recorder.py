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
from envpool_py.errors import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.ids import IdArray
from envpool_py.observers import Observer, Rows, Steps
from envpool_py.record import digest, plain_codec, reader
from envpool_py.record.reader import COUNT, Fault, Notes, ResetFnResult
from envpool_py.spaces import Array
from envpool_py.worker.base import Request


class Recorder(Observer):
    """Write the record of one pool.

    If several observers may refuse a request, put the recorder first: the others then see only
    requests that are sent.

    Args:
        engine: of the pool; its envs have been configured.
        path: the file, which must not exist; only its owner can read it.
        header: the facts of the pool, as JSON values. ``replay`` needs ``num_envs``,
            ``autoreset_mode``, ``columns``, ``validate``, ``reset_first``, ``episode_seeds`` and
            ``reset_fn`` (both bool), and ``roots`` (the root seed of each env, or None).
    """

    def __init__(self, engine: Engine, path: Path, header: Mapping[str, Any]) -> None:
        spec = engine.block.spec
        self._engine = engine
        self._path = path
        self._leaves = spaces.leaves(spec.obs)
        self._has_schedule = bool(header["episode_seeds"] or header["reset_fn"])
        # For each env whether it is carrying out a request that brings a row.
        self._in_flight = np.zeros(len(engine.all_ids), dtype=np.bool_)
        facts = {
            "version": reader.VERSION,
            **header,
            "observations": reader.layout_json(spec.obs),
            "actions": reader.layout_json(spec.action),
        }
        text = json.dumps(facts).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd: int | None = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        self._write(reader.HEADER, text, before=reader.MAGIC)

    def close(self) -> None:
        """Write that the run has ended here, and close the file."""
        self._write(reader.CLOSED, b"")
        self._stop()

    def _stop(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, kind: bytes, body: bytes, before: bytes = b"") -> None:
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

    def _encoded_ids(self, ids: Any) -> bytes:
        all_ids = self._engine.all_ids
        if ids is all_ids or np.array_equal(ids, all_ids):
            return COUNT.pack(reader.ALL_ENVS)
        return COUNT.pack(len(ids)) + np.asarray(ids, "<u4").tobytes()

    def steps(self, ids: IdArray, steps: Steps) -> None:
        """Write the actions.

        Raises:
            TypeError: an action has a type that only pickle supports.
        """
        if steps.columns is None:
            kind, body = reader.PLAIN_STEPS, _encoded(steps.actions, ids.tolist(), "action")
        else:
            kind, body = reader.STEPS, b"".join(map(_packed, steps.columns))
        self._write(kind, self._encoded_ids(ids) + body)
        self._in_flight[ids] = True

    def resets(self, ids: list[int], requests: Sequence[Request]) -> None:
        """Write the arguments of the resets.

        Raises:
            TypeError: an option has a type that only pickle supports.
        """
        arguments = [dict(request.kwargs) for request in requests]
        has_any = any(arguments)
        body = _encoded(arguments, ids, "reset") if has_any else plain_codec.encode(None)
        self._write(reader.RESETS, self._encoded_ids(ids) + body)
        self._in_flight[ids] = True

    def rows(self, ids: IdArray, rows: Rows) -> None:
        """Write rewards, flags and digests."""
        form = reader.RESETS_MARKED * rows.marked
        notes = self._notes(ids, rows)
        digests = digest.fold(digest.of_observations(self._leaves, rows.parts, len(ids)))
        flags = rows.terminated.view(np.uint8) + 2 * rows.truncated.view(np.uint8)
        if rows.reward.dtype == object:
            form |= reader.PLAIN_REWARDS
            rewards = plain_codec.encode([np.asarray(one, np.float64) for one in rows.reward])
            size = len(rewards)
        else:
            reward: Array = rows.reward.astype(np.float64, copy=False)
            size = reward.size // max(len(ids), 1)
            with np.errstate(over="ignore"):
                short = reward.astype(np.float32)
            if (short == reward).all():
                form |= reader.SHORT_REWARDS
                reward = short
            rewards = _bytes(reward)
        parts = [
            self._encoded_ids(ids),
            bytes([form | reader.HAS_NOTES * bool(notes)]),
            digests.tobytes(),
            flags.tobytes(),
            COUNT.pack(size),
            rewards,
            plain_codec.encode(notes) if notes else b"",
        ]
        self._write(reader.ROWS, b"".join(parts))
        self._in_flight[ids] = False

    def _notes(self, ids: IdArray, rows: Rows) -> dict[int, tuple[Any, ...]]:
        if not (rows.notes or rows.asked or rows.lost):
            return {}
        found = {}
        for i in ids.tolist():
            added = dict(rows.notes.get(i, {}))
            if "final_obs" in added:  # a replay has the last observation itself
                added["final_obs"] = None
            notes = Notes(i in rows.lost, added, _supported(rows.asked.get(i, [])))
            if any(notes):
                found[i] = tuple(notes)
        return found

    def raised(self, errors: Mapping[int, EnvError]) -> None:
        """Write which errors are raised."""
        faults = [self._fault(i, error) for i, error in errors.items()]
        self._write(reader.RAISED, plain_codec.encode(faults))

    def recovered(self, i: int, error: EnvError) -> None:
        """Write which error is handled by recovery."""
        self._write(reader.RECOVERED, plain_codec.encode([self._fault(i, error)]))

    def _fault(self, i: int, error: EnvError) -> tuple[Any, ...]:
        died = isinstance(error, (WorkerDiedError, EnvTimeoutError))
        from_env = bool(self._in_flight[i]) and not died and error.request in ("step", "reset")
        self._in_flight[i] = False
        return tuple(Fault(i, type(error).__name__, str(error), from_env, error.env_ids))

    def cancelled(self, ids: Sequence[int], carried_out: Sequence[bool]) -> None:
        """Write which requests are cancelled."""
        self._write(reader.CANCELLED, self._encoded_ids(ids) + bytes(carried_out))
        self._in_flight[list(ids)] = False

    def recreated(self, ids: Sequence[int]) -> None:
        """Write which envs were recreated, and with which episode they go on."""
        body = self._encoded_ids(ids)
        if self._has_schedule:
            body += plain_codec.encode([self._engine.block.schedule(i)[:2] for i in ids])
        self._write(reader.RECREATED, body)

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
        arguments: list[tuple[tuple[Any, ...], dict[str, Any]]]
        if kind == "apply":
            function = requests[0].args[0]
            name = getattr(function, "__qualname__", repr(function))
            arguments = [((name,), {})] * len(ids)
        else:
            arguments = [(tuple(request.args), dict(request.kwargs)) for request in requests]
        if kind != "seed":  # the same arguments for all envs
            _encoded(arguments[:1], ids, kind)

        def write(failed: Sequence[int]) -> None:
            body = plain_codec.encode((kind, [int(i) for i in ids], arguments, list(failed)))
            self._write(reader.ASKED, body)

        return write


def _encoded(values: Sequence[Any], ids: Sequence[int], what: str) -> bytes:
    """The values as a plain list; a TypeError names the env of the value that is refused."""
    try:
        return plain_codec.encode(list(values))
    except TypeError:
        for i, value in zip(ids, values, strict=False):
            try:
                plain_codec.encode(value)
            except TypeError as error:
                raise TypeError(
                    f"env {i}: {what} can't be recorded: {error}, which only pickle supports;"
                    " a record holds numbers, strings, arrays, and lists, tuples and dicts of them"
                ) from None
        raise


def _supported(asked: Sequence[ResetFnResult]) -> list[ResetFnResult]:
    """The results of ``reset_fn`` that a record can hold; a replay calls its own for others."""
    found: list[ResetFnResult] = []
    for episode, seed, options in asked:
        one = (episode, seed, None if options is None else dict(options))
        try:
            plain_codec.encode(one)
        except TypeError:
            continue
        found.append(one)
    return found


def _bytes(column: Array) -> bytes:
    """The numbers in little-endian byte order and C order."""
    return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()


def _packed(column: Array) -> bytes:
    """The actions of one leaf; small integers take one byte each."""
    if column.dtype.kind in "iu" and column.dtype.itemsize > 1:
        short = column.astype(np.uint8)
        if (short == column).all():
            return reader.ONE_BYTE + short.tobytes()
    return reader.OWN_DTYPE + _bytes(column)
