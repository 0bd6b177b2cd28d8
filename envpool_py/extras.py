"""Packages that only some functions need."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym


class MissingPackageError(gym.error.DependencyNotInstalled, ImportError):
    """A package is not installed."""


def hint(extra: str) -> str:
    """How to install an extra; before the first release only a clone can be installed."""
    return f'pip install -e ".[{extra}]" in a clone of envpool_py'


def load(module: str, needed: str) -> Any:
    """Import a module; else raise ``MissingPackageError``: who needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(needed) from error
