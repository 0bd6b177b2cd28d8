"""Write whole episodes to a folder of ``.npy`` files, without pickle.

``docs/collect.md`` describes the format. The files grow with every episode (see ``growing``), in
the order in which episodes end. A kill at any moment leaves the whole episodes readable: a row of
``episodes.npy`` is written last, and counts only rows that are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py.collector import space_json
from envpool_py.collector.episode import Episode
from envpool_py.collector.growing import GrowingArray
from envpool_py.collector.reader import (
    FORMAT,
    INDEX,
    METADATA,
    NO_SEED,
    VERSION,
    Episodes,
    escaped,
    leaves_of,
    load,
    spans,
)
from envpool_py.env import spaces
from envpool_py.record import plain_codec

try:
    import fcntl
except ImportError:  # Windows cannot lock a folder: there nothing refuses a second writer
    fcntl = None  # type: ignore[assignment]


class EpisodeWriter:
    """Writes episodes to a folder one by one, in any order.

    An episode is in the files as soon as ``write`` returns: if the program is killed at any moment,
    ``load`` reads all episodes that were written. (If the machine fails, the last may be lost.)
    Memory holds one episode at a time.

    Args:
        path: the folder; it may exist, if it is empty or has no whole episode.
        observation_space, action_space: of each env.
        metadata: further facts to store; a dict that JSON can hold.
        append: True: add to the episodes that are there, also those of a run that was killed.

    Attributes:
        metadata: further facts to store; may be changed until ``close``.
        num_episodes: episodes written so far, those of ``append`` included.
        num_steps: their steps.

    Raises:
        FileExistsError: a file is at ``path``, or episodes are, without ``append``.
        BlockingIOError: another writer is writing there (not noticed on Windows).
        OSError: the folder can't be written there.
        TypeError: no space, or one whose values have no form of arrays; metadata unfit for JSON.
        ValueError: the folder holds something else, or episodes with other spaces.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        append: bool = False,
    ) -> None:
        self.metadata = dict(metadata or {})
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": space_json.to_json(observation_space),
            "action_space": space_json.to_json(action_space),
        }
        json.dumps(self.metadata)  # says now, not at the end, what JSON can't hold
        self._folder = Path(os.path.realpath(path))
        self._spaces = {"observations": observation_space, "actions": action_space}
        self._columns: dict[str, GrowingArray] = {}
        self._index: GrowingArray | None = None
        self.num_episodes = self.num_steps = self._info_bytes = 0
        self._closed = False
        self._folder.mkdir(exist_ok=True)
        self._unlock = _locked(self._folder, self)
        try:
            self._begin(earlier(self._folder, append=append))
        except BaseException:
            self._unlock()
            raise

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
            raise ValueError(f"{self._folder}: the writer is closed")
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
        """Complete the metadata, and let others write here; a second call does nothing.

        OSError if the disk is full; the episodes stay.
        """
        if self._closed:
            return
        self._closed = True
        try:
            for column in [*self._columns.values(), *([self._index] if self._index else [])]:
                column.close()
            self._write_metadata()
        finally:
            self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _arrays(self, episode: Episode) -> dict[str, NDArray[Any]]:
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
            text = "name the keys to keep, as AsyncCollector(..., keep_infos=['action_mask'])"
            why = f"the infos can't be written without pickle: {error}"
            raise TypeError(f"{env}{why}; {text}") from None
        arrays["infos"] = np.frombuffer(infos, np.uint8)
        if self._columns and arrays.keys() != self._columns.keys():
            has, had = sorted(arrays), sorted(self._columns)
            raise ValueError(f"{env}got the arrays {has}, but the episodes before have {had}")
        return arrays

    def _entry(self, episode: Episode, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        seeds = [NO_SEED if s is None else s for s in (episode.env_seed, episode.seed)]
        if max(seeds) >= 1 << 63:
            raise ValueError(f"seed must be below 2**63 to be stored, got {max(seeds)}")
        total = arrays["rewards"].sum(axis=0)
        ints = [(name, np.int64) for name in INDEX[:-1]]
        row = np.zeros(1, [*ints, ("return", np.float64, total.shape)])
        counts = self.num_steps, self.num_steps + self.num_episodes, len(episode)
        own = *counts, episode.env_id, episode.episode_id, *seeds, episode.failed
        row[0] = (*own, self._info_bytes, len(arrays["infos"]), total)
        return row

    def _file(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.npy"

    def _write_metadata(self) -> None:
        text = json.dumps({**self._head, "metadata": self.metadata})
        unfinished = self._folder / "metadata.tmp"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self._folder / METADATA)

    def _begin(self, found: Episodes | None) -> None:
        """Go on behind the episodes that were found, or make the folder one of episodes."""
        if found is None:
            for file in self._folder.glob("*.npy"):  # of an episode that was not finished
                file.unlink()
            self._write_metadata()
            return
        for name in ("observation_space", "action_space"):
            old, new = found.head[name], self._head[name]
            if old != new:
                text = f"the episodes there have the {name} {old}, but these {new}"
                raise ValueError(f"{self._folder}: {text}")
        self.metadata = {**found.metadata, **self.metadata}
        self.num_episodes, self.num_steps = len(found), found.num_steps
        self._info_bytes = int(found.table["info_bytes"].sum())
        self._columns = {name: GrowingArray(self._file(name)) for name in found.columns}
        self._index = GrowingArray(self._file("episodes"))


def save(
    path: str | os.PathLike[str],
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write ``episodes`` to ``path``; arguments and errors as for ``EpisodeWriter``."""
    with EpisodeWriter(path, observation_space, action_space, metadata) as writer:
        for episode in episodes:
            writer.write(episode)


def earlier(folder: Path, *, append: bool = False) -> Episodes | None:
    """The episodes in a folder in which a writer is to write; None: there are none.

    FileExistsError if there are some, without ``append``; ValueError if it holds something else.
    """
    if not folder.is_dir() or all(file.suffix == ".tmp" for file in folder.iterdir()):
        return None
    found = load(folder, mmap=True)
    if len(found) and not append:
        text = "holds episodes; append to them (append=True), or remove the folder"
        raise FileExistsError(f"{folder}: {text}")
    return found if len(found) else None


def _locked(folder: Path, owner: object) -> Callable[[], object]:
    """Lock a folder until ``owner`` ends, or the result is called; else BlockingIOError."""
    if fcntl is None:
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY)
    release = weakref.finalize(owner, _unlock, descriptor, os.getpid())
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        release()
        text = f"{folder}: another EpisodeWriter is writing there; close it"
        raise BlockingIOError(text) from None
    except OSError:  # a file system without locks
        pass
    return release


def _unlock(descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process shares the lock, and must not end it
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


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
