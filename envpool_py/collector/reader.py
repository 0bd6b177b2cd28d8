"""Read the episodes that ``envpool_py.collector.file`` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload
from urllib.parse import unquote

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py import extras
from envpool_py.collector import space_json
from envpool_py.collector.episode import Episode, Transitions
from envpool_py.env import spaces
from envpool_py.record import plain_codec
from envpool_py.record.untrusted_files import (
    LEAST_LIMIT,
    field,
    open_file,
    read_array,
    read_json,
    require,
)

#: The format in the metadata, and the file of the metadata.
FORMAT, METADATA = "envpool_py episodes", "metadata.json"

#: Incremented with every change that another reader cannot read.
VERSION = 3

NO_SEED = -1  # in place of a seed
#: The columns of ``episodes.npy``, a row for each episode; all but the last are int64.
INDEX = (
    *("start", "observation_start", "length", "env_id", "episode_id", "env_seed", "seed"),
    *("failed", "info_start", "info_bytes", "return"),
)


def spans(name: str, table: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row, and the number of rows, of each episode in the column of this name."""
    kind = name.partition("/")[0]
    if kind == "observations":
        return table["observation_start"], table["length"] + 1
    if kind == "infos":
        return table["info_start"], table["info_bytes"]
    return table["start"], table["length"]


class Episodes(Sequence[Episode]):
    """The episodes of a folder, ordered by (env id, episode id).

    ``episodes[3]`` is an ``Episode`` whose arrays are views of those here.

    Attributes:
        metadata: the metadata of the writer, a dict.
        observation_space, action_space: of each env.
        env_ids, episode_ids: ``(n,)``.
        env_seeds, seeds: ``(n,)``, -1 where there was none.
        failed: ``(n,)`` bool, episodes that the failure of an env ended.
        lengths: ``(n,)``, steps.
        returns: ``(n,)`` or ``(n, m)``, sums of rewards.
        starts: ``(n,)``, the first row of each episode in ``actions``, ``rewards``, ...
        observation_starts: ``(n,)``, and in ``obs``.
        obs: ``(T + n, ...)``, each episode's ``L + 1`` observations one after another.
        actions, rewards: ``(T, ...)``.
        terminated, truncated: ``(T,)`` bool.
        extras: arrays ``(T, ...)`` by name.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    #: The beginning of errors: the file.
    place = ""

    # Of the file: the metadata; by the names of ``INDEX`` the fields of all episodes; and all
    # other arrays, which may have the rows of one more episode, that was being written.
    def __init__(
        self, head: dict[str, Any], table: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        self.head = head
        self.metadata: dict[str, Any] = head["metadata"]
        limit = max(LEAST_LIMIT, sum(column.nbytes for column in columns.values()))
        for name in ("observation_space", "action_space"):
            with field(name):
                setattr(self, name, space_json.from_json(head[name], limit))
        _check_arrays(self.observation_space, self.action_space, table, columns)
        order = np.lexsort((table["episode_id"], table["env_id"]))
        self.table = table = {name: table[name][order] for name in INDEX}
        self.env_ids, self.episode_ids = table["env_id"], table["episode_id"]
        self.env_seeds, self.seeds = table["env_seed"], table["seed"]
        self.lengths, self.returns = table["length"], table["return"]
        self.failed = table["failed"] > 0
        self.starts, self.observation_starts = table["start"], table["observation_start"]
        self.columns: dict[str, Any] = {
            name: column[: int(spans(name, table)[1].sum())] for name, column in columns.items()
        }
        columns = self.columns
        self.obs = _tree("observations", self.observation_space, columns)
        self.actions = _tree("actions", self.action_space, columns)
        self.rewards = columns["rewards"]
        self.terminated = columns["terminated"]
        self.truncated = columns["truncated"]
        self.extras = {
            name.removeprefix("extras/").replace("~1", "/").replace("~0", "~"): column
            for name, column in columns.items()
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
        seeds = self.env_seeds[k], self.seeds[k]
        env_seed, seed = (None if each == NO_SEED else int(each) for each in seeds)
        return Episode(
            env_id=int(self.env_ids[k]),
            episode_id=int(self.episode_ids[k]),
            env_seed=env_seed,
            seed=seed,
            obs=spaces.take(self.obs, slice(first, first + length + 1)),
            actions=spaces.take(self.actions, rows),
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            extras=spaces.take(self.extras, rows),
            infos=self._infos_of(k),
            failed=bool(self.failed[k]),
        )

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
        if self.table["info_bytes"].any():
            infos = [self._infos_of(k) for k in range(len(self))]
            info = spaces.objects([one for own in infos for one in own[:-1]])
            next_info = spaces.objects([one for own in infos for one in own[1:]])
        return Transitions(
            obs=spaces.take(self.obs, before),
            actions=spaces.take(self.actions, rows),
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            next_obs=spaces.take(self.obs, before + 1),
            env_id=self.env_ids[episode],
            episode_id=self.episode_ids[episode],
            extras=spaces.take(self.extras, rows),
            infos=info,
            next_infos=next_info,
        )

    def to_minari(self, dataset_id: str, **options: Any) -> Any:
        """Write the episodes as a data set of Minari; needs the extra ``minari``.

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
        needed = f"to_minari needs Minari; {extras.hint('minari')}"
        write = extras.load("envpool_py.collector.to_minari", needed).write
        return write(self, dataset_id, options)

    def _infos_of(self, k: int) -> tuple[dict[str, Any], ...]:
        first, size = (int(column[k]) for column in spans("infos", self.table))
        if not size:
            return ()
        with field(f"{self.place}damaged: infos of episode {k}"):
            infos = plain_codec.decode(self.columns["infos"][first : first + size].tobytes())
            is_whole = isinstance(infos, list) and len(infos) == self.lengths[k] + 1
            require(is_whole and all(type(info) is dict for info in infos), "no list of dicts")
        return tuple(infos)

    def __repr__(self) -> str:
        return f"<{len(self)} episodes, {self.num_steps} steps>"


