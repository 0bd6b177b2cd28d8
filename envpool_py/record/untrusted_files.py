"""Read files that may be damaged or hostile: what a file says is checked before it is used."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.failures import describe

#: Kinds of dtypes that hold numbers, strings and dates: no objects and no structured dtypes.
KINDS = "biufcSUMm"
#: The largest size of the arrays of an archive, as a multiple of the archive's size: more than
#: zlib reaches at its fastest. A small one may have the other.
MAX_EXPANSION, LEAST_LIMIT = 256, 1 << 26
#: The most rows of an array whose rows have no bytes.
_MAX_EMPTY_ROWS = 1 << 16


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file; ValueError for a FIFO or a device, which could block or never end."""

    def without_blocking(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    file = open(path, "rb", opener=without_blocking)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{os.fspath(path)}: not a regular file")
    return file


@contextlib.contextmanager
def field(name: str) -> Iterator[None]:
    """Raise an error of the block as a ValueError that names a field of a file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that of a false offset
            raise
        text = str(error) if type(error) is ValueError else describe(error)
        raise ValueError(f"{name}: {text}") from error


def require(condition: object, text: str) -> None:
    if not condition:
        raise ValueError(text)


def is_int(value: Any, least: int = 0, limit: float = math.inf) -> bool:
    """Whether a value of a file is an int (no bool) from ``least`` to below ``limit``."""
    return type(value) is int and least <= value < limit


def read_json(path: Path) -> Any:
    with open_file(path) as file, field(path.name):
        return json.loads(file.read())


def checked_size(dtype: np.dtype[Any], shape: Any, available: int) -> int:
    """Return the number of bytes of an array; ValueError if more than ``available``."""
    if type(shape) not in (list, tuple) or not all(map(is_int, shape)):
        raise ValueError(f"the shape {shape!r:.80} is no list of sizes")
    size: int = dtype.itemsize * math.prod(shape)
    require(size <= available, f"needs {size} bytes, but has {available}")
    is_small = size or math.prod(max(length, 1) for length in shape) <= _MAX_EMPTY_ROWS
    require(is_small, f"the shape {shape!r:.80} has too many rows without bytes")
    return size


def check_values(array: NDArray[Any]) -> None:
    """Check what NumPy takes for granted: bytes of bools and characters of strings."""
    flat = array.reshape(-1)
    if array.dtype.kind == "b":
        require(not (flat.view(np.uint8) > 1).any(), "a bool that is neither 0 nor 1")
    elif array.dtype.kind == "U" and flat.size:
        codes = flat.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        require(codes.max() <= 0x10FFFF, "a character that does not exist")


def read_array(
    stream: IO[bytes], available: int, *, mmap: bool = False, structured: bool = False
) -> NDArray[Any]:
    """Read an array in NumPy's format from the beginning of a file of ``available`` bytes."""
    version = np.lib.format.read_magic(stream)
    require(version in ((1, 0), (2, 0)), f"version {version} of NumPy's format is not supported")
    read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, is_fortran, dtype = read_header(stream)
    kinds = {each[0].base.kind for each in (dtype.fields or {"": (dtype,)}).values()}
    require(kinds <= set(KINDS) and dtype.isnative, f"the dtype {dtype!s:.80} is not supported")
    require(structured or dtype.names is None, "structured values are not supported")
    size, start = checked_size(dtype, shape, available - stream.tell()), stream.tell()
    order: Any = "F" if is_fortran else "C"
    if mmap:
        array: NDArray[Any] = np.memmap(stream, dtype, "r", start, shape, order)
    else:
        array = np.empty(shape, dtype, order)
        rest = memoryview(array.reshape(-1, order="A").view(np.uint8).data if size else b"")
        while rest:
            length = stream.readinto(rest[: 1 << 24])  # type: ignore[attr-defined]
            require(length, "cut off")
            rest = rest[length:]
    check_values(array)
    return array


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz``, by name."""
    arrays: dict[str, NDArray[Any]] = {}
    with open_file(path) as file, field("the archive"):
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        limit = max(LEAST_LIMIT, MAX_EXPANSION * os.fstat(file.fileno()).st_size)
        require(total <= limit, f"unpacked it has {total} bytes, more than {limit}")
        for member in members:
            kind = member.compress_type
            known = kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            name = member.filename.removesuffix(".npy")
            with field(f"{name:.80}"), archive.open(member) as stream:
                require(known, f"the compression {kind} is not supported")
                arrays[name] = read_array(stream, member.file_size)
                require(not stream.read(1), "bytes are left over")  # and the checksum is checked
    return arrays


def text_of(array: NDArray[Any]) -> str:
    """Return the text that an array of one string holds."""
    require(array.dtype.kind == "U" and not array.shape, f"no text, but {array.dtype}{array.shape}")
    return str(array)
