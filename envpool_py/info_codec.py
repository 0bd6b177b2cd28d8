"""Typed infos: the numbers of an info as bytes in the block, so that they cost no pickle.

An info whose values are all numbers, or small arrays of numbers, is kept as ``ROW_BYTES`` at the
most per env. What they mean, the *form* of the info (its keys and the types of its values), is
learnt from the infos themselves: whoever steps the env writes each new form once into a small table
of that env's, which lies in the block as well, and from then on a row says which form it has. So a
form can't be lost or overtaken on its way: it is there before the row that needs it. What comes
back is equal in value and in type; any other info goes whole by the row's side.
"""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

#: Bytes that an env has for the values of its info: ten numbers, and a few small arrays.
ROW_BYTES = 256
#: Bytes that an env has for the forms of its infos.
TABLE_BYTES = 1024
#: Forms that an env may have; a row's number of its form is from 1 to this.
MAX_FORMS = 60

# The types whose values a struct gives back exactly, by its letters. Python's ints are of any
# length: one that is too long for 8 bytes is refused by the struct, and goes by the side.
_LETTERS: dict[type, str] = {
    float: "d",
    int: "q",
    bool: "?",
    np.bool_: "?",
    np.float64: "d",
    np.float32: "f",
    np.float16: "e",
    np.int8: "b",
    np.int16: "h",
    np.int32: "i",
    np.int64: "q",
    np.uint8: "B",
    np.uint16: "H",
    np.uint32: "I",
    np.uint64: "Q",
}
_OWN = (float, int, bool)  # what a struct gives back
#: The types of what counts as a number.
NUMBERS = frozenset(_LETTERS)
_LENGTH = struct.Struct("=i")


class Form(NamedTuple):
    """What the bytes of an info mean.

    ``arrays``: for each value the dtype and shape of an array, None for a number.
    """

    keys: tuple[str, ...]
    types: list[type]
    arrays: list[tuple[str, tuple[int, ...]] | None]


def form_of(info: dict[str, Any]) -> Form | None:
    """The form of an info, or None where its values can't be kept as bytes."""
    arrays: list[tuple[str, tuple[int, ...]] | None] = []
    for key, value in info.items():
        if type(key) is not str:
            return None
        if type(value) in _LETTERS:
            arrays.append(None)
        elif type(value) is np.ndarray and value.size and _is_plain(value.dtype):
            arrays.append((value.dtype.str, value.shape))
        else:
            return None
    return Form(tuple(info), list(map(type, info.values())), arrays)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.isnative


def _struct_of(form: Form) -> struct.Struct:
    letters = [
        _LETTERS[kind] if array is None else f"{_nbytes(array)}s"
        for kind, array in zip(form.types, form.arrays, strict=True)
    ]
    return struct.Struct("=" + "".join(letters))


def _nbytes(array: tuple[str, tuple[int, ...]]) -> int:
    return int(np.prod(array[1], dtype=np.int64)) * np.dtype(array[0]).itemsize


class Packer:
    """The side that steps the envs: writes infos into the block.

    Args:
        rows: memory of ``(num_envs, ROW_BYTES)``.
        tables: memory of ``(num_envs, TABLE_BYTES)``.
    """

    def __init__(self, rows: memoryview, tables: memoryview) -> None:
        self._rows = rows
        self._tables = tables
        # By env and keys: types, which of them are arrays, the struct's pack_into, the number.
        self._known: dict[int, dict[tuple[str, ...], Any]] = {}
        # By env: what was ever learnt, of which ``_known`` holds the last for each keys.
        self._learnt: dict[int, dict[Any, Any]] = {}
        # By env: the bytes of its table that are taken.
        self._used: dict[int, int] = {}

    def pack(self, i: int, info: dict[str, Any]) -> int:
        """Write the info of env ``i``; return the number of its form, 0 where it can't be kept."""
        try:
            types, arrays, pack_into, number = self._known[i][tuple(info)]
        except KeyError:
            return self._learn(i, info)
        values = info.values()
        if list(map(type, values)) != types:
            return self._learn(i, info)
        try:
            if arrays is None:
                pack_into(self._rows, i * ROW_BYTES, *values)
                return number  # type: ignore[no-any-return]
            packed = list(values)
            for place, dtype, shape in arrays:
                array = packed[place]
                if array.dtype != dtype or array.shape != shape:
                    return self._learn(i, info)
                packed[place] = array.tobytes()
            pack_into(self._rows, i * ROW_BYTES, *packed)
        except struct.error:  # an int of more than 8 bytes
            return 0
        return number  # type: ignore[no-any-return]

    def _learn(self, i: int, info: dict[str, Any]) -> int:
        """Write an info that is not of the form that its keys had last; return as ``pack``."""
        form = form_of(info)
        if form is None:
            return 0
        known = self._known.setdefault(i, {})
        learnt = self._learnt.setdefault(i, {})
        token = (form.keys, tuple(form.types), tuple(form.arrays))
        if token not in learnt:
            layout = _struct_of(form)
            data = pickle.dumps(form, protocol=5)
            used = self._used.get(i, 0)
            end = used + _LENGTH.size + len(data)
            if layout.size > ROW_BYTES or end > TABLE_BYTES or len(learnt) == MAX_FORMS:
                return 0
            start = i * TABLE_BYTES + used
            self._tables[start : i * TABLE_BYTES + end] = _LENGTH.pack(len(data)) + data
            self._used[i] = end
            arrays = [(n, np.dtype(a[0]), a[1]) for n, a in enumerate(form.arrays) if a is not None]
            learnt[token] = (form.types, arrays or None, layout.pack_into, len(learnt) + 1)
        known[form.keys] = learnt[token]
        return self.pack(i, info)


