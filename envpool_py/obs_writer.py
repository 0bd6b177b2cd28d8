"""Write one observation, or read one action, where it lies in the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from envpool_py import spaces
from envpool_py.block import Beside, Block
from envpool_py.errors import from_signal_handler
from envpool_py.spaces import Array, Leaf

Write: TypeAlias = "Callable[[int, Any], object]"

# What a store raises that does not fit.
UNFIT = (TypeError, ValueError, NotImplementedError)


def view(array: Array) -> Any:
    """A view whose items are Python's own numbers: a store takes a third of NumPy's time."""
    return memoryview(array)  # type: ignore[arg-type]


def flat_rows(leaf: Leaf, array: Array | None) -> list[Any] | None:
    """For each env memory that takes arrays of just its own shape and dtype, and refuses others.

    None where there is no such memory: that of bytes does not refuse ``bytes``, which are no
    observation.
    """
    if array is None or array.dtype == np.uint8 or array.dtype.kind not in "biufc":
        return None
    return list(map(view, array)) if len(leaf.shape) == 1 and leaf.code is None else None


def refuse_signals(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it: it says nothing of a value."""
    trace = error.__traceback__
    # What a store itself raises comes from no deeper frame.
    if trace is not None and trace.tb_next is not None and from_signal_handler(error):
        raise error


def writer_of(layout: Any, arrays: Sequence[Array | None], what: str, beside: Beside) -> Write:
    """What writes values of a layout: ``write(i, value)`` for env ``i``.

    It takes what is equal, and raises TypeError or ValueError for anything else. Objects, which no
    array holds, go to ``beside``; ``what`` names the value in messages.
    """
    return _writer(layout, iter(arrays), what, beside)


def _writer(layout: Any, arrays: Any, what: str, beside: Beside) -> Write:
    if spaces.is_leaf(layout):
        return _leaf_writer(layout, next(arrays), what, beside)
    kind = dict if isinstance(layout, dict) else tuple
    keyed = layout.items() if isinstance(layout, dict) else enumerate(layout)
    writers = [(key, _writer(part, arrays, f"{what}[{key!r}]", beside)) for key, part in keyed]
    count = len(writers)

    def write(i: int, value: Any) -> None:
        if type(value) is not kind or len(value) != count:
            spaces.split(layout, value, what)  # which raises if it is no value of the layout
        try:
            for key, write_part in writers:
                write_part(i, value[key])
        except KeyError:
            spaces.split(layout, value, what)
            raise

    return write


def _leaf_writer(leaf: Leaf, array: Array | None, what: str, beside: Beside) -> Write:
    if array is None:
        return lambda _, value: beside.setdefault("objects", []).append(value)
    # Of NumPy's own dtypes there is one each, and identity is quick to see.
    own, shape, dtype = array, leaf.shape, np.dtype(array.dtype.str)

    def fit(i: int, value: Any) -> None:
        own[i] = spaces.fit(value, shape, dtype, what, "observation_space")

    if leaf.code is not None:
        encode = leaf.code.encode

        def write_code(i: int, value: Any) -> None:
            own[i] = encode(value, what)

        return write_code
    if leaf.scalar:
        cells, kind = view(array), array.dtype.type

        def write_number(i: int, value: Any) -> None:
            if type(value) is kind:
                cells[i] = value
            else:
                fit(i, value)

        return write_number
    flat = flat_rows(leaf, array)
    if flat is not None:

        def write_flat(i: int, value: Any) -> None:
            try:
                flat[i][:] = value
            except UNFIT as error:
                refuse_signals(error)
                fit(i, value)

        return write_flat
    rows = [array[i, ...] for i in range(len(array))]

    def write_array(i: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            rows[i][...] = value
        else:
            fit(i, value)

    return write_array


def actions_of(block: Block) -> Any:
    """What gives the action of an env, by its id in brackets, in the type that its space samples.

    The action is the env's own: what the env does to it reaches nobody else. It is None where the
    block cannot hold actions, and they come with the request.
    """
    layout = block.spec.action
    held = [array for array in block.actions if array is not None]
    if len(held) < len(block.actions):
        return [None] * block.spec.num_envs
    rows = [
        array if leaf.scalar else _Copies(array)
        for leaf, array in zip(spaces.leaves(layout), held, strict=True)
    ]
    return rows[0] if spaces.is_leaf(layout) else _Joined(spaces.join(layout, rows))


class _Copies:
    def __init__(self, array: Array) -> None:
        self._rows = [array[i, ...] for i in range(len(array))]

    def __getitem__(self, i: int) -> Array:
        return self._rows[i].copy()


class _Joined:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __getitem__(self, i: int) -> Any:
        return spaces.map_tree(itemgetter(i), self._rows)
