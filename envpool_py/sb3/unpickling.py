"""Read pickles of ``VecNormalize`` without running code of the file.

A pickle is a program that may call anything that it can name, and that may change whatever it can
name. Here every class and function that it names is replaced by a new class, whose instances hold
their state and do nothing, or make an array or a number out of values that were checked.
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import re
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py.record.untrusted_files import check_values, checked_size, field, open_file, require

#: Modules of what Stable-Baselines3, its predecessor and we have in a ``VecNormalize``.
_OWNERS = ("envpool_py.sb3.", "stable_baselines3.common.", "stable_baselines.common.")
_PARTS = (*_OWNERS, "gym.spaces.", "gymnasium.spaces.", "gym.utils.", "gymnasium.utils.", "numpy.")
#: Built-in types that a ``VecNormalize`` may hold. Old protocols have the module names of Python 2.
_BUILT_IN = re.compile(r"(builtins|__builtin__)\.(object|bytearray|set|frozenset|slice)")
_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|f16)")
#: More than a ``VecNormalize`` has. To hash nested tuples, keys of a dict, C recurses unlimited.
_MAX_OPCODES, _MAX_TUPLES = 200_000, 10_000


class DamagedFileError(pickle.UnpicklingError, ValueError):
    """A file of a ``VecNormalize`` is damaged, or is none."""


class Part:
    """An object of a pickle: the name of its class, and its attributes."""

    name: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes; of a NumPy generator they are no dict, and nothing needs them."""
        if isinstance(state, dict):
            vars(self).update({str(key): value for key, value in state.items()})


class _Dtype(Part):
    """A dtype: its code, and the byte order that its state names."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def real(self) -> np.dtype[Any]:
        order = "=" if self.order == "|" else self.order
        known = type(self.code) is str and _DTYPE.fullmatch(self.code) and order in tuple("<>=")
        require(known, f"the dtype {self.code!r:.80} is not supported")
        found: np.dtype[Any] = np.dtype(self.code).newbyteorder(order)
        return found


class _Array(Part):
    """An array, which is made when its state is set."""

    values: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        """Keep the values; an array of objects, as ``low_repr`` of a space may be, has none."""
        _, shape, dtype, is_fortran, data = state
        if isinstance(data, (bytes, bytearray)):
            self.values = _values(data, dtype, shape, "F" if is_fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype)


def _values(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    real = dtype.real()
    require(checked_size(real, shape, len(data)) == len(data), "an array of another size")
    values: NDArray[Any] = np.ndarray(shape, real, bytes(data), order=order).copy()
    check_values(values)
    return values


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    found = _Array()
    found.values = _values(data, dtype, shape, order)
    return found


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How old protocols write bytes."""
    require(encoding in ("latin1", "latin-1"), f"the encoding {encoding!r:.80} of bytes")
    return str.encode(text, "latin-1")


#: Functions of a pickle by their names, without the module of NumPy, which has changed.
_FUNCTIONS: dict[str, Any] = {
    "_codecs.encode": _encode,
    "copyreg._reconstructor": lambda cls, *_: cls(),
    "copy_reg._reconstructor": lambda cls, *_: cls(),
    "builtins.bytes": lambda: b"",
    "__builtin__.bytes": lambda: b"",
    "numpy.multiarray._reconstruct": lambda *_: _Array(),
    "numpy.multiarray.scalar": lambda dtype, data: _values(data, dtype, (), "C").item(),
    "numpy.numeric._frombuffer": _from_buffer,
}


def parts_of(path: Path) -> Any:
    """The value of a pickle, with a ``Part`` for each object; DamagedFileError if it is unfit."""
    with open_file(path) as file:
        data = file.read()
    try:
        with field("damaged"):
            _check_opcodes(data)
            return _Unpickler(io.BytesIO(data)).load()
    except ValueError as error:
        raise DamagedFileError(f"{path}: {error}") from error


def _check_opcodes(data: bytes) -> None:
    """Refuse what would take much memory, or could kill the process, before anything is made."""
    num_tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        num_tuples += "TUPLE" in opcode.name
        require(number < _MAX_OPCODES and num_tuples <= _MAX_TUPLES, "too many values")
        place = int(argument or 0) if "PUT" in opcode.name else 0
        require(place <= len(data), "a place in the memo beyond the file")


def trust(path: Path) -> Any:
    """The value of a pickle, whose code is run; with our classes in place of the same of others."""
    with path.open("rb") as file:
        return _Trusting(file).load()


class _Trusting(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_OWNERS):
            own = module.replace("stable_baselines3.", "envpool_py.sb3.")
            module = own.replace("stable_baselines.", "envpool_py.sb3.")
        return super().find_class(module, name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._classes: dict[str, type[Part]] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return OrderedDict  # in C: it cannot be changed
        short = re.sub(r"^numpy\.(_?core\.)?", "numpy.", full)
        if short in _FUNCTIONS:
            return functools.partial(_FUNCTIONS[short])  # a new one: its attributes can be set
        if not (full.startswith(_PARTS) or _BUILT_IN.fullmatch(full)):
            hint = "trusted=True reads the file nevertheless, and runs its code"
            raise ValueError(f"it names {full!r:.200}, no part of a VecNormalize; {hint}")
        base = _Dtype if short == "numpy.dtype" else Part
        if full not in self._classes:
            self._classes[full] = type("Part", (base,), {"name": full})
        return self._classes[full]
