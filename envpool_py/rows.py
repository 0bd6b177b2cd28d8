"""The block: the latest row of every env, and its next action, one array per field.

Fields with a fixed shape are arrays ``(num_envs, ...)`` over one buffer, which processes may share:
whoever steps env ``i`` writes row ``i``, and nobody else does. What has no fixed shape (objects,
infos that are not all numbers, a vector reward of unknown length) is a row's *side*: a small tuple
that travels beside the block and is kept on the pool's side until the row is handed out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py import infos as infos_
from envpool_py import spaces
from envpool_py.ids import IdArray
from envpool_py.spaces import Array, Leaf

#: What the block can't hold of a row: (object leaves, info, reward), each None where there is none.
Side: TypeAlias = "tuple[list[Any] | None, dict[str, Any] | None, Array | None]"

#: (obs, reward, terminated, truncated, info): the reply to a step.
Row: TypeAlias = "tuple[Any, Any, Any, Any, dict[str, Any]]"

# Flags and mark of a row, as `_ends_of` lays them out.
_MARK_OF_ONE = bytes([0, 0, 1, 0, 0, 0, 0, 0])

_ALIGN = 64  # bytes: a cache line, and more than any dtype asks for


class ResetInfo(dict[str, Any]):
    """The info of a row that is an automatic reset's: it says ``is_reset``."""


class FinalInfo(dict[str, Any]):
    """The info of a row that ended an episode and began the next: it has ``final_obs``."""


class Batch(NamedTuple):
    """The rows of one ``recv``, aligned with each other; ``parts``: ``obs`` leaf by leaf."""

    obs: Any
    reward: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Array
    parts: list[Any]


class Writer(NamedTuple):
    """How the side that steps the envs writes rows into the block.

    ``store(i, (obs, reward, terminated, truncated, info))`` writes the row of env ``i`` and returns
    what the block can't hold of it, or None. It raises TypeError or ValueError where the
    observation does not fit the observation space, the reward is no number or a flag is no bool;
    the row is then not to be used. ``store_leaves(i, obs)`` writes an observation and returns the
    objects in it. ``pack_info(i, info)`` writes an info that is all numbers and returns the number
    of its form; 0 where it can't.
    """

    store: Callable[[int, Row], Side | None]
    store_leaves: Callable[[int, Any], list[Any] | None]
    pack_info: Callable[[int, dict[str, Any]], int]


class Cells(NamedTuple):
    """The places of all rows, env by env.

    ``views``: of the observations, where they are one array of ``dims`` and ``dtype`` each, else
    None. ``flat``: the same as memory, which takes nothing of another shape or dtype; None where
    arrays have more than one dimension. ``rewards``: None where they are vectors. ``words``: flags
    and mark of a row as one number, where ``mark_unit`` is a mark of 1 and no flag.
    """

    views: list[Array] | None
    flat: list[memoryview] | None
    dims: tuple[int, ...]
    dtype: np.dtype[Any] | None
    rewards: Any
    words: Any
    mark_unit: int


class Shape(NamedTuple):
    """All that fixes the fields of a block; small, and picklable.

    ``marks``: rows may be those of automatic resets, or bring a final observation; ``finals``: that
    then lies in the block as well. ``infos``: so do infos that are numbers.
    """

    num_envs: int
    obs: Any
    action: Any
    reward: tuple[int, ...] = ()
    marks: bool = False
    finals: bool = False
    infos: bool = False


# What a row is besides the row of a step.
_PLAIN, _RESET_ROW, _FINAL_ROW = range(3)
#: In the bits of a mark from this one on: the form of the row's info, 0 for none.
FORM_SHIFT = 2
_KIND_MASK = (1 << FORM_SHIFT) - 1


