"""Read the files of episodes that ``envpool_py.collector.file`` writes."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload
from urllib.parse import unquote

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.collector import space_json
from envpool_py.collector.episode import Episode, Transitions
from envpool_py.collector.places import FORMAT, METADATA, PACKED, folder_of, packed_of
from envpool_py.env import spaces
from envpool_py.errors import describe
from envpool_py.record import plain_codec

#: Incremented with every change that another reader cannot read.
VERSION = 2

NO_SEED = -1  # in place of a seed
#: The arrays of a row for each episode, ``episodes/NAME``; all but the last are int64.
INDEX = (
    *("start", "observation_start", "length", "env_id", "episode_id", "env_seed", "seed"),
    *("info_start", "info_bytes", "return"),
)


class Episodes(Sequence[Episode]):
    """The episodes of a file, ordered by (env id, episode id).

    ``episodes[3]`` is an ``Episode`` whose arrays are views of those here.

    Attributes:
        metadata: the metadata of the writer, a dict.
        observation_space: of each env.
        action_space: of each env.
        env_ids: ``(n,)``.
        episode_ids: ``(n,)``.
        env_seeds: ``(n,)``, -1 where there was none.
        seeds: ``(n,)``, -1 where there was none.
        lengths: ``(n,)``, steps.
        returns: ``(n,)`` or ``(n, m)``, sums of rewards.
        starts: ``(n,)``, the first row of each episode in ``actions``, ``rewards``, ...
        observation_starts: ``(n,)``, and in ``observations``.
        observations: ``(T + n, ...)``, each episode's ``L + 1`` observations one after another.
        actions: ``(T, ...)``.
        rewards: ``(T,)`` or ``(T, m)``.
        terminated: ``(T,)``.
        truncated: ``(T,)``.
        extras: arrays ``(T, ...)`` by name.
    """

    def __init__(self, arrays: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        self.head = head
        self.metadata: dict[str, Any] = head["metadata"]
        self.observation_space = space_json.from_json(head["observation_space"])
        self.action_space = space_json.from_json(head["action_space"])
        order = order_of(arrays)
        index = {name: arrays[f"episodes/{name}"][order] for name in INDEX}
        self.env_ids, self.episode_ids = index["env_id"], index["episode_id"]
        self.env_seeds, self.seeds = index["env_seed"], index["seed"]
        self.lengths, self.returns = index["length"], index["return"]
        self.starts, self.observation_starts = index["start"], index["observation_start"]
        self._info_starts, self._info_bytes = index["info_start"], index["info_bytes"]
        self._infos = arrays["infos"]
        self.observations, self.actions = (
            spaces.join(
                spaces.layout_of(space), [arrays[name] for name, _ in leaves_of(what, space)]
            )
            for what, space in (
                ("observations", self.observation_space),
                ("actions", self.action_space),
            )
        )
        self.rewards = arrays["rewards"]
        self.terminated = arrays["terminated"]
        self.truncated = arrays["truncated"]
        self.extras = {
            name.removeprefix("extras/").replace("~1", "/").replace("~0", "~"): arrays[name]
            for name in arrays
            if name.startswith("extras/")
        }

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
        first = int(self.observation_starts[k])
        rows = slice(start, start + length)
        env_seed, seed = (
            None if s == NO_SEED else int(s) for s in (self.env_seeds[k], self.seeds[k])
        )
        return Episode(
            env_id=int(self.env_ids[k]),
            episode_id=int(self.episode_ids[k]),
            env_seed=env_seed,
            seed=seed,
            observations=spaces.take(self.observations, slice(first, first + length + 1)),
            actions=spaces.take(self.actions, rows),
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            extras=spaces.take(self.extras, rows),
            infos=self._infos_of(k),
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[k] for k in range(len(self)))

    @property
    def num_steps(self) -> int:
        """The steps of all episodes."""
        return len(self.rewards)

    def transitions(self) -> Transitions:
        """All steps of all episodes, one after another, as ``T`` rows; copies."""
        episode = np.repeat(np.arange(len(self)), self.lengths)
        within = np.arange(self.num_steps) - (np.cumsum(self.lengths) - self.lengths)[episode]
        rows, before = self.starts[episode] + within, self.observation_starts[episode] + within
        info = next_info = None
        if self._info_bytes.any():
            infos = [self._infos_of(k) for k in range(len(self))]
            info = spaces.objects([one for own in infos for one in own[:-1]])
            next_info = spaces.objects([one for own in infos for one in own[1:]])
        return Transitions(
            obs=spaces.take(self.observations, before),
            action=spaces.take(self.actions, rows),
            reward=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            next_obs=spaces.take(self.observations, before + 1),
            env_id=self.env_ids[episode],
            episode_id=self.episode_ids[episode],
            extras=spaces.take(self.extras, rows),
            info=info,
            next_info=next_info,
        )

    def to_minari(self, dataset_id: str, **options: Any) -> Any:
        """Write the episodes as a data set of Minari; needs ``pip install envpool-py[minari]``.

        Infos and extras become Minari's ``infos``: an array for each key that every row of an
        episode has, and extras under ``"extras"``.

        Args:
            dataset_id: for instance ``"cartpole/random-v0"``.
            **options: of ``minari.create_dataset_from_buffers``: ``env``, ``algorithm_name``, ...
                Images are stored without loss, unless ``jpeg_encoding=True``.

        Returns:
            The ``minari.MinariDataset``; ``minari.load_dataset(dataset_id)`` loads it later.

        Raises:
            ImportError: Minari is not installed.

        Warns:
            UserWarning: infos have keys that some rows lack, or values of different shapes; these
                are left out.
        """
        from envpool_py.collector.to_minari import write  # noqa: PLC0415 - an extra

        return write(self, dataset_id, options)

    def _infos_of(self, k: int) -> tuple[dict[str, Any], ...]:
        first, size = int(self._info_starts[k]), int(self._info_bytes[k])
        return (
            tuple(plain_codec.decode(self._infos[first : first + size].tobytes())) if size else ()
        )

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {self.num_steps} steps>"


def load(path: str | os.PathLike[str], *, mmap: bool = False) -> Episodes:
    """Read a file of ``save``, ``EpisodeWriter`` or ``envpool-py collect``.

    If the writer of an ``.npz`` was killed, the episodes that it had written are read from
    ``path + ".partial"``. Infos are decoded when an episode is accessed.

    Args:
        path: the file or folder.
        mmap: True: map the arrays of a folder and read them on access, for data larger than
            memory. An ``.npz`` is always read completely.

    Raises:
        OSError: there is no such file, or it can't be read.
        ValueError: it is no such file, is damaged, or of a newer version of the package.

    Warns:
        UserWarning: beside the ``.npz`` there is an unfinished file of a later run; it is not read.
    """
    target = Path(path)
    partial, packed = folder_of(target), packed_of(target) / PACKED
    if partial.is_dir() and (partial == target or not target.exists()):
        return _loaded(partial, lambda: read_folder(partial, mmap=mmap))
    if partial != target and partial.exists():
        warnings.warn(
            f"{target}: another run has not finished, or was killed, and has left its episodes in"
            f" {partial}; load that path for them",
            stacklevel=2,
        )
    # Of a writer that was killed just before it gave the file its name.
    with contextlib.suppress(FileNotFoundError):
        return _loaded(packed, lambda: _read_npz(packed))
    return _loaded(target, lambda: _read_npz(target))


def _loaded(path: Path, read: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> Episodes:
    """The episodes that ``read`` returns; ValueError with ``path`` if they can't be read."""
    try:
        arrays, head = read()
        _check_rows(arrays)
        return Episodes(arrays, head)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: damaged: {describe(error)}") from error


