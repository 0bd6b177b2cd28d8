"""The block: the latest row of every env and its next action, as fields over one buffer.

Fields with a fixed shape are arrays ``(num_envs, ...)``, in memory that processes may share: the
process that steps env ``i`` writes row ``i`` (``envpool_py.env.step_loop``), the pool writes the
action and reads the row. Values without a fixed shape (objects, infos that are not all numbers, a
vector reward of undeclared length) are sent *beside* the block; the row's mark says so.

Reward, flags and mark of a row are adjacent in memory. In one array per field, the flags of 64 envs
would share a cache line, and processes that write to one cache line slow each other down.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py.env import info_codec, spaces, times
from envpool_py.env.spaces import Array
from envpool_py.ids import IdArray
from envpool_py.worker import watchdog

#: (obs, reward, terminated, truncated, info)
StepResult: TypeAlias = "tuple[Any, Array, NDArray[np.bool_], NDArray[np.bool_], Array]"
#: The values of one row that are sent beside the block: some of ``objects``, ``info``, ``reward``,
#: ``final_obs``, ``reply``, ``warnings``.
Beside: TypeAlias = "dict[str, Any]"

#: The position of an env in its schedule of episodes: its seed under ``episode_seeds`` or None, the
#: number of the episode (-1 before the first), and whether that episode is over.
Place: TypeAlias = "tuple[int | None, int, bool]"

#: The index of all envs, in order.
WHOLE = slice(None)

#: The bits of a mark: values are beside the block; the row ended an episode in same_step mode; the
#: row is that of a reset; from ``FORM`` on the number of the info's form, see ``info_codec``.
BESIDE, FINAL, RESET_ROW, FORM = 1, 2, 4, 8

_ALIGN = 64  # bytes: a cache line, and at least the alignment of any dtype
_PLACE = 3  # numbers: size of the seed in bytes, 0 for none; number of the episode + 1; is it over
_LARGEST_SEED = 64  # bytes


class Spec(NamedTuple):
    """The description of a block that determines its fields; picklable.

    ``obs`` and ``action`` are layouts, see ``spaces``. ``finals``: the block also holds final
    observations. ``num_processes``: the number of processes that write a heartbeat.
    ``measured``: steps are timed. ``scheduled``: executors write the ``Place`` of their envs.
    """

    num_envs: int
    obs: Any
    action: Any
    reward: tuple[int, ...] = ()
    finals: bool = False
    num_processes: int = 0
    measured: bool = False
    scheduled: bool = False


class Block:
    """Arrays over ``buffer``, which has ``nbytes(spec)`` zero bytes; None: allocate one."""

    def __init__(self, spec: Spec, buffer: Any = None) -> None:
        fields, size = _fields(spec)
        if buffer is None:
            buffer = np.zeros(size, dtype=np.uint8)
        self.fields = arrays = {
            name: np.ndarray(dims, dtype, buffer=buffer, offset=offset)
            for name, dims, dtype, offset in fields
        }
        self.spec = spec
        self.obs_leaves = spaces.leaves(spec.obs)
        #: An array ``(num_envs, *shape)`` for each leaf; None for a leaf of objects.
        self.obs: list[Array | None] = [arrays.get(f"obs {n}") for n in range(len(self.obs_leaves))]
        self.finals = [arrays[f"final {n}"] for n in range(len(self.obs_leaves)) if spec.finals]
        self.actions = [arrays.get(f"action {n}") for n in range(len(spaces.leaves(spec.action)))]
        self.ends = arrays["ends"]
        self.reward, self.terminated, self.truncated, self.mark = (
            self.ends[name] for name in ("reward", "terminated", "truncated", "mark")
        )
        #: For a ``Packer`` and a ``Reader`` of infos.
        self.info_memory: tuple[Any, Any] = arrays["info rows"].data, arrays["info tables"].data
        #: Infos of rows that are written in this process.
        self.infos: list[Any] = [None] * spec.num_envs
        self._places: Any = arrays["places"].data
        self._seeds: Any = arrays["seeds"].data
        self.heartbeats = arrays["heartbeats"]
        self.times = arrays["times"]
        # The array of actions if an action is one array or number, else None.
        self._action = self.actions[0] if spaces.is_leaf(spec.action) else None
        self._action_dtype = None if self._action is None else np.dtype(self._action.dtype.str)

    def put_actions(self, ids: IdArray, index: Any, actions: Any) -> bool:
        """Write the actions of these envs; return False if the block cannot hold them.

        ``index`` is ``WHOLE`` or the ids; ``actions`` is an array ``(k, *shape)`` or another form
        that ``spaces.batch_actions`` accepts. If this raises, nothing was written.
        """
        array = self._action
        if (
            array is not None
            and type(actions) is np.ndarray
            and actions.dtype is self._action_dtype
            and actions.shape == (len(ids), *array.shape[1:])
        ):
            array[index] = actions
            return True
        columns = self.action_columns(ids, actions)
        if columns is None:
            return False
        for own, column in zip(self.actions, columns, strict=True):
            assert own is not None  # noqa: S101 - columns are of fixed layouts
            own[index] = column
        return True

    def action_columns(self, ids: IdArray, actions: Any) -> list[Array] | None:
        """Return an array ``(k, ...)`` of actions per leaf; None if the block cannot hold them."""
        if not spaces.is_fixed(self.spec.action):
            return None
        return spaces.batch_actions(self.spec.action, actions, ids.tolist())

    def put_place(self, i: int, place: Place) -> None:
        """Write the place of env ``i`` in its schedule; ValueError for a seed of over 511 bits.

        Only the executor calls this, because only it knows which resets have reached the env. A
        restarted process continues from the place that the previous process wrote.
        """
        root, episode, over = place
        places, at, size = self._places, i * _PLACE, 0
        if root is not None:
            size = root.bit_length() // 8 + 1  # at least one byte: size 0 means no seed
            if size > _LARGEST_SEED:
                raise ValueError("a seed under episode_seeds has at most 511 bits")
            start = i * _LARGEST_SEED
            self._seeds[start : start + size] = root.to_bytes(size, "little")
        places[at], places[at + 1], places[at + 2] = size, episode + 1, over

    def schedule(self, i: int) -> Place:
        """Return the place of env ``i`` in its schedule of episodes."""
        size, resets, over = self._places[i * _PLACE : (i + 1) * _PLACE].tolist()
        seed = bytes(self._seeds[i * _LARGEST_SEED :][:size])
        return int.from_bytes(seed, "little") if size else None, resets - 1, bool(over)

    def final_obs(self, i: int) -> Any:
        """Return a copy of the observation that ended the last episode of env ``i``."""
        rows = [array[i : i + 1].copy() for array in self.finals]
        return spaces.join_rows(self.spec.obs, rows, 1)[0]


class Batches:
    """Gathers rows of the block into batches for the caller.

    Args:
        block: the rows.
        columns: True: a batch of dicts or tuples is one dict or tuple of arrays. False: it is an
            object array of one dict or tuple per env.
        copy: False: a batch of all envs in order consists of views of the block.
    """

    def __init__(self, block: Block, *, columns: bool, copy: bool) -> None:
        layout = block.spec.obs
        self._block = block
        self._in_columns = columns or spaces.is_leaf(layout)
        self._copy = copy
        # Whether an observation is one array; the array of final observations if there is one.
        self._single = spaces.is_leaf(layout) and layout.code is None
        self._final = block.finals[0] if block.finals and self._single and layout.shape else None
        self._reader = info_codec.Reader(*block.info_memory, id_key="env_id")
        # The shape of vector rewards that no space declares; None before the first of them.
        self._reward_shape: tuple[int, ...] | None = None
        self._last: list[Array] | None = None

    def bare_infos(self, listed: list[int]) -> Array:
        """Return a new info for each of these envs, with nothing but its ``env_id``."""
        return np.fromiter([{"env_id": i} for i in listed], object, len(listed))

    def gather(
        self, ids: IdArray, index: Any, beside: dict[int, Beside], out: Any
    ) -> tuple[list[Any], Any, Array, NDArray[np.bool_], NDArray[np.bool_]]:
        """Gather observations (leaf by leaf, and joined for the caller), rewards and flags.

        ``index`` is ``WHOLE`` or the ids; ``beside`` is by env; ``out`` holds an array per leaf to
        gather into, None: new arrays.
        """
        block = self._block
        parts: list[Any] = []
        objects = 0
        for n, array in enumerate(block.obs):
            if array is None:
                values = [beside[i]["objects"][objects] for i in ids.tolist()]
                parts.append(spaces.stack_objects(values, block.obs_leaves[n]))
                objects += 1
            elif out is not None:
                # The default mode, "raise", would gather into a temporary array first.
                parts.append(array.take(ids, axis=0, out=out[n], mode="clip"))
            elif index is not WHOLE:
                parts.append(array[ids] if array.ndim == 1 else array.take(ids, 0))
            else:
                parts.append(array.copy() if self._copy else array)
        if self._last is not None:
            self._note_last(ids, index, parts)
        reward, terminated, truncated = block.reward, block.terminated, block.truncated
        if index is not WHOLE:
            reward, terminated, truncated = reward[ids], terminated[ids], truncated[ids]
        elif self._copy:
            reward, terminated, truncated = reward.copy(), terminated.copy(), truncated.copy()
        if self._reward_shape is not None or beside:
            reward = self._with_undeclared(reward, ids, beside)
        obs = parts[0] if self._single else self._join(parts, len(ids))
        return parts, obs, reward, terminated, truncated

    def _join(self, parts: list[Any], count: int) -> Any:
        """Join the arrays of the leaves into the observations that the caller gets."""
        layout = self._block.spec.obs
        if not self._in_columns:
            return np.fromiter(spaces.join_rows(layout, parts, count), object, count)
        columns = [
            part if leaf.code is None else np.fromiter(leaf.code.decode(part), object, count)
            for leaf, part in zip(self._block.obs_leaves, parts, strict=True)
        ]
        return spaces.join(layout, columns)

    def _with_undeclared(self, reward: Array, ids: IdArray, beside: dict[int, Beside]) -> Array:
        """Return the rewards; some may be vectors of a length that no space declares."""
        own = {i: part["reward"] for i, part in beside.items() if "reward" in part}
        if self._reward_shape is None:
            if not own:
                return reward
            self._reward_shape = next(iter(own.values())).shape
        if all(vector.shape == self._reward_shape for vector in own.values()):
            batch = np.zeros((len(ids), *self._reward_shape))
        else:
            batch = np.empty(len(ids), dtype=object)
        for k, i in enumerate(ids.tolist()):
            batch[k] = own[i] if i in own else float(reward[k])
        return batch

    def complete(
        self,
        infos: Array,
        listed: list[int],
        marked: list[tuple[int, int]],
        beside: dict[int, Beside],
        *,
        resets: bool,
    ) -> None:
        """Add the values of infos to the rows that have a mark.

        ``marked`` are the positions of these rows in the batch, each with its mark; ``infos`` and
        ``listed``, the env ids, are of all rows. ``resets``: set ``is_reset`` in infos of resets.
        """
        read, kept = self._reader.read, self._block.infos
        for k, mark in marked:
            i = listed[k]
            if mark >= FORM:
                form = mark // FORM
                if form == info_codec.KEPT:
                    infos[k] = info = kept[i]
                    info["env_id"] = i
                else:
                    infos[k] = read(i, form)
            elif mark & BESIDE and (info := beside[i].get("info")) is not None:
                infos[k] = info = dict(info)  # an env may return one dict as observation and info
                info["env_id"] = i
            if mark & FINAL:
                info = infos[k]
                if mark & BESIDE and "final_obs" in beside[i]:
                    info["final_obs"] = beside[i]["final_obs"]
                elif self._final is not None:
                    info["final_obs"] = self._final[i].copy()
                else:
                    info["final_obs"] = self._block.final_obs(i)
                info.setdefault("final_info", {})
            if mark & RESET_ROW and resets:
                infos[k]["is_reset"] = True

    def forget_forms(self, ids: Sequence[int]) -> None:
        """Forget the forms of infos of these envs, because a new process numbers them again."""
        for i in ids:
            self._reader.forget(i)

    # ------------------------------------------------------------------------- last observations

    def keep_last(self) -> None:
        """Keep copies of returned observations from now on, because a fault may spoil the row."""
        if self._last is None:
            self._last = [
                np.full(self._block.spec.num_envs, None, dtype=object)
                if array is None
                else np.zeros_like(array)
                for array in self._block.obs
            ]

    def _note_last(self, ids: IdArray, index: Any, parts: list[Any]) -> None:
        assert self._last is not None  # noqa: S101 - for the type checker
        for array, last, part in zip(self._block.obs, self._last, parts, strict=True):
            if array is not None:
                last[index] = part
            else:
                for k, i in enumerate(ids.tolist()):
                    last[i] = spaces.snapshot(part[k])

    def last_obs(self, i: int) -> Any:
        """Return a copy of the last observation of env ``i`` that the caller got."""
        assert self._last is not None  # noqa: S101 - keep_last was called
        parts = [
            spaces.snapshot(array[i] if leaf.dtype is None else leaf.one(array, i))
            for leaf, array in zip(self._block.obs_leaves, self._last, strict=True)
        ]
        return spaces.join(self._block.spec.obs, parts)

    def put_lost(self, i: int) -> Beside:
        """Write the row of a lost step of env ``i``: truncated, the last observation, reward 0.

        Call this only while no executor writes that row. Return the values beside the block.
        """
        assert self._last is not None  # noqa: S101 - keep_last was called
        block, objects = self._block, []
        for array, last in zip(block.obs, self._last, strict=True):
            if array is None:
                objects.append(spaces.snapshot(last[i]))
            else:
                array[i] = last[i]
        block.reward[i] = 0.0
        block.terminated[i], block.truncated[i] = False, True
        block.mark[i] = BESIDE if objects else 0
        return {"objects": objects} if objects else {}


class BufferPool:
    """Buffers for the observations of partial batches, reused with ``copy=False``.

    Allocating memory can take longer than gathering, because the system provides large arrays page
    by page. A buffer is free again once every env of its batch was sent its next request.
    """

    def __init__(self, block: Block) -> None:
        self._arrays = block.obs
        self._buffers: list[list[Array | None]] = []
        # For each env the number of the buffer that holds its last row, or -1.
        self._held = np.full(block.spec.num_envs, -1)

    def release(self, ids: IdArray) -> None:
        """Release the last rows of these envs, which are sent their next request."""
        self._held[ids] = -1

    def take(self, ids: IdArray) -> list[Array | None]:
        """Return an array ``(k, *shape)`` for each leaf; None for a leaf of objects."""
        self.release(ids)
        taken = set(self._held.tolist())
        number = next(n for n in itertools.count() if n not in taken)
        if number == len(self._buffers):
            self._buffers.append(
                [None if array is None else np.empty_like(array) for array in self._arrays]
            )
        self._held[ids] = number
        return [None if array is None else array[: len(ids)] for array in self._buffers[number]]


def nbytes(spec: Spec) -> int:
    """Return the size of the buffer that a block needs, in bytes."""
    return _fields(spec)[1]


def _fields(spec: Spec) -> tuple[list[tuple[str, tuple[int, ...], np.dtype[Any], int]], int]:
    """Return (name, shape, dtype, offset in bytes) of every field, and the total size in bytes."""
    n, byte = spec.num_envs, np.dtype(np.uint8)
    ends = [("reward", "f8", spec.reward), ("terminated", "?"), ("truncated", "?"), ("mark", "u2")]
    wanted: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = [
        ("ends", (n,), np.dtype(ends, align=True))
    ]
    layouts = [("obs", spec.obs), ("action", spec.action)]
    layouts += [("final", spec.obs)] if spec.finals else []
    for name, layout in layouts:
        for number, leaf in enumerate(spaces.leaves(layout)):
            if leaf.dtype is not None:
                wanted.append((f"{name} {number}", (n, *leaf.shape), leaf.dtype))
    wanted += [
        ("info rows", (n * info_codec.ROW_BYTES,), byte),
        ("info tables", (n * info_codec.TABLE_BYTES,), byte),
        ("places", (n * _PLACE,), np.dtype(np.int64)),
        ("seeds", (n * _LARGEST_SEED,), byte),
        ("heartbeats", (spec.num_processes, watchdog.NUMBERS), np.dtype(np.int64)),
        ("times", (n if spec.measured else 0, times.NUMBERS), np.dtype(np.int64)),
    ]
    fields, offset = [], 0
    for name, dims, dtype in wanted:
        fields.append((name, dims, dtype, offset))
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        offset += -(-size // _ALIGN) * _ALIGN
    return fields, offset
