"""The places of values in arrays: views that are quick to write to, and who writes to them.

Functions of arrays ``(num_envs, ...)`` and of the leaves that say what they hold; none of them
knows what a row is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envpool_py.spaces import Array, Leaf


def of(array: Array) -> Any:
    """A view whose items are Python's own numbers: a store takes a third of NumPy's time."""
    return memoryview(array)  # type: ignore[arg-type]


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    """The dtype of a leaf that has one."""
    assert leaf.dtype is not None  # noqa: S101 - for the type checker
    return leaf.dtype


def own_dtype(leaf: Leaf) -> np.dtype[Any] | None:
    """The leaf's dtype as NumPy's own: of those there is one each, and identity is quick to see."""
    return None if leaf.dtype is None else np.dtype(leaf.dtype.str)


def is_flat(leaf: Leaf) -> bool:
    """Whether memory of a value takes arrays of just its own shape and dtype, and refuses others.

    That of bytes does not: it takes ``bytes`` too, which are no observation.
    """
    dtype = dtype_of(leaf)
    plain = dtype.kind in "biufc" and dtype != np.uint8
    return plain and len(leaf.shape) == 1 and leaf.code is None


def put_one(array: Array, leaf: Leaf) -> Callable[[int, Any], bool]:
    """A function that writes a value of one leaf if it is just right, and returns whether it is."""
    if is_flat(leaf):
        places = list(map(of, array))

        def put_flat(i: int, obs: Any) -> bool:
            try:
                places[i][:] = obs
            except (TypeError, ValueError, NotImplementedError):
                return False
            return True

        return put_flat

    rows, dims, dtype = [array[i, ...] for i in range(len(array))], leaf.shape, own_dtype(leaf)

    def put(i: int, obs: Any) -> bool:
        if type(obs) is not np.ndarray or obs.dtype is not dtype or obs.shape != dims:
            return False
        rows[i][...] = obs
        return True

    return put


def _put_coded(array: Array, encode: Callable[[Any, str], Any]) -> Callable[[int, Any], bool]:
    def put(i: int, value: Any) -> bool:
        array[i, ...] = encode(value, "obs")
        return True

    return put


def put_dict(layout: dict[Any, Leaf], arrays: Sequence[Array]) -> Callable[[int, Any], bool]:
    """As ``put_one``, of a dict of leaves."""
    flat: list[tuple[Any, list[memoryview]]] = []
    numbers: list[tuple[Any, Any, type]] = []
    others: list[tuple[Any, Callable[[int, Any], bool]]] = []
    for (key, leaf), array in zip(layout.items(), arrays, strict=True):
        if leaf.code is not None:
            others.append((key, _put_coded(array, leaf.code.encode)))
        elif leaf.scalar:
            numbers.append((key, of(array), array.dtype.type))
        elif is_flat(leaf):
            flat.append((key, list(map(of, array))))
        else:
            others.append((key, put_one(array, leaf)))
    count = len(layout)

    def put(i: int, obs: Any) -> bool:
        if type(obs) is not dict or len(obs) != count:
            return False
        try:
            for key, places in flat:
                places[i][:] = obs[key]
            for key, cells, kind in numbers:
                part = obs[key]
                if type(part) is not kind:
                    return False
                cells[i] = part
            for key, put_part in others:
                if not put_part(i, obs[key]):
                    return False
        except (KeyError, TypeError, ValueError, NotImplementedError):
            return False
        return True

    return put