def _check_rows(arrays: Mapping[str, Any]) -> None:
    """Check that no array is shorter than its episodes."""
    steps, number = int(arrays["episodes/length"].sum()), len(arrays["episodes/length"])
    infos = int(arrays["episodes/info_bytes"].sum())
    rows = {"observations": steps + number, "episodes": number, "infos": infos}
    for name, array in arrays.items():
        if len(array) != rows.get(name.partition("/")[0], steps):
            raise ValueError(f"damaged: {name} has {len(array)} rows")


def escaped(key: str) -> str:
    """The part of the name of an array that a key is."""
    return key.replace("~", "~0").replace("/", "~1")


def leaves_of(what: str, space: gym.Space[Any] | None) -> list[tuple[str, np.dtype[Any]]]:
    """Name in the file and dtype of each leaf."""
    layout, found = spaces.layout_of(space), []
    parts = spaces.split(layout, spaces.parts_of(space), what)
    for leaf, part in zip(spaces.leaves(layout), parts, strict=True):
        name = "/".join([what, *(escaped(str(key)) for key in leaf.path)])
        is_text = isinstance(part, gym.spaces.Text)
        found.append((name, np.dtype(f"U{part.max_length}" if is_text else part.dtype)))
    return found


def order_of(arrays: Mapping[str, Any]) -> NDArray[np.intp]:
    """The order of the episodes by (env id, episode id)."""
    return np.lexsort((arrays["episodes/episode_id"], arrays["episodes/env_id"]))


