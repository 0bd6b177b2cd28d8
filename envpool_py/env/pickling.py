"""Pickle functions and classes by value, as cloudpickle does, but with the names of their files."""

from __future__ import annotations

import io
from collections import ChainMap
from types import CodeType
from typing import Any, ClassVar

import cloudpickle


def dumps_by_value(value: Any) -> bytes:
    """Pickle ``value``; errors in it then name the file and the line of the user's code."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    # From 3.1.3 on, cloudpickle replaces the name of the file.
    make, parts = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # it has no type hints
    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )
