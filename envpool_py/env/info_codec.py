"""Store numeric infos as bytes in the block, so that they need no pickling.

An info whose values are all numbers, or small arrays of numbers, takes at most ``ROW_BYTES`` per
env. The *form* of an info is its keys and the types of its values. The process that steps the env
writes each new form once into the env's table in the block, before the first row that has that
form; each row holds the number of its form. An info that is read has equal values of equal types.
Any other info is sent beside the block.
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
#: Forms that an env may have; they are numbered from 1.
MAX_FORMS = 60
#: In place of the number of a form: the info is in ``Block.infos`` of this process.
KEPT = MAX_FORMS + 1

# The types whose values a struct restores exactly, by its letters. The struct refuses an int of
# more than 8 bytes, and the info is then sent beside the block.
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
_OWN = (float, int, bool)  # the types that a struct returns
_LENGTH = struct.Struct("=i")


class Form(NamedTuple):
    """The form of an info; ``arrays`` has dtype and shape of each array, None for a number."""

    keys: tuple[str, ...]
    types: tuple[type, ...]
    arrays: tuple[tuple[str, tuple[int, ...]] | None, ...]

    def layout(self) -> struct.Struct:
        letters = [
            _LETTERS[kind] if array is None else f"{np.dtype(array).itemsize}s"
            for kind, array in zip(self.types, self.arrays, strict=True)
        ]
        return struct.Struct("=" + "".join(letters))


def form_of(info: dict[str, Any]) -> Form | None:
    """Return the form of an info, or None if its values cannot be stored as bytes."""
    arrays: list[tuple[str, tuple[int, ...]] | None] = []
    for key, value in info.items():
        if type(key) is not str:
            return None
        if type(value) in _LETTERS:
            arrays.append(None)
        elif type(value) is np.ndarray and value.size and value.dtype.kind in "biuf":
            arrays.append((value.dtype.str, value.shape))
        else:
            return None
    return Form(tuple(info), tuple(map(type, info.values())), tuple(arrays))


class Packer:
    """Writes infos into the block; used by the process that steps the envs.

    ``rows`` is memory of ``(num_envs, ROW_BYTES)``, ``tables`` of ``(num_envs, TABLE_BYTES)``.
    """

    def __init__(self, rows: memoryview, tables: memoryview) -> None:
        self._rows, self._tables = rows, tables
        num_envs = len(rows) // ROW_BYTES
        # For each env, by form, and by keys for the last form with these keys: the types, which
        # of them are arrays, the struct's pack_into, the number of the form.
        self._learnt: list[dict[Form, Any]] = [{} for _ in range(num_envs)]
        self._latest: list[dict[tuple[str, ...], Any]] = [{} for _ in range(num_envs)]
        # The bytes of each env's table that are in use.
        self._used = [0] * num_envs

    def pack(self, i: int, info: dict[str, Any]) -> int:
        """Write the info of env ``i``; return the number of its form, 0 if it cannot be stored."""
        try:
            types, arrays, pack_into, number = self._latest[i][tuple(info)]
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
        """Write an info whose form differs from the last one with its keys; return as ``pack``."""
        form = form_of(info)
        if form is None:
            return 0
        learnt = self._learnt[i]
        if form not in learnt:
            layout = form.layout()
            data = pickle.dumps(form, protocol=5)
            start = i * TABLE_BYTES + self._used[i]
            end = start + _LENGTH.size + len(data)
            too_long = layout.size > ROW_BYTES or end > (i + 1) * TABLE_BYTES
            if too_long or len(learnt) == MAX_FORMS:
                return 0
            self._tables[start:end] = _LENGTH.pack(len(data)) + data
            self._used[i] += end - start
            arrays = [(n, np.dtype(a[0]), a[1]) for n, a in enumerate(form.arrays) if a is not None]
            learnt[form] = list(form.types), arrays or None, layout.pack_into, len(learnt) + 1
        self._latest[i][form.keys] = learnt[form]
        return self.pack(i, info)


class Reader:
    """Reads infos from the block and adds the env's id as ``env_id``."""

    def __init__(self, rows: memoryview, tables: memoryview) -> None:
        self._rows, self._tables = rows, tables
        # For each env a list of functions, each of which reads an info of the form of its index.
        self._known: dict[int, list[Callable[[], dict[str, Any]]]] = {}

    def read(self, i: int, number: int) -> dict[str, Any]:
        """Return the info of env ``i``, of the form ``number``, as a new dict."""
        try:
            return self._known[i][number]()
        except (KeyError, IndexError):
            self._look_up(i, number)
            return self._known[i][number]()

    def forget(self, i: int) -> None:
        """Forget the forms of env ``i``, because its new process writes a new table."""
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
        make, unpack = _maker(form), form.layout().unpack_from
        rows, offset = self._rows, i * ROW_BYTES
        return lambda: make(i, *unpack(rows, offset))


@functools.lru_cache(maxsize=1024)
def _maker(form: Form) -> Callable[..., dict[str, Any]]:
    """Return a function that makes an info from an env's id and the values.

    It is compiled for the form, because a dict display is two to three times as fast as a loop.
    """
    makers: dict[str, Any] = {}
    items = []
    for n, (key, kind, array) in enumerate(zip(*form, strict=True)):
        if array is None and kind in _OWN:
            items.append(f"{key!r}: v{n}")
        else:
            makers[f"make{n}"] = kind if array is None else _array_of(*array)
            items.append(f"{key!r}: make{n}(v{n})")
    items.append("'env_id': i")
    names = "".join(f", v{n}" for n in range(len(form.keys)))
    # Safe: of each key the code contains only the ``repr`` of a string.
    make = eval(f"lambda i{names}: {{{', '.join(items)}}}", makers)  # noqa: S307
    return cast("Callable[..., dict[str, Any]]", make)


def _array_of(dtype: str, shape: tuple[int, ...]) -> Callable[[bytes], Any]:
    return lambda data: np.frombuffer(data, dtype).reshape(shape).copy()