def load(path: str | os.PathLike[str], *, mmap: bool = False) -> Episodes:
    """Read a folder of ``save``, ``EpisodeWriter`` or ``envpool-py collect``.

    Infos are decoded when an episode is accessed; with ``mmap`` arrays are read on access, too, for
    data larger than memory.

    Raises:
        OSError: there is no such folder, or it can't be read.
        ValueError: it is no folder of episodes, is damaged, or of a newer version of the package.
    """
    folder = Path(path)
    folder.stat()  # raises the OSError
    with field(str(path)):
        require((folder / METADATA).exists(), "not a folder of episodes: it has no metadata.json")
        with field("damaged"):
            head = read_json(folder / METADATA)
        _check_head(head)
        with field("damaged"):
            names = {unquote(file.name.removesuffix(".npy")): file for file in folder.glob("*.npy")}
            index = names.pop("episodes", None)
            table: Any = () if index is None else _read_npy(index, mmap=False)
            if len(table):
                columns = {name: _read_npy(names[name], mmap=mmap) for name in sorted(names)}
                found = Episodes(head, table, columns)
            else:  # killed before the first episode was complete
                found = _no_episodes(head)
    found.place = f"{path}: "
    return found


def escaped(key: str) -> str:
    """The part of the name of an array that a key is."""
    return key.replace("~", "~0").replace("/", "~1")


def leaves_of(
    what: str, space: gym.Space[Any] | None
) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Name in the file, shape of a row, and dtype of each leaf."""
    layout, found = spaces.layout_of(space), []
    parts = spaces.split(layout, spaces.tree_of(space), what)
    for leaf, part in zip(spaces.leaves(layout), parts, strict=True):
        name = "/".join([what, *(escaped(str(key)) for key in leaf.path)])
        is_text = isinstance(part, gym.spaces.Text)
        dtype: np.dtype[Any] = np.dtype(f"U{part.max_length}" if is_text else part.dtype)
        found.append((name, leaf.shape, dtype))
    return found


def _tree(what: str, space: gym.Space[Any], columns: Mapping[str, Any]) -> Any:
    """The columns of a space, as a dict or tuple of arrays if it is a Dict or Tuple."""
    parts = [columns[name] for name, _, _ in leaves_of(what, space)]
    return spaces.join(spaces.layout_of(space), parts)


def _check_arrays(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    table: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> None:
    """Check that all arrays are there, fit each other and the spaces, and overlap nowhere."""
    kinds: dict[str, tuple[Any, Any]] = {
        name: (shape, dtype)
        for what, space in (("observations", observation_space), ("actions", action_space))
        for name, shape, dtype in leaves_of(what, space)
    }
    kinds |= {"terminated": ((), bool), "truncated": ((), bool), "infos": ((), np.uint8)}
    with field("rewards"):
        kinds["rewards"] = vector = columns["rewards"].shape[1:], np.float64
    for name in kinds.keys() | columns.keys():
        with field(name):
            require(name in kinds or name.startswith("extras/"), "an unknown array")
            column = columns[name]
            shape, dtype = kinds.get(name, (column.shape[1:], column.dtype))
            found = f"has the shape {column.shape} and dtype {column.dtype}"
            require((column.shape[1:], column.dtype) == (shape, dtype), found)
            require(column.ndim, found)
    length = len(table["length"])
    for name in INDEX:
        with field(f"episodes/{name}"):
            column = table[name]
            shape, dtype = vector if name == "return" else ((), np.int64)
            found = f"has the shape {column.shape} and dtype {column.dtype}"
            require((column.shape, column.dtype) == ((length, *shape), dtype), found)
            least = NO_SEED if name.endswith("seed") else 0
            require(name == "return" or (column >= least).all(), f"is less than {least}")
    # The flags first: they have one byte in a row, so no length is beyond the file's size.
    for name in sorted(columns, key=lambda name: name != "terminated"):
        starts, counts = spans(name, table)
        with field(name):
            rows, total = len(columns[name]), counts.sum(dtype=float)  # it does not wrap around
            require(total <= rows, f"has {rows} rows, but the episodes have {total:.0f}")
            order = np.lexsort((counts, starts))
            ends = np.cumsum(counts[order])
            require((starts[order] == ends - counts[order]).all(), "rows of episodes overlap")


def _check_head(head: Any) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT!r}")
    version = head.get("version")
    text = f"version {version!r:.80} of the format; this package reads {VERSION}"
    require(version == VERSION, text)
    for name in ("metadata", "observation_space", "action_space"):
        require(isinstance(head.get(name), dict), f"damaged: {name} is no object")


def _read_npy(path: Path, *, mmap: bool) -> NDArray[Any]:
    with open_file(path) as file, field(path.name):
        size = os.fstat(file.fileno()).st_size
        return read_array(file, size, mmap=mmap, structured=path.name == "episodes.npy")


def _no_episodes(head: dict[str, Any]) -> Episodes:
    kinds = {"rewards": float, "terminated": bool, "truncated": bool, "infos": np.uint8}
    columns: dict[str, Any] = {name: np.empty(0, dtype) for name, dtype in kinds.items()}
    for what in ("observations", "actions"):
        space = space_json.from_json(head[f"{what[:-1]}_space"])
        for name, shape, dtype in leaves_of(what, space):
            columns[name] = np.empty((0, *shape), dtype)
    table: dict[str, Any] = {name: np.empty(0, np.int64) for name in INDEX}
    return Episodes(head, {**table, "return": np.empty(0)}, columns)
