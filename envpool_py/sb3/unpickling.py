"""Read pickles of ``VecNormalize`` without running code that a file may bring.

A pickle is a program that may call whatever it can name. Here it can name the classes that
``VecNormalize`` consists of, and what NumPy rebuilds its arrays and generators with; nothing else.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import IO, Any

import gymnasium as gym

_SPACES = frozenset(
    {"Box", "Dict", "Discrete", "Graph", "MultiBinary", "MultiDiscrete", "OneOf", "Sequence"}
    | {"Text", "Tuple"}
)
_NUMPY = frozenset(
    {
        "dtype",
        "ndarray",
        "multiarray._reconstruct",
        "multiarray.scalar",
        "numeric._frombuffer",
        "random._generator.Generator",
        "random._mt19937.MT19937",
        "random._pcg64.PCG64",
        "random._philox.Philox",
        "random._sfc64.SFC64",
        "random._pickle.__bit_generator_ctor",
        "random._pickle.__generator_ctor",
        "random._pickle.__randomstate_ctor",
        "random.bit_generator.SeedSequence",
        "random.bit_generator.SeedlessSeedSequence",
        "random.bit_generator.__pyx_unpickle_SeedSequence",
    }
)
_NUMBERS = re.compile(r"bool_?|u?int\d+|float\d+|dtypes\.(Bool|U?Int\d+|Float\d+)DType")
# Old protocols call some modules by their names in Python 2.
_PLAIN = frozenset(
    {
        (module, name)
        for module in ("builtins", "__builtin__")
        for name in ("object", "set", "slice")
    }
    | {("builtins", "frozenset"), ("__builtin__", "frozenset"), ("collections", "OrderedDict")}
    | {("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor"), ("_codecs", "encode")}
)
# What Stable-Baselines3 and its predecessor call the modules of the classes that we have as well.
_OWNERS = ("envpool_py.sb3.", "stable_baselines3.", "stable_baselines.")


def load(file: IO[bytes], known: Mapping[str, type[Any]], *, trusted: bool = False) -> Any:
    """Read one object.

    Args:
        file: a pickle.
        known: our classes, by name; they are taken for Stable-Baselines3's of that name as well.
        trusted: let the file name anything.

    Raises:
        pickle.UnpicklingError: the file is no pickle, or names what it may not.
    """
    return _Unpickler(file, known, trusted=trusted).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], known: Mapping[str, type[Any]], *, trusted: bool) -> None:
        super().__init__(file)
        self._known = known
        self._trusted = trusted

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_OWNERS) and name in self._known:
            return self._known[name]
        if module.startswith(("gymnasium.spaces", "gym.spaces")) and name in _SPACES:
            return getattr(gym.spaces, name)
        if (module, name) in _PLAIN or _is_numpy(module, name) or self._trusted:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the file names {module}.{name}, which VecNormalize has no use for;"
            " trusted=True reads it all the same, and runs what it brings"
        )


def _is_numpy(module: str, name: str) -> bool:
    if module != "numpy" and not module.startswith("numpy."):
        return False
    # numpy.core became numpy._core, and dtypes and scalars have a class each.
    parts = [part for part in module.split(".")[1:] if part not in ("core", "_core")]
    path = ".".join((*parts, name))
    return path in _NUMPY or _NUMBERS.fullmatch(path) is not None