class Block:
    """The fields over one buffer.

    Args:
        shape: what the fields are.
        buffer: memory of ``nbytes(shape)`` bytes, all zero at first; None allocates its own.
    """

    def __init__(self, shape: Shape, buffer: Any = None) -> None:
        fields, size = _fields(shape)
        if buffer is None:
            buffer = np.zeros(size, dtype=np.uint8)
        arrays: list[Array] = [
            np.ndarray(dims, dtype, buffer=buffer, offset=offset) for dims, dtype, offset in fields
        ]
        num_envs = shape.num_envs
        self.shape = shape
        #: All ids, in order; batches of all envs are told by this very array.
        self.everything: IdArray = np.arange(num_envs)
        self.everything.setflags(write=False)
        ends = self._ends = arrays[0]
        self.reward, self.terminated, self.truncated = (
            ends[name] for name in ("reward", "terminated", "truncated")
        )
        self._obs_leaves = spaces.leaves(shape.obs)
        # Whether an observation is one array, of at least one dimension.
        self._single = (
            spaces.is_leaf(shape.obs)
            and shape.obs.dtype is not None
            and bool(shape.obs.shape)
            and shape.obs.code is None
        )
        self._action_leaves = spaces.leaves(shape.action)
        rest = iter(arrays[1:])
        # An object leaf has no array here: its place is None.
        self._obs: list[Array | None] = [
            None if leaf.dtype is None else next(rest) for leaf in self._obs_leaves
        ]
        self._actions: list[Array | None] = [
            None if leaf.dtype is None else next(rest) for leaf in self._action_leaves
        ]
        self._finals = [next(rest) for _ in self._obs_leaves] if shape.finals else []
        self._marks = ends["mark"] if shape.marks or shape.infos else None
        self._info_rows = next(rest) if shape.infos else None
        self._forms = next(rest) if shape.infos else None
        self._reader = (
            None
            if self._info_rows is None or self._forms is None
            else infos_.Reader(_cells(self._info_rows), _cells(self._forms))
        )
        self.fixed_actions = spaces.is_fixed(shape.action)
        self._objects: dict[int, list[Any]] = {
            n: [None] * num_envs for n, array in enumerate(self._obs) if array is None
        }
        self._infos: dict[int, dict[str, Any]] = {}
        # Those of the next batch of all envs, where they were made beforehand.
        self._ready: Array | None = None
        self._odd_rewards: dict[int, Array] = {}
        self._odd_shape: tuple[int, ...] | None = None
        self._scalar_rewards = not shape.reward
        # The observations last handed out, leaf by leaf, where they are kept.
        self._last: list[Array] = []

    # --------------------------------------------------------------- the side that steps the env

    def writer(self, *, pack_infos: bool = False) -> Writer:
        """The functions that write rows; the side that steps an env takes them once.

        Closures, and through views made once: attribute look-ups, and indexing an array for each
        store, would cost as much as the stores themselves.

        Args:
            pack_infos: write infos that are numbers into the block; only for the one that steps the
                env, in a block whose shape says ``infos``.
        """
        ndarray = np.ndarray
        rows = list(self._obs[0]) if self._single and self._obs[0] is not None else []
        leaf = self._obs_leaves[0] if rows else Leaf((), (), None)
        dims = leaf.shape
        dtype = _own(leaf)
        store_leaves = self._leaves_writer()
        store_reward = self._store_reward
        pack_info = _pack_nothing
        if pack_infos and self._info_rows is not None and self._forms is not None:
            pack_info = infos_.Packer(_cells(self._info_rows), _cells(self._forms)).pack
        store_info = self._info_writer(pack_info)
        rewards = _cells(self.reward) if self._scalar_rewards else None
        terminations = _cells(self.terminated)
        truncations = _cells(self.truncated)
        marks = None if self._marks is None else _cells(self._marks)

        def store(i: int, row: Row) -> Side | None:
            obs, reward, terminated, truncated, info = row
            objects: list[Any] | None = None
            odd: Array | None = None
            if not rows:
                objects = store_leaves(i, obs)
            elif type(obs) is ndarray and obs.dtype is dtype and obs.shape == dims:
                rows[i][...] = obs
            else:
                rows[i][...] = spaces.fit(obs, dims, _dtype(leaf), "obs", "observation_space")
            if rewards is not None and type(reward) is float:
                rewards[i] = reward
            else:
                odd = store_reward(i, reward)
            terminations[i] = (
                terminated if type(terminated) is bool else _flag(terminated, "terminated")
            )
            truncations[i] = truncated if type(truncated) is bool else _flag(truncated, "truncated")
            if marks is not None:
                if info:
                    info = store_info(i, info)
                else:
                    marks[i] = _PLAIN
            if info or objects is not None or odd is not None:
                return objects, info or None, odd
            return None

        return Writer(store, store_leaves, pack_info)

    def cells(self) -> Cells:
        """The places of all rows."""
        rows = list(self._obs[0]) if self._single and self._obs[0] is not None else None
        leaf = self._obs_leaves[0] if rows else Leaf((), (), None)
        flat = None
        if rows and len(leaf.shape) == 1 and _dtype(leaf).kind in "biufc":
            flat = list(map(_cells, rows))
        rewards = words = None
        if self._scalar_rewards:
            rewards = _cells(self.reward)
            words = _cells(self._ends.view(np.int64).reshape(-1, 2)[:, 1])
        unit = int.from_bytes(_MARK_OF_ONE, sys.byteorder)
        return Cells(rows, flat, leaf.shape, _own(leaf), rewards, words, unit)

    def _info_writer(
        self, pack_info: Callable[[int, dict[str, Any]], int]
    ) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
        """A function that writes the mark of a row, and returns what is left of its info."""
        marks, layout, name = self._marks, self.shape.obs, "observation_space"

        def store_info(i: int, info: dict[str, Any]) -> dict[str, Any]:
            mark = _PLAIN
            if type(info) is ResetInfo:
                mark = _RESET_ROW
                info = {key: value for key, value in info.items() if key != "is_reset"}
            elif type(info) is FinalInfo:
                if self._finals:
                    mark = _FINAL_ROW
                    info = self._store_final(i, info)
                else:
                    last = spaces.fit_tree(layout, info["final_obs"], "final_obs", name)
                    info = {**info, "final_obs": last}
            if info:
                form = pack_info(i, info)
                if form:
                    mark |= form << FORM_SHIFT
                    info = {}
            if marks is not None:
                marks[i] = mark
            return info

        return store_info

    def _store_final(self, i: int, info: dict[str, Any]) -> dict[str, Any]:
        """Write the final observation that an info brings; return what is left of the info."""
        last = info["final_obs"]
        rest: dict[str, Any] = {}
        if len(info) > 2 or info.get("final_info"):
            rest = {
                key: value
                for key, value in info.items()
                if key != "final_obs" and (key != "final_info" or value)
            }
        single = spaces.is_leaf(self.shape.obs)
        parts = [last] if single else spaces.split(self.shape.obs, last, "final_obs")
        for leaf, array, part in zip(self._obs_leaves, self._finals, parts, strict=True):
            fits = type(part) is np.ndarray and part.dtype == leaf.dtype
            if fits and part.shape == leaf.shape:
                array[i] = part
            else:
                array[i] = _kept(leaf, part, "final_obs")
        return rest

    def _leaves_writer(self) -> Callable[[int, Any], list[Any] | None]:
        """A function that writes an observation of several leaves; it returns the objects in it."""
        layout = self.shape.obs
        if not isinstance(layout, dict) or not all(
            spaces.is_leaf(leaf) and leaf.dtype is not None for leaf in layout.values()
        ):
            return self._store_leaves
        ndarray = np.ndarray
        # For each key views of the rows made once, and what a value must be to be stored unseen.
        plan = [
            (
                key,
                [array[i, ...] for i in range(self.shape.num_envs)],
                leaf.shape,
                _own(leaf),
                array.dtype.type if leaf.scalar else None,
                leaf.code and leaf.code.encode,
            )
            for (key, leaf), array in zip(layout.items(), self._obs, strict=True)
            if array is not None
        ]
        count = len(plan)
        store_leaves = self._store_leaves

        def store(i: int, obs: Any) -> list[Any] | None:
            if type(obs) is dict and len(obs) == count:
                for key, rows, dims, dtype, kind, encode in plan:
                    part = obs.get(key)
                    if encode is not None and key in obs:
                        rows[i][...] = encode(part, "obs")
                        continue
                    if (
                        type(part) is ndarray and part.dtype is dtype and part.shape == dims
                    ) or type(part) is kind:
                        rows[i][...] = part
                    else:
                        break
                else:
                    return None
            return store_leaves(i, obs)

        return store

    def _store_leaves(self, i: int, obs: Any) -> list[Any] | None:
        parts = spaces.split(self.shape.obs, obs, "obs")
        objects: list[Any] | None = None
        for leaf, array, part in zip(self._obs_leaves, self._obs, parts, strict=True):
            if array is None:
                if objects is None:
                    objects = []
                objects.append(part)
            elif (
                type(part) is np.ndarray
                and leaf.code is None
                and part.dtype == leaf.dtype
                and part.shape == leaf.shape
            ):
                array[i] = part
            else:
                name = "obs" + "".join(f"[{key!r}]" for key in leaf.path)
                array[i] = _kept(leaf, part, name)
        return objects

    def _store_reward(self, i: int, reward: Any) -> Array | None:
        if isinstance(reward, (float, int, np.floating, np.integer, np.bool_)):
            self.reward[i] = reward  # a scalar fills the row of a vector reward: that of a reset
            return None
        try:
            array = np.asarray(reward)
        except (TypeError, ValueError):
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"reward must be a number, got {type(reward).__name__} {reward!r:.80}")
        if array.shape == self.shape.reward:
            self.reward[i] = array
            return None
        if not self._scalar_rewards:
            raise ValueError(
                f"reward has shape {array.shape}, but reward_space has {self.shape.reward}"
            )
        return np.array(array, dtype=np.float64)

    def action_reader(self) -> Callable[[int], Any]:
        """A function of an env id that gives its action, in the type that its space samples.

        The action is the env's own: the next batch does not change it.
        """
        leaves = self._action_leaves
        if spaces.is_leaf(self.shape.action):
            array = self._actions[0]
            if array is not None and leaves[0].scalar:
                return array.__getitem__
            if array is not None:
                rows = [array[i, ...] for i in range(self.shape.num_envs)]
                return lambda i: rows[i].copy()
        pairs = [
            (leaf, array)
            for leaf, array in zip(leaves, self._actions, strict=True)
            if array is not None
        ]
        layout = self.shape.action
        return lambda i: spaces.join(layout, [leaf.one(array, i).copy() for leaf, array in pairs])

    # --------------------------------------------------------------------------- the pool's side

    def put_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """Write the actions of envs ``ids``: one array ``(k, *shape)`` per leaf."""
        place = slice(None) if ids is self.everything else ids
        for array, column in zip(self._actions, columns, strict=True):
            if array is not None:
                array[place] = column

    def put_side(self, i: int, side: Side) -> None:
        """Keep the side of env ``i``'s row until the row is gathered."""
        objects, info, odd = side
        if objects is not None:
            for column, part in zip(self._objects.values(), objects, strict=True):
                column[i] = part
        if info is not None:
            self._infos[i] = info
        if odd is not None:
            self._odd_rewards[i] = odd
            self._odd_shape = odd.shape

    def forget_forms(self, ids: Iterable[int]) -> None:
        """These envs are stepped by another process from now on, which learns their infos anew."""
        if self._reader is not None:
            for i in ids:
                self._reader.forget(i)

    def drop_side(self, i: int) -> None:
        """Forget the side of a row that nobody will gather."""
        self._infos.pop(i, None)
        self._odd_rewards.pop(i, None)

    def keep_last(self) -> None:
        """Keep from now on the observations that are handed out: a fault may spoil the row."""
        num_envs = self.shape.num_envs
        self._last = [
            np.full(num_envs, None, dtype=object) if array is None else np.zeros_like(array)
            for array in self._obs
        ]

    def last_obs(self, i: int) -> Any:
        """A copy of the observation of env ``i`` that was last handed out."""
        parts = [
            spaces.snapshot(array[i] if leaf.dtype is None else leaf.one(array, i))
            for leaf, array in zip(self._obs_leaves, self._last, strict=True)
        ]
        return parts[0] if spaces.is_leaf(self.shape.obs) else spaces.join(self.shape.obs, parts)

    def put_lost(self, i: int) -> None:
        """Make the row of env ``i`` that of a lost step: truncated, the last observation, reward 0.

        Only while nobody else writes that row.
        """
        self.drop_side(i)
        for n, (array, last) in enumerate(zip(self._obs, self._last, strict=True)):
            if array is None:
                self._objects[n][i] = spaces.snapshot(last[i])
            else:
                array[i] = last[i]
        self.reward[i] = 0.0
        self.terminated[i] = False
        self.truncated[i] = True
        if self._marks is not None:
            self._marks[i] = _PLAIN

    def new_rows(self) -> list[Array | None]:
        """Memory for the observations of a batch: for each leaf an array, None for objects."""
        return [None if array is None else np.empty_like(array) for array in self._obs]

    def is_whole(self, ids: IdArray) -> bool:
        """Whether these are all envs, in order."""
        return ids is self.everything or (
            len(ids) == self.shape.num_envs and bool((ids == self.everything).all())
        )

    def gather(
        self,
        ids: IdArray,
        *,
        columns: bool,
        copy: bool,
        out: Sequence[Array | None] | None = None,
    ) -> Batch:
        """The rows of envs ``ids``, in that order.

        Args:
            ids: shape ``(k,)``.
            columns: Dict and Tuple observations as a dict or tuple of arrays, not as rows.
            copy: False gives views of the block where ``ids`` are all envs in order.
            out: memory for the observations, as that of ``new_rows``, of ``k`` rows.
        """
        count = len(ids)
        whole = self.is_whole(ids)
        take = _whole if whole and not copy else _copy if whole else _take
        listed = ids.tolist()
        parts: list[Any] = []
        for n, (leaf, array) in enumerate(zip(self._obs_leaves, self._obs, strict=True)):
            place = None if out is None else out[n]
            if array is not None and place is not None:
                # Any mode but "raise": that gathers into memory of its own first.
                parts.append(array.take(ids, axis=0, out=place, mode="clip"))
            elif array is not None:
                parts.append(take(array, ids))
            else:
                column = self._objects[n]
                parts.append(spaces.stack_objects([column[i] for i in listed], leaf))
                for i in listed:
                    column[i] = None
        if self._last:
            self._note_last(ids, parts)
        layout = self.shape.obs
        if self._single:
            obs = parts[0]
        elif columns or spaces.is_leaf(layout):
            obs = spaces.join(
                layout,
                [
                    part
                    if leaf.code is None
                    else np.fromiter(leaf.code.decode(part), dtype=object, count=count)
                    for leaf, part in zip(self._obs_leaves, parts, strict=True)
                ],
            )
        else:
            obs = np.empty(count, dtype=object)
            for k, row in enumerate(spaces.join_rows(layout, parts)):
                obs[k] = row
        reward = take(self.reward, ids)
        if self._odd_shape is not None:
            reward = self._with_odd_rewards(reward, listed, self._odd_shape)
        infos = self._new_infos(ids, listed)
        if self._marks is not None:
            marks = self._marks if whole else self._marks.take(ids)
            marked = marks.nonzero()[0]
            if len(marked):
                self._add_marks(infos, listed, marked.tolist(), marks[marked].tolist())
        flags = take(self.terminated, ids), take(self.truncated, ids)
        return Batch(obs, reward, *flags, infos, parts)

    def prepare(self) -> None:
        """Make now what the next batch of all envs will need, while others are at work."""
        if self._ready is None:
            self._ready = _bare_infos(self.everything.tolist())

    def _new_infos(self, ids: IdArray, listed: list[int]) -> Array:
        if self._infos:
            pop = self._infos.pop
            infos = [{**pop(i, _NOTHING), "env_id": i} for i in listed]
            return np.fromiter(infos, dtype=object, count=len(infos))
        if self._ready is not None and ids is self.everything:
            ready, self._ready = self._ready, None
            return ready
        return _bare_infos(listed)

    def _note_last(self, ids: IdArray, parts: Sequence[Any]) -> None:
        place = slice(None) if ids is self.everything else ids
        for array, last, part in zip(self._obs, self._last, parts, strict=True):
            if array is not None:
                last[place] = part
            else:
                for k, i in enumerate(ids.tolist()):
                    last[i] = spaces.snapshot(part[k])

    def _add_marks(self, infos: Array, ids: list[int], places: list[int], marks: list[int]) -> None:
        """Complete the infos at these places of a batch by what their marks say."""
        ended: list[int] = []
        reader = self._reader
        for k, mark in zip(places, marks, strict=True):
            if mark > _KIND_MASK and reader is not None:
                infos[k] = info = reader.read(ids[k], mark >> FORM_SHIFT)
                info["env_id"] = ids[k]
            kind = mark & _KIND_MASK
            if kind == _RESET_ROW:
                infos[k]["is_reset"] = True
            elif kind == _FINAL_ROW:
                ended.append(k)
        if ended:
            for k, final in zip(ended, self._final_rows([ids[k] for k in ended]), strict=True):
                infos[k]["final_obs"] = final
                infos[k].setdefault("final_info", {})

    def _final_rows(self, ids: list[int]) -> list[Any]:
        """The final observations of these envs, each its own."""
        rows = [array.take(ids, axis=0) for array in self._finals]
        if spaces.is_leaf(self.shape.obs):
            return self._obs_leaves[0].each(rows[0])
        return spaces.join_rows(self.shape.obs, rows)

    def _with_odd_rewards(self, reward: Array, ids: list[int], dims: tuple[int, ...]) -> Array:
        """Vector rewards whose length no space has told, beside the zeros of resets."""
        odd = {k: self._odd_rewards.pop(i) for k, i in enumerate(ids) if i in self._odd_rewards}
        if any(array.shape != dims for array in odd.values()):
            rows = np.empty(len(ids), dtype=object)
            for k in range(len(ids)):
                rows[k] = odd.get(k, float(reward[k]))
            return rows
        batch = np.zeros((len(ids), *dims))
        for k in range(len(ids)):
            batch[k] = odd[k] if k in odd else reward[k]
        return batch


