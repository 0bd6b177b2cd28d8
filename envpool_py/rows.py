"""The block: the latest row of every env, and its next action, one array per field.

Fields with a fixed shape are arrays ``(num_envs, ...)`` over one buffer, which processes may share:
whoever steps env ``i`` writes row ``i``, and nobody else does. What has no fixed shape (objects,
infos that are not all numbers, a vector reward of unknown length) is a row's *side*: a small tuple
that travels beside the block and is kept on the pool's side until the row is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py import cells, spaces
from envpool_py import infos as infos_
from envpool_py.ids import IdArray
from envpool_py.spaces import Array, Leaf

#: What the block can't hold of a row: (object leaves, info, reward), each None where there is none.
Side: TypeAlias = "tuple[list[Any] | None, dict[str, Any] | None, Array | None]"

#: (obs, reward, terminated, truncated, info): the reply to a step.
Row: TypeAlias = "tuple[Any, Any, Any, Any, dict[str, Any]]"

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
    objects in it. ``pack_info(i, info)`` keeps an info that is all numbers: it returns the number
    of the form in which it lies in the block, None where it is kept beside that, 0 where it can't
    be.
    """

    store: Callable[[int, Row], Side | None]
    store_leaves: Callable[[int, Any], list[Any] | None]
    pack_info: Callable[[int, dict[str, Any]], int | None]


class Units(NamedTuple):
    """What a word is with one flag only, or with a mark of 1 only; others are sums of these."""

    terminated: int
    truncated: int
    mark: int


class Cells(NamedTuple):
    """The places of all rows, env by env, for whoever writes plain rows by itself.

    ``put_obs(i, obs)`` and ``put_final(i, obs)`` write an observation where it is an array, or a
    dict of arrays and numbers, of just the right shapes and dtypes, and return whether it is; else
    they may have written a part of it. None where the layout is another, and where final ones are
    not kept. ``flat``: see ``cells.is_flat``; None where observations are not so. ``rewards``: None
    where they are vectors. ``words``: flags and mark of a row as one number.
    """

    put_obs: Callable[[int, Any], bool] | None
    put_final: Callable[[int, Any], bool] | None
    flat: list[memoryview] | None
    rewards: Any
    words: Any
    units: Units


