"""Files of whole episodes, without pickle: one ``.npz``, or a folder of ``.npy`` files.

``docs/collect.md`` describes the format. The files of a folder grow with every episode (see
``growing``), in the order in which episodes end. An ``.npz`` is ordered by (env id, episode id);
until it is complete, its rows are in a folder beside it (see ``places``).
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py.collector import places, space_json
from envpool_py.collector.episode import Episode
from envpool_py.collector.growing import GrowingArray, header_of
from envpool_py.collector.places import FORMAT, METADATA, PACKED, Lock, folder_of
from envpool_py.collector.reader import (
    INDEX,
    NO_SEED,
    VERSION,
    Episodes,
    escaped,
    leaves_of,
    load,
    read_folder,
    spans,
)
from envpool_py.env import spaces
from envpool_py.record import plain_codec


class EpisodeWriter:
    """Writes episodes to a file one by one, in any order.

    An episode is in the file as soon as ``write`` returns: if the program is killed at any moment,
    ``load`` reads all episodes that were written. (If the machine fails, the last may be lost.)
    Memory holds one episode at a time. A ``with`` block closes the file at its end, also after an
    exception.

    Args:
        path: where to write. A path that ends in ``.npz`` becomes one file at ``close``, until then
            the episodes are in the folder ``path + ".partial"``; an older file at ``path`` is
            replaced at ``close``. Any other path is a folder that grows, for data sets that are
            too large to be copied at the end.
        observation_space: of each env.
        action_space: of each env.
        metadata: further facts to store in the file; a dict that JSON can hold.
        compress: whether to compress the ``.npz``: slower to close, much smaller for images.
        append: True: add to the file at ``path``, if there is one, or to the unfinished file of a
            run that was killed. An ``.npz`` is read and copied for this.

    Attributes:
        metadata: further facts to store; may be changed until ``close``.
        num_episodes: episodes written so far, those of ``append`` included.
        num_steps: their steps.

    Raises:
        FileExistsError: a folder is at ``path``, or ``path + ".partial"``, without ``append``; or
            the latter holds what no writer wrote.
        BlockingIOError: another writer is writing there (not noticed on Windows).
        OSError: the file can't be written there.
        TypeError: no space, or one whose values have no form of arrays; metadata unfit for JSON.
        ValueError: the file to append to has other spaces; ``compress`` without an ``.npz``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: gym.Space[Any] | None,
        action_space: gym.Space[Any] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        compress: bool = False,
        append: bool = False,
    ) -> None:
        self.metadata = dict(metadata or {})
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": space_json.to_json(observation_space),
            "action_space": space_json.to_json(action_space),
        }
        self._path = Path(os.path.realpath(path))
        self._is_npz = self._path.suffix == ".npz"
        self._compress = compress
        if compress and not self._is_npz:
            raise ValueError(f"{os.fspath(path)}: only a path that ends in .npz can be compressed")
        json.dumps(self.metadata)  # says now, not at the end, what JSON can't hold
        check_path(path, append=append)
        self._folder = folder_of(self._path)
        self._spaces = {"observations": observation_space, "actions": action_space}
        self._columns: dict[str, GrowingArray] = {}
        self._index: GrowingArray | None = None
        self.num_episodes = self.num_steps = self._info_bytes = 0
        self._closed = False
        places.finish(self._path)
        if append and self._folder.exists():
            self._lock = Lock(self._folder)
            self._go_on()
        else:
            self._begin(load(self._path, mmap=True) if append and self._path.exists() else None)

    def write(self, episode: Episode) -> None:
        """Add one episode. After an error the file has the episodes before, and takes others.

        Values are converted to the dtypes of the spaces, and extras to that of the episodes before.

        Raises:
            ValueError: its shapes or extras are not those of the spaces and of the episodes before;
                a value that its dtype or the ``max_length`` of a Text can't hold without loss; a
                seed of over 63 bits; the writer is closed.
            TypeError: values that are no numbers or texts; infos that can't be stored without
                pickle.
            OSError: the disk is full.
        """
        if self._closed:
            raise ValueError(f"{self._path}: the writer is closed")
        arrays = self._arrays(episode)
        entry = self._entry(episode, arrays)
        if self._index is None:
            self._columns = {
                name: GrowingArray.create(self._file(name), array) for name, array in arrays.items()
            }
            self._index = GrowingArray.create(self._file("episodes"), entry)
        for name, array in arrays.items():
            self._columns[name].put(int(spans(name, entry)[0][0]), array)
        # Last, so that an episode counts only when all of its arrays are there.
        self._index.put(self.num_episodes, entry)
        self.num_episodes += 1
        self.num_steps += len(episode)
        self._info_bytes += len(arrays["infos"])

    def close(self) -> None:
        """Complete the file; without an episode none is written. Idempotent.

        Raises:
            OSError: the disk is full; the episodes stay in the folder.
        """
        if self._closed:
            return
        self._closed = True
        try:
            for column in [*self._columns.values(), *([self._index] if self._index else [])]:
                column.close()
            if not self.num_episodes:
                places.remove(self._folder, self._path)
                return
            self._write_metadata()
            if self._is_npz:
                unfinished = self._folder / "packed.tmp"
                try:
                    _pack(read_folder(self._folder, mmap=True), unfinished, self._compress)
                except OSError:
                    unfinished.unlink(missing_ok=True)
                    raise
                unfinished.replace(self._folder / PACKED)
                self._folder.rename(places.packed_of(self._path))
                places.publish(self._path)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _arrays(self, episode: Episode) -> dict[str, NDArray[Any]]:
        """What is stored of an episode, by the names of the columns, in their dtypes."""
        env, steps = f"env {episode.env_id}: ", len(episode)
        arrays: dict[str, NDArray[Any]] = {}
        for what, tree, rows in (
            ("observations", episode.obs, steps + 1),
            ("actions", episode.actions, steps),
        ):
            space = self._spaces[what]
            parts = spaces.split(spaces.layout_of(space), tree, env + what)
            column = f"the column of {what[:-1]}_space"
            for (name, shape, dtype), part in zip(leaves_of(what, space), parts, strict=True):
                if dtype.kind == "U":
                    arrays[name] = _texts(part, rows, dtype, env + name, column)
                else:
                    arrays[name] = spaces.fit(part, (rows, *shape), dtype, env + name, column)
        own = f"an episode of {steps} steps"
        for name in ("terminated", "truncated"):
            flags = getattr(episode, name)
            arrays[name] = spaces.fit(flags, (steps,), np.dtype(bool), env + name, own)
        extras = {f"extras/{escaped(name)}": value for name, value in episode.extras.items()}
        for name, value in {"rewards": episode.rewards, **extras}.items():
            if name in self._columns:
                shape, dtype = self._columns[name].shape, self._columns[name].dtype
            else:
                first = np.asarray(value)
                shape, dtype = first.shape[1:], first.dtype if name in extras else np.dtype(float)
            arrays[name] = spaces.fit(value, (steps, *shape), dtype, env + name, own)
        try:
            infos = plain_codec.encode(list(episode.infos)) if episode.infos else b""
        except TypeError as error:
            raise TypeError(
                f"{env}the infos can't be written without pickle: {error}; name"
                " the keys to keep, as AsyncCollector(..., keep_infos=['action_mask'])"
            ) from None
        arrays["infos"] = np.frombuffer(infos, np.uint8)
        if self._columns and arrays.keys() != self._columns.keys():
            has, had = sorted(arrays), sorted(self._columns)
            raise ValueError(f"{env}got the arrays {has}, but the episodes before have {had}")
        return arrays

    def _entry(self, episode: Episode, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The row of the episode in the index."""
        seeds = [NO_SEED if s is None else s for s in (episode.env_seed, episode.seed)]
        if max(seeds) >= 1 << 63:
            raise ValueError(f"seed must be below 2**63 to be stored, got {max(seeds)}")
        total = arrays["rewards"].sum(axis=0)
        ints = [(name, np.int64) for name in INDEX[:-1]]
        row = np.zeros(1, [*ints, ("return", np.float64, total.shape)])
        counts = self.num_steps, self.num_steps + self.num_episodes, len(episode)
        own = *counts, episode.env_id, episode.episode_id, *seeds
        row[0] = (*own, self._info_bytes, len(arrays["infos"]), total)
        return row

    def _file(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.npy"

    def _write_metadata(self) -> None:
        text = json.dumps({**self._head, "metadata": self.metadata})
        unfinished = self._folder / "metadata.tmp"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self._folder / METADATA)

    def _begin(self, earlier: Episodes | None) -> None:
        """Make the folder, with the episodes of an ``.npz``; it has its name only when complete."""
        if earlier is not None:
            self._check_spaces(earlier)
        folder, self._folder = self._folder, places.temporary_of(self._path)
        self._folder.mkdir()
        self._lock = Lock(self._folder)
        if earlier is not None:
            self.metadata = {**earlier.metadata, **self.metadata}
            for episode in earlier:
                self.write(episode)
        self._write_metadata()
        places.remove_unfinished(self._path)  # it has no episode, as check_path has found
        self._folder = self._folder.rename(folder)

    def _go_on(self) -> None:
        """Open the columns of the folder behind their last whole episode."""
        (self._folder / PACKED).unlink(missing_ok=True)  # another will be packed
        found = read_folder(self._folder, mmap=True)
        self._check_spaces(found)
        self.metadata = {**found.metadata, **self.metadata}
        self.num_episodes, self.num_steps = len(found), found.num_steps
        self._info_bytes = int(found.table["info_bytes"].sum())
        if self.num_episodes:
            self._columns = {name: GrowingArray(self._file(name)) for name in found.columns}
            self._index = GrowingArray(self._file("episodes"))

    def _check_spaces(self, earlier: Episodes) -> None:
        for name in ("observation_space", "action_space"):
            old, new = earlier.head[name], self._head[name]
            if old != new:
                raise ValueError(
                    f"{self._path}: the episodes there have the {name} {old}, but these {new}"
                )


def save(
    path: str | os.PathLike[str],
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    metadata: Mapping[str, Any] | None = None,
    *,
    compress: bool = False,
) -> None:
    """Write ``episodes`` to ``path``; arguments and errors as for ``EpisodeWriter``."""
    with EpisodeWriter(
        path, observation_space, action_space, metadata, compress=compress
    ) as writer:
        for episode in episodes:
            writer.write(episode)


def check_path(path: str | os.PathLike[str], *, append: bool = False) -> None:
    """Check that an ``EpisodeWriter`` can write at ``path``, and change nothing.

    Raises:
        OSError: it can't; the message says why.
    """
    target = Path(os.path.realpath(path))
    folder = folder_of(target)
    if target.is_dir() and not (folder == target and (target / METADATA).exists()):
        raise IsADirectoryError(f"{os.fspath(path)}: is a directory, and none of episodes")
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(f"{os.fspath(path)}: is not a regular file")
    if folder.exists() and not append and (folder == target or _has_episodes(folder)):
        what = "is there already" if folder == target else "holds the episodes of an unfinished run"
        raise FileExistsError(f"{folder}: {what}; append to it (append=True), or remove it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)}: there is no directory {target.parent}")
    if target.is_file() and not os.access(target, os.W_OK):
        raise PermissionError(f"{os.fspath(path)}: is write-protected")
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise type(error)(f"{os.fspath(path)}: {error.strerror}") from None


def _has_episodes(folder: Path) -> bool:
    try:
        return len(read_folder(folder, mmap=True)) > 0
    except (OSError, ValueError, LookupError, TypeError):
        return True  # a damaged one may have some


def _texts(values: Any, rows: int, dtype: np.dtype[Any], what: str, space: str) -> NDArray[Any]:
    """Texts in an array of this dtype, which holds none that is longer or ends in NUL."""
    texts, longest = list(values), dtype.itemsize // 4
    if len(texts) != rows:
        raise ValueError(f"{what} has {len(texts)} texts, but {space} has {rows}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{what}: expected texts, got a {type(text).__name__}")
        if len(text) > longest or text.endswith("\0"):
            why = "ends in a NUL character" if text.endswith("\0") else f"is longer than {longest}"
            raise ValueError(f"{what}: {text!r:.80} {why}, so the file can't hold it without loss")
    return np.array(texts, dtype)


def _pack(episodes: Episodes, path: Path, compress: bool) -> None:
    """Write the episodes of a folder as an ``.npz``, in their order."""
    lengths, info_bytes = episodes.lengths, episodes.table["info_bytes"]
    starts = np.cumsum(lengths) - lengths
    packed = {
        **episodes.table,
        "start": starts,
        "observation_start": starts + np.arange(len(starts)),
        "info_start": np.cumsum(info_bytes) - info_bytes,
    }
    whole = {"metadata": np.array(json.dumps(episodes.head))}
    whole |= {f"episodes/{name}": values for name, values in packed.items()}
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        for name, values in whole.items():
            with _member(archive, name) as member:
                np.lib.format.write_array(member, values, (1, 0), allow_pickle=False)
        for name, column in sorted(episodes.columns.items()):
            with _member(archive, name) as member:
                member.write(header_of(column.shape, column.dtype))
                for first, rows in zip(*spans(name, episodes.table), strict=True):
                    member.write(column[first : first + rows].tobytes())


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A new file in the archive."""
    info = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal episodes make equal files
    info.compress_type = archive.compression
    info.external_attr = 0o644 << 16
    return archive.open(info, "w", force_zip64=True)
