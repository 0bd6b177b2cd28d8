"""Store numeric infos as bytes in the block, so that they need no pickling.

An info whose values are all numbers, or small arrays of numbers, takes at most ``ROW_BYTES`` per
env. The *form* of an info is its keys and the types of its values. The process that steps the env
writes each new form once into the env's table in the block, before the first row that has that
form; each row holds the number of its form. An info that is read has equal values of equal types.
Any other info is sent beside the block.
"""

from __future__ import annotations

import functools
import io
import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

#: Bytes that an env has for the values of its info: ten numbers, and a few small arrays.
ROW_BYTES = 256
#: Bytes that an env has for the forms of its infos. Forms are numbered from 1.
TABLE_BYTES = 1024
#: In place of the number of a form, because no table has so many: the info is in ``Block.infos`` of
#: this process.
KEPT = TABLE_BYTES

# The types whose values a struct restores exactly, by its letters. The struct refuses an int of
# more than 8 bytes, and the info is then sent beside the block.
_STRUCT_LETTERS: dict[Any, str] = {float: "d", int: "q", bool: "?", np.bool_: "?"}
_STRUCT_LETTERS |= {np.float64: "d", np.float32: "f", np.float16: "e"}
_STRUCT_LETTERS |= {np.int8: "b", np.int16: "h", np.int32: "i", np.int64: "q"}
_STRUCT_LETTERS |= {np.uint8: "B", np.uint16: "H", np.uint32: "I", np.uint64: "Q"}
_PYTHON_TYPES = (float, int, bool)  # the types that a struct returns

#: Each key with the type of its value; with dtype and shape if the value is an array.
Form: TypeAlias = "tuple[tuple[str, Any], ...]"
_Functions: TypeAlias = "tuple[Callable[..., dict[str, Any]], Callable[..., Any]]"


def form_of(info: dict[str, Any]) -> Form | None:
    """Return the form of an info, or None if its values cannot be stored as bytes."""
    form: list[tuple[str, Any]] = []
    for key, value in info.items():
        kind: Any = type(value)
        if kind is np.ndarray and value.size and value.dtype.kind in "biuf":
            kind = value.dtype.str, value.shape
        elif kind not in _STRUCT_LETTERS:
            return None
        if type(key) is not str:
            return None
        form.append((key, kind))
    return tuple(form)


def _struct_of(form: Form) -> struct.Struct:
    letters = [_STRUCT_LETTERS.get(kind) or f"{np.dtype(kind).itemsize}s" for _, kind in form]
    return struct.Struct("=" + "".join(letters))


class Packer:
    """Writes infos into the block; used by the process that steps the envs.

    ``rows`` is memory of ``(num_envs, ROW_BYTES)``, ``tables`` of ``(num_envs, TABLE_BYTES)``.
    """

    def __init__(self, rows: memoryview, tables: memoryview) -> None:
        self._rows, self._tables = rows, tables
        num_envs = len(rows) // ROW_BYTES
        # For each env, by form, and by keys for the last form that has them: the types of the
        # values; the struct's pack_into; place, dtype and shape of each array; the form's number.
        self._learnt: list[dict[Form, Any]] = [{} for _ in range(num_envs)]
        self._by_keys: list[dict[tuple[Any, ...], Any]] = [{} for _ in range(num_envs)]
        # The end of the forms in each env's table.
        self._table_ends = [i * TABLE_BYTES for i in range(num_envs)]

    def pack(self, i: int, info: dict[str, Any]) -> int:
        """Write the info of env ``i``; return the number of its form, 0 if it cannot be stored."""
        values: Any = info.values()
        try:
            types, pack_into, arrays, number = self._by_keys[i][tuple(info)]
        except KeyError:
            return self._learn(i, info)
        if list(map(type, values)) != types:
            return self._learn(i, info)
        if arrays:
            values = list(values)
            for place, dtype, shape in arrays:
                array = values[place]
                if array.dtype != dtype or array.shape != shape:
                    return self._learn(i, info)
                values[place] = array.tobytes()
        try:
            pack_into(self._rows, i * ROW_BYTES, *values)
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
            layout, data = _struct_of(form), pickle.dumps(form, protocol=5)
            start, end = self._table_ends[i], self._table_ends[i] + len(data)
            if layout.size > ROW_BYTES or end > (i + 1) * TABLE_BYTES:
                return 0
            self._tables[start:end] = data
            self._table_ends[i] = end
            kinds = [kind for _, kind in form]
            arrays = [(n, np.dtype(k[0]), k[1]) for n, k in enumerate(kinds) if type(k) is tuple]
            types = list(map(type, info.values()))
            learnt[form] = types, layout.pack_into, arrays, len(learnt) + 1
        self._by_keys[i][tuple(info)] = learnt[form]
        return self.pack(i, info)


class Reader:
    """Reads infos from the block and adds the env's id as ``env_id``."""

    def __init__(self, rows: memoryview, tables: memoryview) -> None:
        self._rows, self._tables = rows, tables
        # For each env the functions of its forms, in the order of their numbers.
        self._functions: dict[int, list[_Functions]] = {}

    def read(self, i: int, number: int) -> dict[str, Any]:
        """Return the info of env ``i``, of the form ``number``, as a new dict."""
        try:
            make, unpack = self._functions[i][number - 1]
        except (KeyError, IndexError):
            table = io.BytesIO(self._tables[i * TABLE_BYTES : (i + 1) * TABLE_BYTES])
            forms = [pickle.load(table) for _ in range(number)]  # noqa: S301 - from our own worker process
            self._functions[i] = list(map(_functions_of, forms))
            make, unpack = self._functions[i][-1]
        return make(i, *unpack(self._rows, i * ROW_BYTES))

    def forget(self, ids: Iterable[int]) -> None:
        """Forget the forms of these envs, because a new process writes new tables."""
        for i in ids:
            self._functions.pop(i, None)


@functools.lru_cache(maxsize=1024)
def _functions_of(form: Form) -> _Functions:
    """Return a function of an env's id and values that makes an info, and one that unpacks values.

    The first is compiled for the form: a dict display is two to three times as fast as a loop.
    """
    makers: dict[str, Any] = {}
    items = []
    for n, (key, kind) in enumerate(form):
        if kind in _PYTHON_TYPES:
            items.append(f"{key!r}: v{n}")
        else:
            makers[f"make{n}"] = _array_of(*kind) if type(kind) is tuple else kind
            items.append(f"{key!r}: make{n}(v{n})")
    items.append("'env_id': i")
    names = "".join(f", v{n}" for n in range(len(form)))
    # Safe: of each key the code contains only the ``repr`` of a string.
    make = eval(f"lambda i{names}: {{{', '.join(items)}}}", makers)  # noqa: S307
    return make, _struct_of(form).unpack_from


def _array_of(dtype: str, shape: tuple[int, ...]) -> Callable[[bytes], Any]:
    return lambda data: np.frombuffer(data, dtype).reshape(shape).copy()
