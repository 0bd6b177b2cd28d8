"""Write one observation, or read one action, where it lies in the block.

``put(i, value)`` returns whether a value had just the right shapes and dtypes and was written; if
not, a part of it may have been. ``fit(i, value)`` is the slow way: it takes what is equal, raises
TypeError or ValueError for anything else, and returns the objects that no array holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from envpool_py import spaces
from envpool_py.block import leaf_name
from envpool_py.errors import from_signal_handler
from envpool_py.spaces import Array, Leaf

Put: TypeAlias = "Callable[[int, Any], bool]"

# What a store raises that does not fit.
UNFIT = (TypeError, ValueError, NotImplementedError)


def view(array: Array) -> Any:
    """A view whose items are Python's own numbers: a store takes a third of NumPy's time."""
    return memoryview(array)  # type: ignore[arg-type]


def is_flat(leaf: Leaf) -> bool:
    """Whether memory of a value takes arrays of just its own shape and dtype, and refuses others.

    Memory of bytes does not refuse ``bytes``, which are no observation.
    """
    dtype = leaf.dtype
    plain = dtype is not None and dtype.kind in "biufc" and dtype != np.uint8
    return plain and len(leaf.shape) == 1 and leaf.code is None


def put_of(layout: Any, arrays: Sequence[Array | None]) -> Put | None:
    """The ``put`` of a layout; None where there is only the slow way."""
    if spaces.is_leaf(layout):
        if arrays[0] is None or layout.code is not None or not layout.shape:
            return None
        return _put_leaf(arrays[0], layout)
    if isinstance(layout, dict) and all(map(spaces.is_leaf, layout.values())):
        if any(array is None for array in arrays):
            return None
        return _put_dict(layout, [array for array in arrays if array is not None])
    return None


def _put_leaf(array: Array, leaf: Leaf) -> Put:
    if is_flat(leaf):
        places = list(map(view, array))

        def put_flat(i: int, value: Any) -> bool:
            try:
                places[i][:] = value
            except UNFIT as error:
                refuse_signals(error)
                return False
            return True

        return put_flat

    rows = [array[i, ...] for i in range(len(array))]
    shape, dtype = leaf.shape, np.dtype(array.dtype.str)

    def put(i: int, value: Any) -> bool:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            return False
        rows[i][...] = value
        return True

    return put


def _put_coded(array: Array, encode: Callable[[Any, str], Any]) -> Put:
    def put(i: int, value: Any) -> bool:
        array[i, ...] = encode(value, "obs")
        return True

    return put


def _put_dict(layout: dict[Any, Leaf], arrays: Sequence[Array]) -> Put:
    flat: list[tuple[Any, list[Any]]] = []
    numbers: list[tuple[Any, Any, type]] = []
    others: list[tuple[Any, Put]] = []
    for (key, leaf), array in zip(layout.items(), arrays, strict=True):
        if leaf.code is not None:
            others.append((key, _put_coded(array, leaf.code.encode)))
        elif leaf.scalar:
            numbers.append((key, view(array), array.dtype.type))
        elif is_flat(leaf):
            flat.append((key, list(map(view, array))))
        else:
            others.append((key, _put_leaf(array, leaf)))
    count = len(layout)

    def put(i: int, value: Any) -> bool:
        if type(value) is not dict or len(value) != count:
            return False
        try:
            for key, places in flat:
                places[i][:] = value[key]
            for key, cells, kind in numbers:
                part = value[key]
                if type(part) is not kind:
                    return False
                cells[i] = part
            for key, put_part in others:
                if not put_part(i, value[key]):
                    return False
        except (KeyError, *UNFIT) as error:
            refuse_signals(error)
            return False
        return True

    return put


def refuse_signals(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it: it says nothing of a value."""
    trace = error.__traceback__
    # What a store itself raises comes from no deeper frame.
    if trace is not None and trace.tb_next is not None and from_signal_handler(error):
        raise error


def fit_of(
    layout: Any, arrays: Sequence[Array | None], what: str
) -> Callable[[int, Any], list[Any]]:
    """The ``fit`` of a layout; ``what`` names the value in messages."""
    leaves = spaces.leaves(layout)
    single = spaces.is_leaf(layout)

    def fit(i: int, value: Any) -> list[Any]:
        parts = [value] if single else spaces.split(layout, value, what)
        objects: list[Any] = []
        for leaf, array, part in zip(leaves, arrays, parts, strict=True):
            if array is None:
                objects.append(part)
            elif leaf.code is not None:
                array[i] = leaf.code.encode(part, leaf_name(leaf, what))
            else:
                name = leaf_name(leaf, what)
                array[i] = spaces.fit(part, leaf.shape, array.dtype, name, "observation_space")
        return objects

    return fit


def actions_of(layout: Any, leaves: Sequence[Leaf], arrays: Sequence[Array | None]) -> Any:
    """What gives the action of an env, by its id in brackets, in the type that its space samples.

    The action is the env's own: what the env does to it reaches nobody else.
    """
    if not all(array is not None for array in arrays):
        return _NoActions()
    if spaces.is_leaf(layout) and arrays[0] is not None:
        if leaves[0].scalar:
            return arrays[0]
        return _Copies([arrays[0][i, ...] for i in range(len(arrays[0]))])
    return _Joined(layout, leaves, arrays)


class _NoActions:
    def __getitem__(self, i: int) -> None:
        """Actions of these envs are objects, and come with the request."""


class _Copies:
    def __init__(self, rows: Sequence[Array]) -> None:
        self._rows = rows

    def __getitem__(self, i: int) -> Array:
        return self._rows[i].copy()


class _Joined:
    def __init__(self, layout: Any, leaves: Sequence[Leaf], arrays: Sequence[Array | None]) -> None:
        self._layout = layout
        self._pairs = list(zip(leaves, arrays, strict=True))

    def __getitem__(self, i: int) -> Any:
        return spaces.join(self._layout, [leaf.one(array, i).copy() for leaf, array in self._pairs])  # type: ignore[arg-type]