def _check_head(head: Mapping[str, Any]) -> None:
    if head.get("format") != FORMAT:
        raise ValueError(f"the format is {head.get('format')!r}, not {FORMAT!r}")
    if head["version"] != VERSION:
        version = head["version"]
        raise ValueError(f"version {version} of the format; this package reads {VERSION}")


def read_folder(folder: Path, *, mmap: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a folder, cut to whole episodes, and its metadata."""
    if not (folder / METADATA).exists():
        raise ValueError("not a folder of episodes: it has no metadata.json")
    head = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    _check_head(head)
    index_file = folder / "episodes.npy"
    exists = index_file.exists()
    index: Any = np.load(index_file, allow_pickle=False) if exists else ()
    if not len(index):  # killed before the first episode was complete
        return _no_episodes(head), head
    arrays: dict[str, Any] = {f"episodes/{name}": index[name] for name in INDEX}
    steps, infos = int(index["length"].sum()), int(index["info_bytes"].sum())
    rows = {"observations": steps + len(index), "infos": infos}
    mode: Any = "r" if mmap else None
    for file in sorted(folder.glob("*.npy")):
        if file != index_file:
            name = unquote(file.name.removesuffix(".npy"))
            whole = np.load(file, mmap_mode=mode, allow_pickle=False)
            # What is behind is of an episode that was being written.
            arrays[name] = whole[: rows.get(name.partition("/")[0], steps)]
    return arrays, head


def _no_episodes(head: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = {f"episodes/{name}": np.empty(0, np.int64) for name in INDEX}
    for what in ("observations", "actions"):
        space = space_json.from_json(head[f"{what[:-1]}_space"])
        shapes = [leaf.shape for leaf in spaces.leaves(spaces.layout_of(space))]
        for (name, dtype), shape in zip(leaves_of(what, space), shapes, strict=True):
            arrays[name] = np.empty((0, *shape), dtype)
    kinds = {"rewards": float, "terminated": bool, "truncated": bool, "infos": np.uint8}
    return {**arrays, **{name: np.empty(0, dtype) for name, dtype in kinds.items()}}


def _read_npz(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of an ``.npz``, and its metadata."""
    if path.exists() and not zipfile.is_zipfile(path):
        raise ValueError("not a file of episodes: no .npz, and no folder")
    with np.load(path, allow_pickle=False) as file:
        if "metadata" not in file:
            raise ValueError("not a file of episodes: it has no metadata")
        head = json.loads(str(file["metadata"]))
        _check_head(head)
        arrays = {name: file[name] for name in file if name != "metadata"}
    return arrays, head