class OwnActions(Protocol):
    """See ``Block.own_actions``."""

    def __getitem__(self, i: int, /) -> Any: ...


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
_PLAIN, RESET_ROW, FINAL_ROW = range(3)
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
        self._arrays: list[Array] = [array for array in self._obs if array is not None]
        self._actions: list[Array | None] = [
            None if leaf.dtype is None else next(rest) for leaf in self._action_leaves
        ]
        self._finals = [next(rest) for _ in self._obs_leaves] if shape.finals else []
        self._marks = ends["mark"]
        self._info_rows = next(rest) if shape.infos else None
        self._forms = next(rest) if shape.infos else None
        self._reader = (
            None
            if self._info_rows is None or self._forms is None
            else infos_.Reader(cells.of(self._info_rows), cells.of(self._forms), "env_id")
        )
        self.fixed_actions = spaces.is_fixed(shape.action)
        # Where an action is one array, or a number.
        self._all_actions = self._actions[0] if spaces.is_leaf(shape.action) else None
        self._action_dtype = (
            cells.own_dtype(self._action_leaves[0]) if self._action_leaves else None
        )
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
        self._listed: list[int] = self.everything.tolist()
        self._bare = [{"env_id": i} for i in self._listed]
        # Whether a batch is the arrays and the infos, and no more.
        self._is_plain = all(leaf.dtype is not None and not leaf.code for leaf in self._obs_leaves)

    # --------------------------------------------------------------- the side that steps the env

    def writer(self, *, pack_infos: bool = False, keep_infos: bool = False) -> Writer:
        """The functions that write rows; the side that steps an env takes them once.

        Closures, and through views made once: attribute look-ups, and indexing an array for each
        store, would cost as much as the stores themselves.

        Args:
            pack_infos: write infos that are numbers into the block; only for the one that steps the
                env, in a block whose shape says ``infos``.
            keep_infos: keep copies of them here; for the one that steps the env where rows are
                gathered.
        """
        ndarray = np.ndarray
        rows = list(self._obs[0]) if self._single and self._obs[0] is not None else []
        leaf = self._obs_leaves[0] if rows else Leaf((), (), None)
        dims = leaf.shape
        dtype = cells.own_dtype(leaf)
        store_leaves = self._leaves_writer()
        store_reward = self._store_reward
        pack_info: Callable[[int, dict[str, Any]], int | None] = _pack_nothing
        if keep_infos:
            pack_info = self._keep_info
        elif pack_infos and self._info_rows is not None and self._forms is not None:
            pack_info = infos_.Packer(cells.of(self._info_rows), cells.of(self._forms)).pack
        store_info = self._info_writer(pack_info)
        rewards = cells.of(self.reward) if self._scalar_rewards else None
        terminations = cells.of(self.terminated)
        truncations = cells.of(self.truncated)
        marks = cells.of(self._marks)

        def store(i: int, row: Row) -> Side | None:
            obs, reward, terminated, truncated, info = row
            objects: list[Any] | None = None
            odd: Array | None = None
            if not rows:
                objects = store_leaves(i, obs)
            elif type(obs) is ndarray and obs.dtype is dtype and obs.shape == dims:
                rows[i][...] = obs
            else:
                rows[i][...] = spaces.fit(
                    obs, dims, cells.dtype_of(leaf), "obs", "observation_space"
                )
            if rewards is not None and type(reward) is float:
                rewards[i] = reward
            else:
                odd = store_reward(i, reward)
            terminations[i] = (
                terminated if type(terminated) is bool else _flag(terminated, "terminated")
            )
            truncations[i] = truncated if type(truncated) is bool else _flag(truncated, "truncated")
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
        flat = rewards = words = None
        if self._single and self._obs[0] is not None and cells.is_flat(self._obs_leaves[0]):
            flat = list(map(cells.of, self._obs[0]))
        put_obs = self._putter(self._obs)
        put_final = self._putter(self._finals) if self._finals else None
        if self._scalar_rewards:
            rewards = cells.of(self.reward)
            words = cells.of(_words(self._ends))
        one = np.zeros(3, _ends_of(self.shape._replace(reward=())))
        for k, name in enumerate(Units._fields):
            one[name][k] = 1
        return Cells(put_obs, put_final, flat, rewards, words, Units(*_words(one).tolist()))

    def _info_writer(
        self, pack_info: Callable[[int, dict[str, Any]], int | None]
    ) -> Callable[[int, dict[str, Any]], dict[str, Any]]:
        """A function that writes the mark of a row, and returns what is left of its info."""
        marks, layout, name = self._marks, self.shape.obs, "observation_space"

        def store_info(i: int, info: dict[str, Any]) -> dict[str, Any]:
            mark = _PLAIN
            if type(info) is ResetInfo:
                mark = RESET_ROW
                info = {key: value for key, value in info.items() if key != "is_reset"}
            elif type(info) is FinalInfo:
                if self._finals:
                    mark = FINAL_ROW
                    info = self._store_final(i, info)
                else:
                    last = spaces.fit_tree(layout, info["final_obs"], "final_obs", name)
                    info = {**info, "final_obs": last}
            if info:
                form = pack_info(i, info)
                if form != 0:
                    mark |= (form or 0) << FORM_SHIFT
                    info = {}
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

    def _keep_info(self, i: int, info: dict[str, Any]) -> int | None:
        """Keep a copy of an info that is all numbers; see ``Writer``."""
        if type(info) is not dict or not infos_.NUMBERS.issuperset(map(type, info.values())):
            return 0
        self._infos[i] = kept = info.copy()
        kept["env_id"] = i  # room for it is made now, while others step; gathering sets it again
        return None

    def _leaves_writer(self) -> Callable[[int, Any], list[Any] | None]:
        """A function that writes an observation of several leaves; it returns the objects in it."""
        put = self._putter(self._obs)
        store_leaves = self._store_leaves
        if put is None:
            return store_leaves

        def store(i: int, obs: Any) -> list[Any] | None:
            return None if put(i, obs) else store_leaves(i, obs)

        return store

    def _putter(self, arrays: Sequence[Array | None]) -> Callable[[int, Any], bool] | None:
        """A function that writes observations into these arrays; see ``Cells``."""
        layout = self.shape.obs
        if self._single and arrays[0] is not None:
            return cells.put_one(arrays[0], layout)
        if not isinstance(layout, dict) or not all(
            spaces.is_leaf(leaf) and leaf.dtype is not None for leaf in layout.values()
        ):
            return None
        return cells.put_dict(layout, [array for array in arrays if array is not None])

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

    def own_actions(self) -> OwnActions:
        """What gives the action of an env, by its id in brackets, in the type its space samples.

        The action is the env's own: the next batch does not change it.
        """
        leaves = self._action_leaves
        if spaces.is_leaf(self.shape.action):
            array = self._actions[0]
            if array is not None and leaves[0].scalar:
                return array  # in brackets; a call of ``__getitem__`` takes twice as long
            if array is not None:
                return _Copies([array[i, ...] for i in range(self.shape.num_envs)])
        return _Joined(self.shape.action, leaves, self._actions)

    # --------------------------------------------------------------------------- the pool's side

    def put_all_actions(self, actions: Any) -> bool:
        """Write the actions of all envs, where they are one array of the right shape and dtype."""
        array = self._all_actions
        if (
            array is None
            or type(actions) is not np.ndarray
            or actions.dtype is not self._action_dtype
            or actions.shape != array.shape
        ):
            return False
        array[...] = actions
        return True

    def takes(self, actions: Any, count: int) -> bool:
        """Whether these are the actions of ``count`` envs, as one array of the right dtype."""
        array = self._all_actions
        return (
            array is not None
            and type(actions) is np.ndarray
            and actions.dtype is self._action_dtype
            and actions.shape == (count, *array.shape[1:])
        )

    def put_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """Write the actions of envs ``ids``: one array ``(k, *shape)`` per leaf."""
        place = slice(None) if ids is self.everything else ids
        for array, column in zip(self._actions, columns, strict=True):
            if array is not None:
                array[place] = column

    def put_side(self, i: int, side: Side) -> None:
        """Keep the side of env ``i``'s row until it is gathered; nobody else may hold it."""
        objects, info, odd = side
        if objects is not None:
            for column, part in zip(self._objects.values(), objects, strict=True):
                column[i] = part
        if info is not None:
            # An env may return one dict as both.
            own = objects is None and type(info) is dict
            self._infos[i] = info if own else dict(info)
        if odd is not None:
            self._odd_rewards[i] = odd
            self._odd_shape = odd.shape
            self._is_plain = False

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
        self._is_plain = False
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
        if self._is_plain and out is None and (columns or self._single):
            if ids is self.everything:
                return self._gather_all(copy=copy)
            if copy:
                return self._gather_plain(ids)
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
        if ids is self.everything:
            infos = self._all_infos()
        else:
            infos = self._gather_infos(listed, self._marks[ids])
        flags = take(self.terminated, ids), take(self.truncated, ids)
        return Batch(obs, reward, *flags, infos, parts)

    def _gather_all(self, *, copy: bool) -> Batch:
        """All rows, where observations are arrays and nothing is beside the block.

        What ``gather`` does, with what is the same each time left out.
        """
        arrays, infos = self._arrays, self._all_infos()
        reward, terminated, truncated = self.reward, self.terminated, self.truncated
        if copy:
            arrays = [arrays[0].copy()] if self._single else [array.copy() for array in arrays]
            reward, terminated, truncated = reward.copy(), terminated.copy(), truncated.copy()
        obs = arrays[0] if self._single else spaces.join(self.shape.obs, arrays)
        return Batch(obs, reward, terminated, truncated, infos, arrays)

    def _gather_plain(self, ids: IdArray) -> Batch:
        """As ``_gather_all``, a copy of some rows."""
        arrays = self._arrays
        infos = self._gather_infos(ids.tolist(), self._marks[ids])
        ends = self.reward[ids], self.terminated[ids], self.truncated[ids]
        if self._single:
            obs = arrays[0].take(ids, 0)
            return Batch(obs, *ends, infos, [obs])
        parts = [_take(array, ids) for array in arrays]
        return Batch(spaces.join(self.shape.obs, parts), *ends, infos, parts)

    def prepare(self) -> None:
        """Make now what the next batch of all envs will need, while others are at work."""
        if self._ready is None:
            bare = self._bare
            self._ready = np.fromiter(map(dict.copy, bare), dtype=object, count=len(bare))

    def _all_infos(self) -> Array:
        """The infos of a batch of all envs: those that were made beforehand, where they will do."""
        ready, self._ready = self._ready, None
        infos = self._gather_infos(self._listed, self._marks, ready)
        if infos is not ready:
            self._ready = ready
        return infos

    def _gather_infos(self, listed: list[int], marks: Array, infos: Array | None = None) -> Array:
        """The infos of a batch, from wherever they are kept, with what the marks of its rows say.

        Args:
            listed: the ids of its ``k`` rows.
            marks: shape ``(k,)``.
            infos: those of bare rows, should they have been made.
        """
        marked = marks.nonzero()[0]
        if self._infos or 2 * len(marked) > len(listed):
            return self._infos_one_by_one(listed, marks)
        if infos is None:
            bare = map(dict.copy, map(self._bare.__getitem__, listed))
            infos = np.fromiter(bare, dtype=object, count=len(listed))
        if len(marked):
            self._add_kinds(infos, listed, marked, marks)
        return infos

    def _infos_one_by_one(self, listed: list[int], marks: Array) -> Array:
        kept, reader = self._infos, self._reader
        infos: list[dict[str, Any]] = []
        for i, mark in zip(listed, marks.tolist(), strict=True):
            if mark > _KIND_MASK and reader is not None:
                info = reader.read(i, mark >> FORM_SHIFT)
            elif i in kept:
                info = kept.pop(i)
                info["env_id"] = i
            else:
                info = {"env_id": i}
            infos.append(info)
        kinds = marks & _KIND_MASK  # the forms have been seen to
        marked = kinds.nonzero()[0]
        if len(marked):
            self._add_kinds(infos, listed, marked, kinds)
        return np.fromiter(infos, dtype=object, count=len(infos))

    def _note_last(self, ids: IdArray, parts: Sequence[Any]) -> None:
        place = slice(None) if ids is self.everything else ids
        for array, last, part in zip(self._obs, self._last, parts, strict=True):
            if array is not None:
                last[place] = part
            else:
                for k, i in enumerate(ids.tolist()):
                    last[i] = spaces.snapshot(part[k])

    def _add_kinds(self, infos: Any, ids: list[int], marked: Array, marks: Array) -> None:
        """Complete the infos of a batch by what the marks of its rows say.

        Args:
            infos: of all rows, so far.
            ids: of all rows.
            marked: the places of those rows that have a mark.
            marks: of all rows.
        """
        ended: list[int] = []
        reader = self._reader
        single = self._finals[0] if self._finals and self._single else None
        for k, mark in zip(marked.tolist(), marks[marked].tolist(), strict=True):
            if mark > _KIND_MASK and reader is not None:
                infos[k] = reader.read(ids[k], mark >> FORM_SHIFT)
            kind = mark & _KIND_MASK
            if kind == RESET_ROW:
                infos[k]["is_reset"] = True
            elif kind == FINAL_ROW and single is not None:
                infos[k]["final_obs"] = single[ids[k]].copy()
                infos[k].setdefault("final_info", {})
            elif kind == FINAL_ROW:
                ended.append(k)
        if ended:
            for k, final in zip(ended, self._final_rows([ids[k] for k in ended]), strict=True):
                infos[k]["final_obs"] = final
                infos[k].setdefault("final_info", {})

    def final_of(self, i: int) -> Any:
        """A copy of the final observation of env ``i``."""
        return self._final_rows([i])[0]

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