class Reader:
    """The pool's side: reads the infos back.

    Args:
        rows: memory of ``(num_envs, ROW_BYTES)``.
        tables: memory of ``(num_envs, TABLE_BYTES)``.
        id_key: the key under which each info is to say its env as well; None: nowhere.
    """

    def __init__(self, rows: memoryview, tables: memoryview, id_key: str | None = None) -> None:
        self._rows = rows
        self._tables = tables
        self._id_key = id_key
        # By env: what reads an info of each form, at the place of the form's number.
        self._known: dict[int, list[Callable[[], dict[str, Any]]]] = {}

    def read(self, i: int, number: int) -> dict[str, Any]:
        """A new dict: the info of env ``i``, which has that form."""
        try:
            return self._known[i][number]()
        except (KeyError, IndexError):
            self._look_up(i, number)
            return self._known[i][number]()

    def forget(self, i: int) -> None:
        """Env ``i`` has another process now, which begins its table anew."""
        self._known.pop(i, None)

    def _look_up(self, i: int, number: int) -> None:
        start = i * TABLE_BYTES
        found: list[Callable[[], dict[str, Any]]] = [dict]
        for _ in range(number):
            (length,) = _LENGTH.unpack_from(self._tables, start)
            start += _LENGTH.size
            form = pickle.loads(self._tables[start : start + length])  # noqa: S301 - from our own worker process
            found.append(self._reader_of(form, i))
            start += length
        self._known[i] = found

    def _reader_of(self, form: Form, i: int) -> Callable[[], dict[str, Any]]:
        make = _maker(form.keys, tuple(form.types), tuple(form.arrays), self._id_key)
        rows, unpack, offset = self._rows, _struct_of(form).unpack_from, i * ROW_BYTES
        return lambda: make(i, *unpack(rows, offset))


@functools.lru_cache(maxsize=1024)
def _maker(
    keys: tuple[str, ...],
    types: tuple[type, ...],
    arrays: tuple[tuple[str, tuple[int, ...]] | None, ...],
    id_key: str | None,
) -> Callable[..., dict[str, Any]]:
    """A function of an env's id and the values of its info that makes the info.

    Compiled for the form: a dict display is two or three times as fast as any loop.
    """
    makers: dict[str, Any] = {}
    items = []
    for n, (key, kind, array) in enumerate(zip(keys, types, arrays, strict=True)):
        if array is None and kind in _OWN:
            items.append(f"{key!r}: v{n}")
        else:
            makers[f"make{n}"] = kind if array is None else _array_of(*array)
            items.append(f"{key!r}: make{n}(v{n})")
    if id_key is not None:
        items.append(f"{id_key!r}: i")
    names = "".join(f", v{n}" for n in range(len(keys)))
    # Of the keys nothing but what ``repr`` writes of a string gets into it.
    make = eval(f"lambda i{names}: {{{', '.join(items)}}}", makers)  # noqa: S307
    return cast("Callable[..., dict[str, Any]]", make)


def _array_of(dtype: str, shape: tuple[int, ...]) -> Callable[[bytes], Any]:
    return lambda data: np.frombuffer(data, dtype).reshape(shape).copy()
