"""Whole episodes in one ``.npz`` file, without pickle.

The arrays of the file, for ``n`` episodes of ``T`` steps together, ordered by (env id, episode id):

=================================== =============== ===============================================
``observations``                    ``(T + n, ...)`` the ``L + 1`` observations of each episode
``actions``                         ``(T, ...)``
``rewards``                         ``(T,)``        float64; ``(T, m)`` for vector rewards
``terminated``, ``truncated``       ``(T,)``        bool
``episodes/start``                  ``(n,)``        the episode's first row in the arrays of ``T``
``episodes/observation_start``      ``(n,)``        and in ``observations``
``episodes/length``                 ``(n,)``        steps
``episodes/env_id``                 ``(n,)``
``episodes/episode_id``             ``(n,)``        0 for the env's first episode
``episodes/seed``                   ``(n,)``        that of the env's first episode; -1: none
``episodes/return``                 ``(n,)``        the sum of the rewards; ``(n, m)`` for vectors
``metadata``                        ``()``          JSON: format, version, spaces, the writer's own
=================================== =============== ===============================================

A Dict or Tuple space has one array per leaf, with its path in the name: ``observations/camera/0``.
In a key, ``~`` is written ``~0`` and ``/`` is written ``~1``. Text is stored as an array of str.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, overload

import gymnasium as gym
import numpy as np

from envpool_py import spaces
from envpool_py.collector import space_json
from envpool_py.collector.episode import Episode

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

#: What ``metadata`` says of every file.
FORMAT = "envpool_py episodes"
#: Raised with every change that a reader must know of.
VERSION = 1

_NO_SEED = -1
_PER_EPISODE = ("env_id", "episode_id", "seed", "length", "return")


class EpisodeWriter:
    """Writes episodes to one file as they come, in any order.

    The rows go to unnamed temporary files in the same directory; ``close`` puts them in order in a
    file of another name, which then takes its place. Memory holds one episode at a time. A ``with``
    block closes at its end, and aborts where an exception leaves it.

    Args:
        path: the file; one that exists is replaced.
        observation_space: of each env.
        action_space: of each env.
        metadata: what else the file should tell, as JSON has it.
        compress: whether to compress: slower to write, and much smaller for images.

    Attributes:
        metadata: what else the file should tell; may be changed until ``close``.
        num_episodes: episodes written so far.
        num_steps: their steps.

    Raises:
        OSError: the file can't be written there.
        TypeError: no space, or one whose values have no form of arrays; metadata unfit for JSON.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: gym.Space[Any] | None,
        action_space: gym.Space[Any] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        compress: bool = False,
    ) -> None:
        self.num_episodes = 0
        self.num_steps = 0
        self.metadata = dict(metadata or {})
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": space_json.to_json(observation_space),
            "action_space": space_json.to_json(action_space),
        }
        json.dumps(self.metadata)  # says now, not at the end, what JSON can't hold
        self._compress = compress
        self._path = Path(os.path.realpath(path))
        check_path(self._path)
        self._closed = False
        self._layouts = {
            "observations": spaces.layout_of(observation_space),
            "actions": spaces.layout_of(action_space),
        }
        self._columns = [
            _Column(self._path.parent, name, dtype)
            for what, space in (
                ("observations", observation_space),
                ("actions", action_space),
            )
            for name, dtype in _leaves(what, space)
        ]
        self._columns += [
            _Column(self._path.parent, name, np.dtype(dtype))
            for name, dtype in (("rewards", float), ("terminated", bool), ("truncated", bool))
        ]
        self._index: list[tuple[int, int, int, int, Any]] = []

    def write(self, episode: Episode) -> None:
        """Add one episode.

        Raises:
            ValueError: its shapes are not those of the episodes before; a seed of over 63 bits.
            OSError: the disk is full.
        """
        seed = _NO_SEED if episode.seed is None else episode.seed
        if seed >= 1 << 63:
            raise ValueError(f"seed must be below 2**63 to be stored, got {seed}")
        parts = [
            *spaces.split(self._layouts["observations"], episode.observations, "observations"),
            *spaces.split(self._layouts["actions"], episode.actions, "actions"),
            episode.rewards,
            episode.terminated,
            episode.truncated,
        ]
        for column, part in zip(self._columns, parts, strict=True):
            column.write(part, self.num_episodes)
        self._index.append(
            (episode.env_id, episode.episode_id, seed, len(episode), episode.total_reward)
        )
        self.num_episodes += 1
        self.num_steps += len(episode)

    def close(self) -> None:
        """Put the file in place; without an episode nothing is written. Idempotent."""
        if self._closed:
            return
        # Not made by tempfile, which would keep the file from everyone but its owner.
        unfinished = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            if self._index:
                self._assemble(unfinished)
                unfinished.replace(self._path)
        finally:
            unfinished.unlink(missing_ok=True)
            self.abort()

    def abort(self) -> None:
        """Drop what was written; a file that was there before stays."""
        self._closed = True
        for column in self._columns:
            column.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _assemble(self, path: Path) -> None:
        order = sorted(range(len(self._index)), key=lambda k: self._index[k][:2])
        index = [np.array(values) for values in zip(*(self._index[k] for k in order), strict=True)]
        lengths = index[_PER_EPISODE.index("length")]
        starts = np.cumsum(lengths) - lengths
        method = zipfile.ZIP_DEFLATED if self._compress else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
            data = {**self._head, "metadata": self.metadata}
            _write(archive, "metadata", np.array(json.dumps(data)))
            for name, values in zip(_PER_EPISODE, index, strict=True):
                _write(archive, f"episodes/{name}", values)
            _write(archive, "episodes/start", starts)
            _write(archive, "episodes/observation_start", starts + np.arange(len(starts)))
            for column in self._columns:
                column.copy_to(archive, order)


