"""Write one observation into the block, or read one action from it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from envpool_py.env import spaces
from envpool_py.env.block import Beside, Block
from envpool_py.env.spaces import Array, Leaf
from envpool_py.interrupts import ordinary

Write: TypeAlias = "Callable[[int, Any], object]"


def _rows_of(ids: Iterable[int], array: Array) -> list[Any]:
    # Not those of all envs: with a thread per env, the time would grow with the square.
    rows: list[Any] = [None] * len(array)
    for i in ids:
        rows[i] = array[i, ...]
    return rows


def flat_rows(leaf: Leaf, array: Array | None, ids: Iterable[int]) -> list[Any] | None:
    """Return a memoryview for each of these envs; it accepts only arrays of its shape and dtype.

    A store to it takes a third of the time of a store to an array. None if there is no such view;
    uint8 is excluded, because its view would accept ``bytes``.
    """
    if array is None or array.dtype == np.uint8 or array.dtype.kind not in "biufc":
        return None
    if len(leaf.shape) != 1 or leaf.code is not None:
        return None
    rows = _rows_of(ids, array)
    for i in ids:
        rows[i] = rows[i].data
    return rows


def writer_of(
    layout: Any, arrays: Iterator[Any], what: str, beside: Beside, ids: Iterable[int]
) -> Write:
    """Return ``write(i, value)``, which stores a value of the layout for env ``i`` of ``ids``.

    It raises TypeError or ValueError for a value that the arrays cannot hold without loss. Objects
    go to ``beside`` if there is no list for them. Messages call the value ``what``. ``arrays``
    yields what ``Block.targets`` has for each leaf.
    """
    if spaces.is_leaf(layout):
        return _leaf_writer(layout, next(arrays), what, beside, ids)
    kind = dict if isinstance(layout, dict) else tuple
    keyed = layout.items() if isinstance(layout, dict) else enumerate(layout)
    writers = [
        (key, writer_of(part, arrays, f"{what}[{key!r}]", beside, ids)) for key, part in keyed
    ]
    count = len(writers)

    def write(i: int, value: Any) -> None:
        if type(value) is not kind or len(value) != count:
            spaces.split(layout, value, what)  # raises if the value does not fit the layout
        try:
            for key, write_part in writers:
                write_part(i, value[key])
        except KeyError:
            spaces.split(layout, value, what)
            raise

    return write


def _leaf_writer(leaf: Leaf, array: Any, what: str, beside: Beside, ids: Iterable[int]) -> Write:
    if array is None:
        return lambda _, value: beside.setdefault("objects", []).append(value)
    if leaf.dtype is None:
        return lambda i, value: array.__setitem__(i, spaces.snapshot(value))  # it may change later
    target, shape, dtype, code = array, leaf.shape, array.dtype, leaf.code

    def fit(i: int, value: Any) -> None:
        if code is not None:
            target[i] = code.encode(value, what)
        else:
            target[i] = spaces.fit(value, shape, dtype, what, "observation_space")

    if code is not None:
        return fit
    if leaf.scalar:
        cells, kind = array.data, dtype.type

        def write_number(i: int, value: Any) -> None:
            try:
                cells[i] = value if type(value) is kind else operator.index(value)
            except ordinary(TypeError, ValueError):
                fit(i, value)

        return write_number
    flat = flat_rows(leaf, array, ids)
    if flat is not None:

        def write_flat(i: int, value: Any) -> None:
            try:
                flat[i][:] = value
            except ordinary(TypeError, ValueError, NotImplementedError):
                fit(i, value)

        return write_flat
    rows = _rows_of(ids, array)

    def write_array(i: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            rows[i][...] = value
        else:
            fit(i, value)

    return write_array


def actions_of(block: Block, ids: Iterable[int]) -> Any:
    """Return the actions of these envs, by id, each of the type that ``[i]`` of a batch has.

    Each action is a copy, which the env may change. A list if arrays cannot hold actions: in a
    worker process they are in the request.
    """
    layout = block.spec.action
    if block.object_actions is not None:
        return block.object_actions
    readers = list(map(partial(_reader, ids), spaces.leaves(layout), block.actions))
    if spaces.is_leaf(layout):
        return readers[0]
    return _Rows(partial(spaces.take, spaces.join(layout, readers)))


def _reader(ids: Iterable[int], leaf: Leaf, array: Array) -> Any:
    if leaf.scalar or not (leaf.shape or leaf.path):  # a NumPy scalar, as ``actions[i]`` is
        return array
    rows = _rows_of(ids, array)
    return _Rows(lambda i: rows[i].copy())


class _Rows:
    def __init__(self, read: Callable[[int], Any]) -> None:
        self._read = read

    def __getitem__(self, i: int) -> Any:
        return self._read(i)