_NOTHING: dict[str, Any] = {}


def _bare_infos(ids: list[int]) -> Array:
    return np.fromiter([{"env_id": i} for i in ids], dtype=object, count=len(ids))


def nbytes(shape: Shape) -> int:
    """The size of the buffer that a block of this shape needs, in bytes."""
    return _fields(shape)[1]


def _fields(shape: Shape) -> tuple[list[tuple[tuple[int, ...], np.dtype[Any], int]], int]:
    """(shape, dtype, offset) of every field, and the size of all."""
    num_envs = shape.num_envs
    wanted: list[tuple[tuple[int, ...], np.dtype[Any]]] = [
        ((num_envs,), _ends_of(shape)),
    ]
    layouts = [shape.obs, shape.action, *([shape.obs] if shape.finals else [])]
    wanted += [
        ((num_envs, *leaf.shape), leaf.dtype)
        for layout in layouts
        for leaf in spaces.leaves(layout)
        if leaf.dtype is not None
    ]
    byte = np.dtype(np.uint8)
    if shape.infos:
        wanted += [((num_envs * infos_.ROW_BYTES,), byte), ((num_envs * infos_.TABLE_BYTES,), byte)]
    fields = []
    offset = 0
    for dims, dtype in wanted:
        fields.append((dims, dtype, offset))
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        offset += -(-size // _ALIGN) * _ALIGN
    return fields, offset


def _ends_of(shape: Shape) -> np.dtype[Any]:
    """Reward, flags and mark of a row side by side.

    As an array for each, the flags of 64 envs would lie in one cache line, which the processes
    would take from each other at every step.
    """
    return np.dtype(
        [
            ("reward", np.float64, shape.reward),
            ("terminated", np.bool_),
            ("truncated", np.bool_),
            ("mark", np.uint8),
        ],
        align=True,
    )


def _cells(array: Array) -> Any:
    """A view whose items are Python's own numbers: a store takes a third of NumPy's time."""
    return memoryview(array)  # type: ignore[arg-type]


def _dtype(leaf: Leaf) -> np.dtype[Any]:
    assert leaf.dtype is not None  # noqa: S101 - for the type checker
    return leaf.dtype


def _own(leaf: Leaf) -> np.dtype[Any] | None:
    """The leaf's dtype as NumPy's own: of those there is one each, and identity is quick to see."""
    return None if leaf.dtype is None else np.dtype(leaf.dtype.str)


def _pack_nothing(i: int, info: dict[str, Any]) -> int:  # noqa: ARG001 - the signature of a packer
    return 0


def _kept(leaf: Leaf, part: Any, name: str) -> Any:
    """A part of an observation as the leaf's array takes it."""
    if leaf.code is not None:
        return leaf.code.encode(part, name)
    return spaces.fit(part, leaf.shape, _dtype(leaf), name, "observation_space")


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, (int, np.integer)) and value in (0, 1)
    ):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype == np.bool_:
        return bool(value.reshape(())[()])
    raise TypeError(f"{name} must be a bool, got {type(value).__name__} {value!r:.80}")


def _whole(array: Array, ids: IdArray) -> Array:  # noqa: ARG001 - the signature of its siblings
    return array


def _copy(array: Array, ids: IdArray) -> Array:  # noqa: ARG001 - the signature of its siblings
    return array.copy()


def _take(array: Array, ids: IdArray) -> Array:
    return array.take(ids, axis=0)