class _Column:
    """One array of the file: the bytes of its episodes, in the order in which they came."""

    def __init__(self, directory: Path, name: str, dtype: np.dtype[Any]) -> None:
        self.name = name
        self._dtype = dtype
        self._shape: tuple[int, ...] | None = None
        self._row_bytes = 0
        self._places: list[tuple[int, int]] = []  # (first row, rows) of each episode
        self._num_rows = 0
        self.file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open until close

    def write(self, values: Any, episode: int) -> None:
        array = np.ascontiguousarray(values, dtype=self._dtype)
        if self._shape is None:
            self._shape = array.shape[1:]
            self._row_bytes = int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize
        if array.shape[1:] != self._shape:
            raise ValueError(
                f"{self.name}: got rows of shape {array.shape[1:]}, but those before have"
                f" {self._shape}"
            )
        # What an interrupted write has left behind is written over.
        del self._places[episode:]
        first = sum(self._places[-1]) if self._places else 0
        self.file.seek(first * self._row_bytes)
        if array.size:
            self.file.write(array.reshape(-1).view(np.uint8).data)
        self._places.append((first, len(array)))

    def copy_to(self, archive: zipfile.ZipFile, order: Sequence[int]) -> None:
        num_rows = sum(rows for _, rows in self._places[: len(order)])
        with _open(archive, self.name, (num_rows, *(self._shape or ())), self._dtype) as member:
            for episode in order:
                first, rows = self._places[episode]
                self.file.seek(first * self._row_bytes)
                member.write(self.file.read(rows * self._row_bytes))


class Transitions(NamedTuple):
    """``T`` single steps; the arrays of Dict and Tuple spaces are dicts and tuples of arrays."""

    observations: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_observations: Any
    env_ids: NDArray[np.int64]
    episode_ids: NDArray[np.int64]


