"""An ``.npy`` file that grows, and can be read at any moment.

Rows are written behind those that the header counts; then the header is written again, with the new
count. NumPy leaves room for that in the headers that it writes. A program that is killed in between
leaves bytes that the header does not count, and that the next rows are written over.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class GrowingArray:
    """The array in an ``.npy`` file, to which rows of its ``shape`` and ``dtype`` are added."""

    def __init__(self, path: Path) -> None:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        self.shape, self.dtype = found.shape[1:], found.dtype
        self._row_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._file = path.open("r+b", buffering=0)
        header = header_of((0, *self.shape), self.dtype)
        self._start = len(header)
        self._before, first, self._after = header.rpartition(b"'shape': (0,")
        self._before += first[:-2]

    @classmethod
    def create(cls, path: Path, rows: NDArray[Any]) -> GrowingArray:
        """Make a file for rows like these."""
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(header_of((0, *rows.shape[1:]), rows.dtype))
        unfinished.replace(path)
        return cls(path)

    def put(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows from row ``first`` on; the array ends with them."""
        if rows.nbytes:
            values = rows.reshape(-1).view(np.uint8).data
            self._write_at(self._start + first * self._row_bytes, values)
        count = b"%d" % (first + len(rows))
        padded = self._after[: -len(count)] + b"\n"  # each digit takes the place of a blank
        self._write_at(0, b"%b%b,%b" % (self._before, count, padded))

    def close(self) -> None:
        self._file.close()

    def _write_at(self, place: int, data: Any) -> None:
        self._file.seek(place)
        data = memoryview(data)
        while data:
            data = data[self._file.write(data) :]


def header_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What comes before the values in an ``.npy`` file."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    data = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, data)
    return header.getvalue()
