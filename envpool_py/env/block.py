"""The block: the latest row of every env and its next action, as fields over one buffer.

Fields with a fixed shape are arrays ``(num_envs, ...)``, in memory that processes may share: the
process that steps env ``i`` writes row ``i`` (``envpool_py.env.step_loop``), the pool writes the
action and reads the row. Values without a fixed shape (objects, infos that are not all numbers) are
sent *beside* the block; the row's mark says so.

Reward, flags and mark of a row are adjacent in memory. In one array per field, the flags of 64 envs
would share a cache line, and processes that write to one cache line slow each other down.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py.env import heartbeat, info_codec, spaces, step_times
from envpool_py.env.spaces import Array
from envpool_py.env_ids import Selection

#: (obs, reward, terminated, truncated, info)
StepResult: TypeAlias = (
    "tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Array]"
)
#: The values of one row that are sent beside the block: some of ``objects``, ``info``,
#: ``final_obs``, ``reply``, ``reward`` (a vector that no space declares), ``warnings``.
Beside: TypeAlias = "dict[str, Any]"

#: The position of an env: the number of its episode (-1 before the first), and whether that episode
#: is over.
Position: TypeAlias = "tuple[int, bool]"

#: The bits of a mark: values are beside the block; the row ended an episode in same_step mode; the
#: row is that of a reset; the episode is over; from ``FORM`` on the number of the info's form, see
#: ``info_codec``.
BESIDE, FINAL, RESET_ROW, OVER, FORM = 1, 2, 4, 8, 16

_ALIGN = 64  # bytes: a cache line, and at least the alignment of any dtype


class Spec(NamedTuple):
    """The description of a block that determines its fields; picklable.

    ``obs`` and ``action`` are layouts, see ``spaces``. ``finals``: the block also holds final
    observations. ``timed``: steps have a timeout. ``measured``: steps are timed. ``local``: this
    process steps all envs, so that the block holds objects, too.
    """

    num_envs: int
    obs: Any
    action: Any
    reward: tuple[int, ...] = ()
    finals: bool = False
    timed: bool = False
    measured: bool = False
    local: bool = False


class Block:
    """Arrays over ``buffer``, which has ``block_bytes(spec)`` zero bytes; None: allocate one."""

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
        objects = [None] * spec.num_envs
        #: The same, with a list for each leaf of objects, if the block is local.
        self.targets = [objects[:] if a is None and spec.local else a for a in self.obs]
        self.finals = [arrays[f"final {n}"] for n in range(len(self.obs_leaves)) if spec.finals]
        num_actions = len(spaces.leaves(spec.action))
        self.actions: list[Any] = [arrays.get(f"action {n}") for n in range(num_actions)]
        self._action = self.actions[0] if spaces.is_leaf(spec.action) else None
        #: The actions that no array holds; None: arrays hold all. Not shared with other processes.
        self.object_actions = None if spaces.is_fixed(spec.action) else objects
        self.results = arrays["results"]
        self.reward, self.terminated, self.truncated, self.mark = (
            self.results[name] for name in ("reward", "terminated", "truncated", "mark")
        )
        #: For a ``Packer`` and a ``Reader`` of infos.
        self.info_memory: tuple[Any, Any] = arrays["info rows"].data, arrays["info tables"].data
        #: Infos of rows that are written in this process.
        self.infos: list[Any] = [None] * spec.num_envs
        self.positions: Any = arrays["positions"].data  # faster to index than an array
        self.heartbeats = arrays["heartbeats"]
        self.times = arrays["times"]

    def put_actions(self, envs: Selection, actions: Any) -> bool:
        """Write the actions of these envs; return False if the block cannot hold them.

        ``actions`` is an array ``(k, *shape)`` or another form that ``spaces.batch_actions``
        accepts. If this raises, nothing was written.
        """
        # The fast test of the usual case: one array of the right dtype and shape.
        array, index = self._action, envs.index
        if (
            array is not None
            and type(actions) is np.ndarray
            and actions.dtype == array.dtype
            and actions.shape == (len(envs.ids), *array.shape[1:])
        ):
            array[index] = actions
            return True
        listed, cells = envs.ids.tolist(), self.object_actions
        if cells is not None and self.spec.local:
            rows = spaces.list_actions(self.spec.action, actions, listed)
            for i, row in zip(listed, rows, strict=True):
                cells[i] = spaces.snapshot(row)  # the env may change it
            return True
        columns = spaces.batch_actions(self.spec.action, actions, listed)
        if columns is None:
            return False
        for array, column in zip(self.actions, columns, strict=True):
            array[index] = column
        return True

    def keep_info(self, i: int, info: dict[str, Any]) -> int:
        """Keep a copy of the info of a row that is written in this process; return its form."""
        self.infos[i] = spaces.snapshot(info)
        return info_codec.KEPT

    def put_position(self, i: int, position: Position) -> None:
        """Write the position of env ``i``, from which a restarted process continues."""
        # Only the executor knows it, because only the executor knows which resets reached the env.
        episode, over = position
        self.positions[i] = 2 * (episode + 1) + over  # 0 before the first episode

    @staticmethod
    def position(number: int) -> Position:
        resets, over = divmod(int(number), 2)
        return resets - 1, bool(over)


def block_bytes(spec: Spec) -> int:
    return _fields(spec)[1]


def _fields(spec: Spec) -> tuple[list[tuple[str, tuple[int, ...], np.dtype[Any], int]], int]:
    """Return (name, shape, dtype, offset in bytes) of every field, and the total size in bytes."""
    n = spec.num_envs
    ends = [("reward", "f8", spec.reward), ("terminated", "?"), ("truncated", "?"), ("mark", "u2")]
    wanted: list[tuple[str, tuple[int, ...], Any]] = [("results", (n,), np.dtype(ends, align=True))]
    layouts = [("obs", spec.obs), ("action", spec.action)]
    layouts += [("final", spec.obs)] if spec.finals else []
    for name, layout in layouts:
        for number, leaf in enumerate(spaces.leaves(layout)):
            if leaf.dtype is not None:
                wanted.append((f"{name} {number}", (n, *leaf.shape), leaf.dtype.str))
    wanted += [
        ("info rows", (n * info_codec.ROW_BYTES,), "u1"),
        ("info tables", (n * info_codec.TABLE_BYTES,), "u1"),
        ("positions", (n,), "i8"),
        ("heartbeats", (n,), heartbeat.HEARTBEAT),
        ("times", (n if spec.measured else 0, step_times.ROW_LENGTH), "i8"),
    ]
    fields, offset = [], 0
    for name, dims, code in wanted:
        # NumPy's own object, whose identity fast tests compare; one that was pickled is another.
        dtype = np.dtype(code)
        fields.append((name, dims, dtype, offset))
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        offset += -(-size // _ALIGN) * _ALIGN
    return fields, offset