class Episodes(Sequence[Episode]):
    """The episodes of a file, ordered by (env id, episode id).

    ``episodes[3]`` is an ``Episode`` whose arrays are views of those here.

    Attributes:
        metadata: what the writer told, a dict.
        observation_space: of each env.
        action_space: of each env.
        env_ids: ``(n,)``.
        episode_ids: ``(n,)``.
        seeds: ``(n,)``, -1 where there was none.
        lengths: ``(n,)``, steps.
        returns: ``(n,)`` or ``(n, m)``, sums of rewards.
        starts: ``(n,)``, the first row of each episode in ``actions``, ``rewards``, ...
        observations: ``(T + n, ...)``, each episode's ``L + 1`` observations one after another.
        actions: ``(T, ...)``.
        rewards: ``(T,)`` or ``(T, m)``.
        terminated: ``(T,)``.
        truncated: ``(T,)``.
    """

    def __init__(self, arrays: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self.metadata: dict[str, Any] = data["metadata"]
        self.observation_space = space_json.from_json(data["observation_space"])
        self.action_space = space_json.from_json(data["action_space"])
        self.env_ids, self.episode_ids, self.seeds, self.lengths, self.returns = (
            arrays[f"episodes/{name}"] for name in _PER_EPISODE
        )
        self.starts = arrays["episodes/start"]
        self.observations, self.actions = (
            spaces.join(spaces.layout_of(space), [arrays[name] for name, _ in _leaves(what, space)])
            for what, space in (
                ("observations", self.observation_space),
                ("actions", self.action_space),
            )
        )
        self.rewards = arrays["rewards"]
        self.terminated = arrays["terminated"]
        self.truncated = arrays["truncated"]

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        start, length = int(self.starts[k]), int(self.lengths[k])
        rows = slice(start, start + length)
        seed = int(self.seeds[k])
        return Episode(
            env_id=int(self.env_ids[k]),
            episode_id=int(self.episode_ids[k]),
            seed=None if seed == _NO_SEED else seed,
            # Each episode before this one has one observation more than it has steps.
            observations=_take(self.observations, slice(start + k, start + k + length + 1)),
            actions=_take(self.actions, rows),
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[k] for k in range(len(self)))

    @property
    def num_steps(self) -> int:
        """The steps of all episodes."""
        return len(self.rewards)

    def transitions(self) -> Transitions:
        """All steps of all episodes, one after another, as ``T`` rows; a copy of observations."""
        episode = np.repeat(np.arange(len(self)), self.lengths)
        before = np.arange(self.num_steps) + episode
        return Transitions(
            observations=_take(self.observations, before),
            actions=self.actions,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            next_observations=_take(self.observations, before + 1),
            env_ids=self.env_ids[episode],
            episode_ids=self.episode_ids[episode],
        )

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {self.num_steps} steps>"


def save(
    path: str | os.PathLike[str],
    episodes: Iterable[Episode],
    observation_space: gym.Space[Any] | None,
    action_space: gym.Space[Any] | None,
    metadata: Mapping[str, Any] | None = None,
    *,
    compress: bool = False,
) -> None:
    """Write ``episodes`` to the file ``path``; arguments and errors as for ``EpisodeWriter``."""
    with EpisodeWriter(
        path, observation_space, action_space, metadata, compress=compress
    ) as writer:
        for episode in episodes:
            writer.write(episode)


def load(path: str | os.PathLike[str], *, mmap: bool = False) -> Episodes:
    """Read a file that ``save``, ``EpisodeWriter`` or ``envpool-py collect`` has written.

    Args:
        path: the file.
        mmap: True: arrays are mapped from the file and read when they are touched, for files larger
            than memory. Compressed arrays are read whole all the same.

    Raises:
        OSError: there is no such file, or it can't be read.
        ValueError: it is no such file, or of a newer version of the package.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if "metadata" not in names:
                raise ValueError(f"{os.fspath(path)}: not a file of episodes: it has no metadata")
            data = json.loads(str(_read(archive, "metadata", path, mmap=False)))
            if data.get("format") != FORMAT:
                raise ValueError(
                    f"{os.fspath(path)}: the format is {data.get('format')!r}, not {FORMAT!r}"
                )
            if data["version"] > VERSION:
                raise ValueError(
                    f"{os.fspath(path)}: version {data['version']} of the format; this package"
                    f" knows up to {VERSION}"
                )
            arrays = {name: _read(archive, name, path, mmap=mmap) for name in names}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{os.fspath(path)}: not a file of episodes: {error}") from None
    return Episodes(arrays, data)


def check_path(path: str | os.PathLike[str]) -> None:
    """Check that a file can be written at ``path``, and leave everything as it is.

    Raises:
        OSError: it can't; the message says why.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{os.fspath(path)}: is a directory")
    if target.exists() and not target.is_file():
        raise OSError(f"{os.fspath(path)}: is not a regular file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{os.fspath(path)}: there is no directory {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{os.fspath(path)}: is write-protected")
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise type(error)(f"{os.fspath(path)}: {error.strerror}") from None


def _leaves(what: str, space: gym.Space[Any] | None) -> list[tuple[str, np.dtype[Any]]]:
    """Name in the file and dtype of each leaf."""
    if isinstance(space, gym.spaces.Dict):
        return [
            leaf
            for key, part in space.spaces.items()
            for leaf in _leaves(f"{what}/{key.replace('~', '~0').replace('/', '~1')}", part)
        ]
    if isinstance(space, gym.spaces.Tuple):
        return [
            leaf for i, part in enumerate(space.spaces) for leaf in _leaves(f"{what}/{i}", part)
        ]
    if isinstance(space, gym.spaces.Text):
        return [(what, np.dtype(f"U{space.max_length}"))]
    assert space is not None  # noqa: S101 - space_json has refused it
    return [(what, np.dtype(space.dtype))]


def _take(tree: Any, rows: Any) -> Any:
    return spaces.map_tree(itemgetter(rows), tree)


def _open(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> IO[bytes]:
    """Open an array of the archive for its data; the header is written."""
    info = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal episodes make equal files
    info.compress_type = archive.compression
    info.external_attr = 0o644 << 16
    member = archive.open(info, "w", force_zip64=True)
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(member, header)
    return member


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with _open(archive, name, array.shape, array.dtype) as member:
        member.write(array.tobytes())


def _read(
    archive: zipfile.ZipFile, name: str, path: str | os.PathLike[str], *, mmap: bool
) -> NDArray[Any]:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        if not mmap or info.compress_type != zipfile.ZIP_STORED:
            array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
            return array
        np.lib.format.read_magic(member)
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        header_bytes = member.tell()
    if 0 in shape:
        return np.empty(shape, dtype)
    with Path(path).open("rb") as file:
        # The name and the extra field of the local header stand before the data.
        file.seek(info.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    offset = info.header_offset + 30 + name_bytes + extra_bytes + header_bytes
    return np.memmap(path, dtype, "r", offset, shape)