class _Copies:
    """Copies of rows."""

    def __init__(self, rows: Sequence[Array]) -> None:
        self._rows = rows

    def __getitem__(self, i: int) -> Array:
        return self._rows[i].copy()


class _Joined:
    """Copies of rows that are made of several leaves."""

    def __init__(self, layout: Any, leaves: Sequence[Leaf], arrays: Sequence[Array | None]) -> None:
        self._layout = layout
        self._pairs = [
            (leaf, array) for leaf, array in zip(leaves, arrays, strict=True) if array is not None
        ]

    def __getitem__(self, i: int) -> Any:
        return spaces.join(self._layout, [leaf.one(array, i).copy() for leaf, array in self._pairs])


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


def _words(ends: Array) -> Array:
    """The flags and the mark of each row, with a scalar reward, as one number."""
    return ends.view(np.int64).reshape(-1, 2)[:, 1]


def _pack_nothing(i: int, info: dict[str, Any]) -> int | None:  # noqa: ARG001 - the signature of a packer
    return 0


def _kept(leaf: Leaf, part: Any, name: str) -> Any:
    """A part of an observation as the leaf's array takes it."""
    if leaf.code is not None:
        return leaf.code.encode(part, name)
    return spaces.fit(part, leaf.shape, cells.dtype_of(leaf), name, "observation_space")


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
    # ``take`` is the quicker for rows, but makes what does not lie close together so, all of it.
    return array[ids] if array.ndim == 1 else array.take(ids, axis=0)
