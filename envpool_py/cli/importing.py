"""Import what the user names: ``module:callable`` and ``FILE.py:callable``."""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import envpool_py
from envpool_py.cli.arguments import UsageError
from envpool_py.errors import describe

#: The folders of Python, of installed packages and of this package.
_NOT_THE_USERS = (
    "<",
    *(path + os.sep for path in sysconfig.get_paths().values()),
    str(Path(envpool_py.__file__).parent) + os.sep,
)


class Imported(NamedTuple):
    """The callable that ``module:callable`` or ``FILE.py:callable`` names."""

    name: str
    """As the user wrote it."""
    value: Callable[..., Any]
    module: str
    path: str
    """Of the callable within its module."""


def find_in_working_directory() -> None:
    """Let modules in the working directory be imported, as ``python -m`` does."""
    if "" not in sys.path:
        _find_in(str(Path.cwd()))


def load(place: str) -> ModuleType:
    """Import a module by its name, or a file that ends in ``.py``.

    A file is imported under its own name, with its folder on ``sys.path``, so that every process
    can import it again. A file of a package is imported as a module of the package.

    Raises:
        UsageError: there is none, or importing it raised.
    """
    if not place.endswith(".py"):
        find_in_working_directory()
        return _import(place, place)
    file = Path(place).resolve()
    if not file.is_file():
        near = did_you_mean(file.name, [each.name for each in file.parent.glob("*.py")])
        raise UsageError(f"there is no file {place}{near}")
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    _find_in(str(folder))
    module = _import(name, place)
    found = getattr(module, "__file__", None) or "a built-in module"
    if Path(found).resolve() != file:
        raise UsageError(f"{place}: another module has the name {name!r}, {found}; rename the file")
    return module


def callable_of(module: ModuleType, path: str) -> Any:
    """What a module has at ``path``, such as ``A.b``; AttributeError: nothing is there."""
    value: Any = functools.reduce(getattr, path.split("."), module)
    if not callable(value):
        kind = type(value).__name__
        raise UsageError(f"{module.__name__}:{path} is a {kind}, not a class or function")
    return value


def imported(text: str) -> Imported:
    """The type of an argument ``module:callable`` or ``FILE.py:callable``."""
    place, _, path = text.rpartition(":")
    if not place or not path:
        raise argparse.ArgumentTypeError(f"must be module:callable or FILE.py:callable, got {text}")
    try:
        module = load(place)
        return Imported(text, callable_of(module, path), module.__name__, path)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except AttributeError:
        near = did_you_mean(path, callables_of(module))
        raise argparse.ArgumentTypeError(f"{place!r} has no {path!r}{near}") from None


def callables_of(module: ModuleType) -> list[str]:
    """The public classes and functions that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean A, B"``, or nothing if no known name is similar."""
    near = difflib.get_close_matches(name, known)
    return f"; did you mean {', '.join(near)}" if near else ""


def line_of(error: BaseException) -> str:
    """``" (corridor.py:31)"``: the innermost line of the user's code that was run; or nothing."""
    lines = [
        f" ({Path(frame.filename).name}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    return lines[-1] if lines else ""


def _find_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
        what = " ".join(describe(error).split())
        raise UsageError(f"can't import {place!r}: {what}{line_of(error)}") from None
